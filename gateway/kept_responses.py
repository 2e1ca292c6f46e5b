"""Responses that are asked for by their id: where they are, what they have become, the rest of a stream, an end.

A response is kept as its generation is, and for as long. Its documents are made
anew from the events, by the readers that made them for the first caller.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from starlette.responses import Response

from gateway.generation import GenerationResponse, Generations
from gateway.openai.errors import ApiError, invalid_request
from gateway.openai.responses.call import ResponsesCall
from gateway.openai.responses.document import ResponseStatus
from gateway.openai.responses.whole import WholeResponse
from gateway.openai.retention import annotated_response
from gateway.upstream import CallOptions, Upstream
from headrace.v1 import error_reason_pb2
from headrace.v1 import generation_pb2 as gen

__all__ = [
    "OPEN",
    "KeptResponse",
    "cancelled_response",
    "json_response",
    "kept_document",
    "kept_response",
    "not_stored",
    "rest_of_response",
    "retrieved_response",
]

# Of a response that has not ended.
OPEN: Final[Mapping[gen.GenerationState, ResponseStatus]] = {
    gen.GENERATION_STATE_QUEUED: "queued",
    gen.GENERATION_STATE_RUNNING: "in_progress",
}
_ID: Final = re.compile(r"resp_(gen_[0-9a-zA-Z]{1,64})")
_REASON: Final = "ERROR_REASON_"


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """One that is kept: its generation, where that is, and the call that it was asked for with."""

    generation_id: str
    state: gen.GetGenerationResponse
    call: ResponsesCall

    def reader(self) -> WholeResponse:
        """Return a reader of its events, whose document is right before the first one as well."""
        call = replace(self.call, stream=False)
        reader = WholeResponse(call, self.state.create_time.seconds or int(time.time()))
        reader.generation_id = self.generation_id
        reader.model = self.state.model or reader.model
        return reader


def not_stored(response_id: str, why: str = "This server stores no responses.") -> ApiError:
    """Return what is said of a response that is not there: unknown, gone, or another tenant's."""
    return invalid_request(
        f"Response with id '{response_id[:64]}' not found. {why}", param="response_id", http_status=404
    )


async def kept_response(upstream: Upstream, response_id: str, options: CallOptions) -> KeptResponse:
    """Return a response that is kept. ApiError (404) if it is not there, or what has the id is no response."""
    named = _ID.fullmatch(response_id)
    if named is None:
        raise not_stored(response_id)
    try:
        state = await upstream.get_generation(named[1], options)
    except ApiError as error:
        if error.reason == "GENERATION_NOT_FOUND":
            raise not_stored(response_id) from None
        raise
    call = annotated_response(state.annotation)
    if call is None:
        raise not_stored(response_id)
    return KeptResponse(named[1], state, call)


async def retrieved_response(upstream: Upstream, response_id: str, options: CallOptions) -> Response:
    """Return a response as it is now: with its output so far, or as the whole answer was."""
    return json_response(await kept_document(upstream, await kept_response(upstream, response_id, options), options))


async def rest_of_response(
    generations: Generations, response_id: str, options: CallOptions, starting_after: int | None
) -> Response:
    """Return the stream of a response, behind the event with number `starting_after` if there is one."""
    kept = await kept_response(generations.upstream, response_id, options)
    call = replace(kept.call, starting_after=starting_after)
    return GenerationResponse(generations, call, options, attach_to=kept.generation_id)


async def cancelled_response(upstream: Upstream, response_id: str, options: CallOptions) -> Response:
    """Stop a response in the background and return what it has become; one that has ended stays as it ended."""
    kept = await kept_response(upstream, response_id, options)
    if not kept.call.background:
        # In the words of the API; leaving its connection ends such a one.
        raise invalid_request("Cannot cancel a synchronous response.")
    if kept.state.state in OPEN:
        await upstream.cancel_generation(kept.generation_id, options)
    try:
        return json_response(await kept_document(upstream, kept, options, to_its_end=True))
    except ApiError as error:
        if error.reason != "REPLAY_EXPIRED":
            raise
    # It was longer than what is kept of one.
    return json_response(kept.reader().unfinished("cancelled"))


async def kept_document(
    upstream: Upstream, kept: KeptResponse, options: CallOptions, *, to_its_end: bool = False
) -> bytes:
    """Return the response as JSON text. `to_its_end` waits for that, where it is near.

    ApiError for what went wrong now, and not with the response: 410 where its events
    are more than are kept.
    """
    state, reader = kept.state, kept.reader()
    status = None if to_its_end else OPEN.get(state.state)
    if status is not None and state.first_sequence != 1:
        return reader.unfinished(status)
    whole = b""
    try:
        async with upstream.attach(kept.generation_id, options, kept.call.naming) as events:
            async for event in events:
                whole = reader.feed(event) or whole
                if status is not None and event.sequence == state.last_sequence and not reader.is_complete:
                    return reader.unfinished(status)
    except ApiError as error:
        if status is not None and error.reason == "REPLAY_EXPIRED":
            return kept.reader().unfinished(status)  # its first event has gone just now
        if not await _has_failed_so(upstream, kept.generation_id, options, error):
            raise
        return reader.unfinished("failed", error)
    if reader.is_cancelled:
        return reader.unfinished("cancelled")
    reader.check_complete()
    return whole


def json_response(document: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response that carries a document."""
    return Response(document, media_type="application/json", headers=headers)


async def _has_failed_so(upstream: Upstream, generation_id: str, options: CallOptions, error: ApiError) -> bool:
    """Return whether `error` is how the generation ended, and not the call that reads it."""
    state = await upstream.get_generation(generation_id, options)
    reason = error_reason_pb2.ErrorReason.Name(state.failure_reason).removeprefix(_REASON)
    return state.state == gen.GENERATION_STATE_FAILED and reason == error.reason
