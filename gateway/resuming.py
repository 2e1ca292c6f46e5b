"""Streams that are read again, and what can be asked of a generation by its id.

`GET /v1/generations/{id}/events` is what a browser's EventSource takes: it comes
back by itself with `Last-Event-ID`, and 204 tells it that there is no more.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.background import begin_in_background
from gateway.generation import GenerationResponse, Generations
from gateway.openai.errors import ApiError, from_upstream, invalid_request
from gateway.openai.event_ids import LAST_EVENT_ID, Position, generation_id_of, position_of
from gateway.openai.requests import GenerationCall
from gateway.openai.responses.call import ResponsesCall
from gateway.openai.retention import IDEMPOTENCY_KEY, annotated_call, joined_call, of_another_request, retained
from gateway.openai.usage import timing_document, usage_document
from gateway.upstream import CallOptions, Upstream
from headrace.v1 import error_reason_pb2
from headrace.v1 import generation_pb2 as gen

__all__ = ["cancel_generation", "generation_document", "read_events", "started_or_joined"]

_STATES: Final = {
    gen.GENERATION_STATE_QUEUED: "queued",
    gen.GENERATION_STATE_RUNNING: "in_progress",
    gen.GENERATION_STATE_COMPLETED: "completed",
    gen.GENERATION_STATE_FAILED: "failed",
    gen.GENERATION_STATE_CANCELLED: "cancelled",
}
_OVER: Final = frozenset({gen.GENERATION_STATE_COMPLETED, gen.GENERATION_STATE_FAILED, gen.GENERATION_STATE_CANCELLED})
_ENDED_WELL: Final = _OVER - {gen.GENERATION_STATE_FAILED}
_NOT_FOUND: Final = "GENERATION_NOT_FOUND"


async def started_or_joined(
    generations: Generations, call: GenerationCall, options: CallOptions, request: Request, body: bytes
) -> Response:
    """Return the response to a generation request: a new generation, the one with its key, or the rest of one.

    A repeated request with the `Last-Event-ID` of its stream gets what comes behind
    it, in the shape that the stream was begun with. ApiError (400) for headers that are
    wrong, and for such an id that is not, or cannot be known to be, one of this request's
    stream. Waits for a response in the background until it is accepted; ApiError if it
    is not.
    """
    headers = request.headers
    call = retained(call, headers, body)
    if isinstance(call, ResponsesCall) and call.background and not call.stream:
        return await begin_in_background(generations, call, options, request.receive)
    last = headers.get(LAST_EVENT_ID.lower(), "").strip()
    if not last or not call.stream:
        return GenerationResponse(generations, call, options)
    after = position_of(last)
    if after.generation_id is None:
        raise invalid_request(
            f"The stream cannot be continued: nothing of it was kept. Send an '{IDEMPOTENCY_KEY}' with a request whose "
            f"stream may have to be, or leave '{LAST_EVENT_ID}' away to begin anew.",
            param=LAST_EVENT_ID,
            code="stream_not_kept",
        )
    state = await _repeated(generations.upstream, after.generation_id, headers.get(IDEMPOTENCY_KEY.lower()), options)
    shown = joined_call(state.annotation, call)
    _check_has_been(after, state, shown)
    return GenerationResponse(
        generations, shown, options, attach_to=after.generation_id, after=after, is_over=state.state in _OVER
    )


async def read_events(
    generations: Generations, named: str, options: CallOptions, last_event_id: str | None
) -> Response:
    """Return the stream of a retained generation, behind `last_event_id` if there is one; 204 if that was its last."""
    generation_id = _id_of(named)
    after = position_of(last_event_id) if last_event_id else None
    if after is not None and after.generation_id not in {None, generation_id}:
        raise invalid_request(
            f"The '{LAST_EVENT_ID}' header is that of another generation.", param=LAST_EVENT_ID, code="invalid_value"
        )
    state = await generations.upstream.get_generation(generation_id, options)
    if not state.HasField("first_sequence"):
        raise _nothing_kept()
    call = annotated_call(state.annotation)
    if after is not None:
        _check_has_been(after, state, call)
        is_whole = call.plan is None and after.part is None and after.sequence == state.last_sequence
        if is_whole and state.state in _ENDED_WELL:
            return Response(status_code=204)
    return GenerationResponse(
        generations,
        call,
        options,
        attach_to=generation_id,
        after=after,
        is_over=state.state in _OVER,
        tells_end=True,
    )


async def generation_document(upstream: Upstream, named: str, options: CallOptions) -> Response:
    """Return where a generation is."""
    generation_id = _id_of(named)
    state = await upstream.get_generation(generation_id, options)
    document: dict[str, Any] = {
        "id": generation_id,
        "object": "generation",
        "status": _STATES.get(state.state, "unknown"),
        "model": state.model,
        "created": state.create_time.seconds,
        "last_sequence": state.last_sequence,
        "first_sequence": state.first_sequence if state.HasField("first_sequence") else None,
        "expires_at": state.expire_time.seconds if state.HasField("expire_time") else None,
        "usage": usage_document(state.usage),
        "timing": timing_document(state.timing),
    }
    if state.failure_reason:
        name = error_reason_pb2.ErrorReason.Name(state.failure_reason)
        document["failure_reason"] = name.removeprefix("ERROR_REASON_")
    if state.HasField("ahead_count"):
        document["ahead_count"] = state.ahead_count
    return JSONResponse(document)


async def cancel_generation(upstream: Upstream, named: str, options: CallOptions) -> Response:
    """Stop a generation; one that has ended stays as it ended."""
    generation_id = _id_of(named)
    answer = await upstream.cancel_generation(generation_id, options)
    return JSONResponse({"id": generation_id, "object": "generation", "status": _STATES.get(answer.state, "unknown")})


async def _repeated(
    upstream: Upstream, generation_id: str, key: str | None, options: CallOptions
) -> gen.GetGenerationResponse:
    """Return where a generation is; ApiError (400) if `key` stands for another one."""
    if key:
        try:
            state = await upstream.get_generation(None, options, idempotency_key=key)
        except ApiError as error:
            if error.reason != _NOT_FOUND:
                raise
        else:
            if state.generation_id != generation_id:
                raise of_another_request()
            return state
    return await upstream.get_generation(generation_id, options)


def _check_has_been(after: Position, state: gen.GetGenerationResponse, call: GenerationCall) -> None:
    # Of one of which nothing is kept the service says what became of it.
    if not state.HasField("first_sequence"):
        return
    # An echo comes before the first token, once for each choice.
    newest = state.last_sequence + (call.choices if call.plan is not None and call.plan.echo else 0)
    if after.sequence > newest:
        raise invalid_request(
            f"The '{LAST_EVENT_ID}' header names an event that has not been: the newest is {newest}.",
            param=LAST_EVENT_ID,
            code="invalid_value",
        )


def _id_of(named: str) -> str:
    generation_id = generation_id_of(named)
    if generation_id is None:
        raise _not_found()
    return generation_id


def _not_found() -> ApiError:
    return from_upstream("NOT_FOUND", _NOT_FOUND, "No generation has this id.")


def _nothing_kept() -> ApiError:
    return from_upstream("NOT_FOUND", _NOT_FOUND, "Nothing of this generation is kept.")
