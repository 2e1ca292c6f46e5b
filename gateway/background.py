"""Begins a response in the background: it is answered as soon as the service has accepted it, and runs on by itself.

The service says nothing of a generation before its first event. What it knows of
one is asked by the key that every such request has, the caller's or one of its own,
until it waits in the line or runs; a call that fails before is the refusal.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

from starlette.responses import Response
from starlette.types import Receive

from gateway.exchange import client_left
from gateway.generation import Generations, draining
from gateway.kept_responses import OPEN, KeptResponse, json_response, kept_document
from gateway.lifetime import EndCause, Lifetime
from gateway.openai.answers import ContractError
from gateway.openai.errors import ApiError
from gateway.openai.responses.call import ResponsesCall
from gateway.openai.retention import annotated_response, are_of_one_request
from gateway.prompts import Events, open_events
from gateway.timeouts import Budget
from gateway.upstream import CallOptions, Upstream
from headrace.v1 import generation_pb2 as gen

__all__ = ["begin_in_background"]

# It is in the line after a few milliseconds, unless its prompt is long.
_FIRST_LOOK_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.25
# For telling the service that nobody will come back.
_STOP_S: Final = 2.0


async def begin_in_background(
    generations: Generations, call: ResponsesCall, options: CallOptions, receive: Receive
) -> Response:
    """Return the response object of a generation that runs on without its caller.

    ApiError if it is refused, its time is over first, or the caller leaves before it
    has the id: then it is stopped, unless it has a key that the caller knows.
    """
    upstream, request = generations.upstream, call.request
    has_callers_key = bool(request.idempotency_key)
    if not has_callers_key:
        request.idempotency_key = f"background-{secrets.token_hex(16)}"
    response: Response | None = None
    late: ApiError | None = None
    async with Lifetime(receive, generations.running) as lifetime:
        try:
            document = await _document(upstream, await _accepted(upstream, call, options), options)
            response = json_response(document, options.told())
        except ApiError as error:
            if error.http_status != 504:
                raise
            late = error  # the call is over, and what it began may be not
        lifetime.finish()
    if lifetime.cause is None and response is not None:
        return response
    if not has_callers_key:
        await _stop(upstream, request.idempotency_key, options)
    if lifetime.cause is EndCause.DISCONNECTED:
        raise client_left("The client left before it had the id of its response.")
    try:
        raise late or draining()
    finally:
        late = None  # its traceback has this frame


async def _stop(upstream: Upstream, key: str, options: CallOptions) -> None:
    """Stop what nobody could ask for, if it runs."""
    budget = Budget(began_s=time.perf_counter(), timeout_s=_STOP_S)
    with suppress(ApiError):
        await upstream.cancel_generation(None, replace(options, budget=budget), idempotency_key=key)


async def _document(upstream: Upstream, kept: KeptResponse, options: CallOptions) -> bytes:
    # Of one that runs, what it has said until now can wait for whoever asks.
    status = OPEN.get(kept.state.state)
    return await kept_document(upstream, kept, options) if status is None else kept.reader().unfinished(status)


async def _accepted(upstream: Upstream, call: ResponsesCall, options: CallOptions) -> KeptResponse:
    """Return the response once the service runs it or has it in its line."""
    async with open_events(upstream, call, options) as events:
        first = asyncio.create_task(_first(events))
        looks = asyncio.create_task(_known(upstream, call, options))
        try:
            await asyncio.wait((first, looks), return_when=asyncio.FIRST_COMPLETED)
            started = first.result() if first.done() else None
            state = looks.result() if started is None else None
        finally:
            first.cancel()
            looks.cancel()
            await asyncio.gather(first, looks, return_exceptions=True)
            del first, looks  # they hold what they failed with, and that this frame
    if state is None:
        assert started is not None
        state = await _state_of(upstream, started, options)
    # A key may have been another request's: what is answered is what that one asked for.
    return KeptResponse(state.generation_id, state, annotated_response(state.annotation) or call)


async def _first(events: Events) -> gen.GenerationStarted:
    """Return how a generation began, which may be long ago."""
    async for event in events:
        if event.WhichOneof("event") == "started":
            return event.started
    raise ContractError("the stream ended before the generation had started")


async def _known(upstream: Upstream, call: ResponsesCall, options: CallOptions) -> gen.GetGenerationResponse:
    """Return where the generation is, once it is accepted. Endless: the call itself says when it is not."""
    key, annotation = call.request.idempotency_key, call.request.retention.annotation
    pause_s = _FIRST_LOOK_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        with suppress(ApiError):
            state = await upstream.get_generation(None, options, idempotency_key=key)
            # One with other content has the key: that will be refused.
            if _is_accepted(state) and are_of_one_request(state.annotation, annotation):
                return state


def _is_accepted(state: gen.GetGenerationResponse) -> bool:
    if state.state == gen.GENERATION_STATE_QUEUED:
        return state.HasField("ahead_count")  # before that it may still be found too long, or the line full
    return state.state in {
        gen.GENERATION_STATE_RUNNING,
        gen.GENERATION_STATE_COMPLETED,
        gen.GENERATION_STATE_CANCELLED,
    }


async def _state_of(
    upstream: Upstream, started: gen.GenerationStarted, options: CallOptions
) -> gen.GetGenerationResponse:
    """Return where a generation is that has started."""
    with suppress(ApiError):
        return await upstream.get_generation(started.generation_id, options)
    # Another replica may have been asked, which does not know it.
    return gen.GetGenerationResponse(
        generation_id=started.generation_id,
        state=gen.GENERATION_STATE_RUNNING,
        model=started.model,
        create_time=started.create_time,
    )
