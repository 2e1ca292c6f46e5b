"""Serves one generation over HTTP: as a stream of events or as one document.

It ties together the request's life, the call to the service, the reader of its
events and the response. Whatever happens, the call is cancelled when the
client is gone, and a client that is there gets one clear end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractAsyncContextManager
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import sse
from gateway.event_stream import EventStream, StreamTimes
from gateway.exchange import Exchange, exchange_of
from gateway.lifetime import EndCause, Lifetime
from gateway.openai.answers import ContractError
from gateway.openai.errors import ApiError, by_reason, by_status, internal
from gateway.openai.event_ids import Position
from gateway.openai.readers import reader_of
from gateway.openai.requests import GenerationCall
from gateway.openai.usage import server_timing
from gateway.prompts import Events, open_events
from gateway.upstream import CallOptions, Upstream

__all__ = ["GenerationResponse", "Generations", "draining", "error_response"]

logger = logging.getLogger(__name__)

# For the last event of a stream that is cut by a shutdown: a reader that does
# not take it in this time has stopped reading.
_LAST_WORD_S: Final = 2.0
# Another replica may take the request at once; the one that follows this one needs a moment.
_RETRY_AFTER_S: Final = 1.0


def draining() -> ApiError:
    """Return what is said while the gateway shuts down."""
    outcome = by_reason["DRAINING"]
    return ApiError(
        outcome.http_status,
        outcome.type,
        "The server is shutting down. Please try again.",
        code=outcome.code,
        should_retry=outcome.should_retry,
        retry_after_s=_RETRY_AFTER_S,
        reason="DRAINING",
    )


def error_response(error: ApiError) -> Response:
    """Return the response that tells of `error`."""
    return Response(error.document(), error.http_status, error.headers(), media_type="application/json")


class Generations:
    """What generations share: the service, the clocks, and the set of those that run."""

    def __init__(self, upstream: Upstream, times: StreamTimes) -> None:
        self.upstream = upstream
        self.times = times
        self.running: set[Lifetime] = set()

    def end_all(self) -> None:
        """End every running generation, with an error that says that the server is shutting down."""
        for lifetime in tuple(self.running):
            lifetime.end(EndCause.DRAINED)


class GenerationResponse(Response):
    """The response to one generation request; runs the generation while it is sent.

    `attach_to` is the id of a retained generation to show in place of a new one;
    of a stream, what comes behind `after` is sent. Of one that `is_over` the status
    waits for what there is to send, so that a failure has its own. `tells_end`: where
    nothing comes behind `after`, and nothing failed, the answer is 204.
    """

    def __init__(
        self,
        generations: Generations,
        call: GenerationCall,
        options: CallOptions,
        *,
        attach_to: str | None = None,
        after: Position | None = None,
        is_over: bool = False,
        tells_end: bool = False,
    ) -> None:
        # The base class would build headers and a body, which come later here.
        self.background = None
        self._attach_to = attach_to
        self._after = after
        self._is_over = is_over
        self._tells_end = tells_end and after is not None
        self._generations = generations
        self._call = call
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of the base class
        """Leave the generation to what stands in front of the framework, which runs it in the same task."""
        exchange_of(scope).work = self._run

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the generation in the calling task; cancelling it cancels the call to the service."""
        exchange = exchange_of(scope)
        exchange.call = self._call
        lifetime = Lifetime(receive, self._generations.running)
        events = open_events(self._generations.upstream, self._call, self._options, self._attach_to)
        if self._call.stream:
            await self._stream(exchange, lifetime, events, send)
        else:
            response = await self._answer(exchange, lifetime, events)
            if response is not None:
                await response(scope, receive, send)

    async def _stream(
        self,
        exchange: Exchange,
        lifetime: Lifetime,
        generation: AbstractAsyncContextManager[Events],
        send: Send,
    ) -> None:
        def stall() -> None:
            lifetime.end(EndCause.STALLED)

        out = EventStream(send, exchange.send, self._generations.times, stall)
        out.waits = self._is_over
        async with lifetime, out:
            try:
                last = await self._pump(exchange, generation, out)
            except Exception as problem:  # the client gets one end, whatever it was
                lifetime.finish()
                if self._tells_end and self._is_over and not out.is_open and _is_cancel(problem):
                    await out.close_empty()
                else:
                    await _fail(out, exchange, problem)
            else:
                lifetime.finish()
                if self._tells_end and not out.is_open and not last:
                    await out.close_empty()
                else:
                    await out.close(last)
        if lifetime.cause is None:
            return
        exchange.outcome = lifetime.cause.value
        if lifetime.cause is EndCause.DRAINED:
            exchange.error = draining()
            try:
                async with asyncio.timeout(_LAST_WORD_S):
                    await out.fail(exchange.error, _last_event(exchange, exchange.error))
            except TimeoutError:
                pass
        if lifetime.cause is not EndCause.DISCONNECTED and not out.has_ended:
            await exchange.cut()

    async def _pump(
        self, exchange: Exchange, generation: AbstractAsyncContextManager[Events], out: EventStream
    ) -> bytes:
        """Send everything but the last events, which wait for the call's status, and return those."""
        reader = exchange.reader = reader_of(self._call, int(time.time()))
        last, after = b"", self._after
        async with generation as events:
            async for event in events:
                frame = reader.feed(event)
                if not out.is_open:
                    out.headers = self._options.told()
                if after is not None:
                    frame = after.behind(frame, event.sequence)
                    if event.sequence <= after.sequence and not frame:
                        continue  # a failure that follows still has a status of its own
                if reader.is_complete:
                    last = frame
                elif frame:
                    if reader.has_output:
                        exchange.on_output()
                    await out.write(frame)
                elif reader.has_started and not self._is_over:
                    await out.open()
        reader.check_complete()
        return last

    async def _answer(
        self, exchange: Exchange, lifetime: Lifetime, generation: AbstractAsyncContextManager[Events]
    ) -> Response | None:
        """Return the whole answer, or what went wrong; None if nobody is there to be told."""
        reader = exchange.reader = reader_of(self._call, int(time.time()))
        body = b""
        async with lifetime:
            try:
                async with generation as events:
                    async for event in events:
                        body = reader.feed(event) or body
                        if exchange.first_output_s is None and reader.has_output:
                            exchange.first_output_s = exchange.elapsed_s()
                reader.check_complete()
            except Exception as problem:  # the client gets one end, whatever it was
                lifetime.finish()
                return _failure(exchange, _told(exchange, problem))
            lifetime.finish()
        if lifetime.cause is not None:
            exchange.outcome = lifetime.cause.value
            if lifetime.cause is EndCause.DISCONNECTED:
                return None
            exchange.error = draining()
            return _failure(exchange, exchange.error)
        headers = {"openai-processing-ms": str(round(exchange.elapsed_s() * 1000)), **self._options.told()}
        if reader.timing is not None:
            headers["server-timing"] = server_timing(reader.timing)
        return Response(body, media_type="application/json", headers=headers)


def _failure(exchange: Exchange, error: ApiError) -> Response:
    """Return what is said instead of a whole answer. Of one that had begun to come, a repetition costs it all again."""
    if exchange.reader is not None and exchange.reader.has_output:
        error.should_retry = False
    return error_response(error)


async def _fail(out: EventStream, exchange: Exchange, problem: Exception) -> None:
    """End a stream with what its client is told about `problem`."""
    # Not where it was caught: a frame that an error has passed must not hold it by a name of its own.
    error = _told(exchange, problem)
    await out.fail(error, _last_event(exchange, error))


def _is_cancel(problem: Exception) -> bool:
    """Return whether `problem` is how a generation ends that was stopped."""
    return isinstance(problem, ApiError) and problem.http_status == by_status["CANCELLED"].http_status


def _last_event(exchange: Exchange, error: ApiError) -> bytes:
    return exchange.reader.failure(error) if exchange.reader is not None else sse.event(error.document())


def _told(exchange: Exchange, problem: Exception) -> ApiError:
    """Return what the client is told about `problem`; what it must not be told goes to the log."""
    if isinstance(problem, ApiError):
        error = problem
    elif isinstance(problem, ContractError):
        logger.error("the service broke the contract: %s", problem, extra={"request_id": exchange.request_id})
        error = internal()
    else:
        logger.error("a generation failed", exc_info=problem, extra={"request_id": exchange.request_id})
        error = internal()
    exchange.fail(error)
    return error
