"""One generation as the caller holds it: a context manager and an iterator of events.

It owns the life of one Generate call, the order of its events, and what is
kept of them. It must not know grpc: events come from an `EventReader`.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, NoReturn

import grpc

from headrace._answer import Answer, Collector
from headrace._reader import EventReader
from headrace._resume import Reopen, Resumption, is_lost
from headrace._telemetry import STREAM_MESSAGES, TIME_TO_FIRST_DELTA_S, CallSpan
from headrace.errors import Cancelled, HeadraceError, ProtocolError
from headrace.v1 import generation_pb2 as pb
from headrace.v1 import usage_pb2

__all__ = ["GenerationStream"]

REASON_PREFIX: Final = "FINISH_REASON_"
REQUEST_ID_HEADER: Final = "x-request-id"
GENERATION_ID_HEADER: Final = "x-generation-id"
BEFORE_OUTPUT: Final = frozenset({"queued", "started"})
STATUS_WAIT_S: Final = 1.0  # the status follows `completed` at once unless the network fails


class GenerationStream:
    """A generation in progress. Entering starts the call, leaving cancels what is left of it.

    Iterating yields every event in order and raises HeadraceError if the call
    fails, or if the stream has a gap or no end. One reader at a time. A read
    that is cancelled cancels the call, and the CancelledError passes.

    Filled while reading: `trailers` at the end of the call, also of one that failed
    (`server-timing`: where the time went, as in HTTP), `generation_id`, `request_id` and `headers` with the first
    event, `queued` with each of its kind, `started`, `completed`, `usage`, `timing`
    (None until they come), `choices_finished` and `finish_reasons` by choice
    index.

    A generation that somebody stops with `AsyncClient.cancel_generation` ends
    like any other: text so far, finish reason CANCELLED, usage. One that is
    stopped from here, by leaving or by `cancel`, has no end and no usage.

    One that is retained (it has an idempotency key, or asks for retention) is
    joined again when the connection is lost, as often as the timeout allows, and
    goes on behind the last event: `resumed` counts how often. Leaving such a one
    ends this call and not the generation, which the server stops when it has had
    no reader for a while, unless it was asked to go on;
    `AsyncClient.cancel_generation` stops it at once.
    """

    __slots__ = (
        "_after",
        "_entered_s",
        "_is_cancelled",
        "_is_left",
        "_is_over",
        "_loop",
        "_open",
        "_reader",
        "_resumption",
        "_sequence",
        "_span",
        "choices_finished",
        "completed",
        "generation_id",
        "headers",
        "queued",
        "request_id",
        "resumed",
        "started",
        "time_to_first_delta_s",
        "trailers",
    )

    def __init__(
        self,
        open_call: Callable[[], tuple[EventReader, CallSpan]],
        *,
        reopen: Reopen | None = None,
        timeout_s: float = 0.0,
        after: int = 0,
    ) -> None:
        self._open = open_call
        self._resumption = None if reopen is None else Resumption(reopen, timeout_s)
        self._after = after  # the events before are somebody else's
        self._reader: EventReader | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._span: CallSpan | None = None
        self._is_over = False  # the call has ended, one way or the other
        self._is_left = False  # the block was left before that
        self._is_cancelled = False  # by cancel()
        self._sequence = after
        self.resumed = 0  # times that the connection was lost and the generation joined again
        self._entered_s = 0.0
        self.headers: Mapping[str, str] = {}  # the initial metadata, where x-ratelimit-... tell how limits stand
        self.trailers: Mapping[str, str] = {}  # the trailing metadata
        self.generation_id: str | None = None  # for AsyncClient.get_generation and cancel_generation
        self.request_id: str | None = None  # as the server's log knows the request
        self.queued: pb.GenerationQueued | None = None  # the last one
        self.started: pb.GenerationStarted | None = None
        self.completed: pb.GenerationCompleted | None = None
        self.choices_finished: dict[int, pb.ChoiceFinished] = {}
        self.time_to_first_delta_s: float | None = None  # from entering, on the monotonic clock

    async def __aenter__(self) -> GenerationStream:
        if self._reader is not None:
            raise RuntimeError("a generation can be entered once; call generate() again for another")
        self._entered_s = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self._reader, self._span = self._open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._reader is None or self._is_over:
            return
        try:
            if self.completed is not None and exc_type is None:
                await self._await_status(self._reader)
            await self._reader.close()
        finally:
            self._is_left = True
            self._finish(None)

    def __del__(self) -> None:
        # Entered and never left. The finalizer may run in any thread, so the loop is asked to cancel.
        reader, loop = self._reader, self._loop
        if reader is None or loop is None or self._is_over:
            return
        self._is_left = True
        self._finish(None)
        with suppress(RuntimeError):  # the loop is closed, and the call with it
            loop.call_soon_threadsafe(reader.cancel)
        warnings.warn(f"generation {self.generation_id} was dropped within its block", ResourceWarning, 1, self)

    def cancel(self) -> None:
        """Stop the call at once, also while another task reads it.

        A read that waits, and every later one, raises `errors.Cancelled`: what
        came until then is not the whole. Nothing more comes, neither usage nor a
        finish reason; `AsyncClient.cancel_generation` is for who wants those.
        Does nothing after the end. Raises RuntimeError before the block.
        """
        if self._reader is None:
            raise RuntimeError("this generation has not begun; enter it before it is cancelled")
        if not self._is_over:
            self._is_cancelled = True
            self._reader.cancel()

    def __aiter__(self) -> AsyncIterator[pb.GenerateResponse]:
        return self

    async def __anext__(self) -> pb.GenerateResponse:
        # Runs once per token: no more here than order, and the time of the first delta.
        reader = self._reader
        if reader is None or self._is_over or self._is_left:
            raise self._end_of_iteration()
        while True:
            try:
                event = await reader.read()
            except HeadraceError as error:
                reader = await self._resume(error, reader)
                continue
            if event is None:
                # Behind the last event there is nothing more.
                if self.completed is None and not 0 < self._after == self._sequence:
                    await self._reject(reader, "the stream ended without `completed`, so output may be missing")
                self._finish(None)
                raise StopAsyncIteration
            sequence = self._sequence + 1
            if event.sequence != sequence:
                await self._reject(reader, f"event {event.sequence} came in place of event {sequence}")
            self._sequence = sequence
            if self.resumed:
                self._on_progress()
            if event.HasField("delta"):
                if self.time_to_first_delta_s is None:
                    await self._on_first_delta(event.delta, reader)
                return event
            if await self._keep(event, reader):
                return event

    async def _resume(self, lost: HeadraceError, reader: EventReader) -> EventReader:
        """Return a new call that goes on where this one was lost, if that may be; else raise what it was lost with."""
        try:
            may_resume = not self._is_cancelled and is_lost(lost)
            if self._resumption is None or not may_resume:
                raise lost
            await reader.close()
            reader = await self._resumption.again(lost, self.generation_id, self._sequence)
            if self._is_cancelled:  # meanwhile
                await reader.close()
                raise Cancelled("the call was cancelled", status=grpc.StatusCode.CANCELLED)
        except HeadraceError as error:
            self._finish(error)
            raise
        finally:
            del lost  # its traceback has this frame
        self.resumed += 1
        self._reader = reader
        return reader

    def _on_progress(self) -> None:
        assert self._resumption is not None
        self._resumption.progressed()

    @property
    def usage(self) -> usage_pb2.Usage | None:
        """Token counts, once the generation completed; unset counts are unknown."""
        return self.completed.usage if self.completed is not None else None

    @property
    def timing(self) -> usage_pb2.Timing | None:
        """The server's own timing, once the generation completed."""
        return self.completed.timing if self.completed is not None else None

    @property
    def finish_reasons(self) -> dict[int, str]:
        """Why each choice ended, so far: {0: "STOP"}; a number in text if this client does not know the name."""
        return {index: _reason_name(choice.reason) for index, choice in self.choices_finished.items()}

    async def deltas(self) -> AsyncIterator[str]:
        """Yield the pieces of text of choice 0 as they come."""
        async for event in self:
            if event.HasField("delta") and event.delta.index == 0 and event.delta.text:
                yield event.delta.text

    async def text(self) -> str:
        """Read what is left of the stream and return the text of choice 0 in it.

        Also of a generation that ended early: `finish_reasons` says TIME_LIMIT,
        CANCELLED, LENGTH. Raises HeadraceError if it failed.
        """
        return (await self.texts()).get(0, "")

    async def texts(self) -> dict[int, str]:
        """Read what is left of the stream and return the text in it by choice index."""
        pieces: dict[int, list[str]] = {}
        async for event in self:
            if event.HasField("delta"):
                pieces.setdefault(event.delta.index, []).append(event.delta.text)
        return {index: "".join(texts) for index, texts in sorted(pieces.items())}

    async def collect(self) -> Answer:
        """Read the whole generation, from its first event on, and return it. Raises HeadraceError if it failed."""
        collector = Collector()
        async for event in self:
            if event.HasField("delta"):
                collector.add(event.delta)
        return Answer(
            generation_id=self.generation_id,
            request_id=self.request_id,
            model="" if self.started is None else self.started.model,
            choices=collector.choices(self.choices_finished, self.finish_reasons),
            usage=self.usage,
            timing=self.timing,
        )

    async def _keep(self, event: pb.GenerateResponse, reader: EventReader) -> bool:
        """Keep what the caller may ask for later; return False for an event this client does not know."""
        kind = event.WhichOneof("event")
        await self._take_headers(reader)
        if kind is not None and not self._after and (kind in BEFORE_OUTPUT) is (self.started is not None):
            await self._reject(reader, f"`{kind}` came {'before' if self.started is None else 'after'} `started`")
        if kind == "queued":
            self.queued = event.queued
            self.generation_id = event.queued.generation_id or self.generation_id
        elif kind == "started":
            self.started = event.started
            self.generation_id = event.started.generation_id or self.generation_id
        elif kind == "choice_finished":
            self.choices_finished[event.choice_finished.index] = event.choice_finished
        elif kind == "completed":
            self.completed = event.completed
        return kind is not None

    async def _take_headers(self, reader: EventReader) -> None:
        """Keep the initial metadata, once: it comes with the first event."""
        if not self.headers:
            self.headers = await reader.headers()
            self.request_id = self.headers.get(REQUEST_ID_HEADER)
            self.generation_id = self.headers.get(GENERATION_ID_HEADER) or self.generation_id

    async def _on_first_delta(self, delta: pb.ChoiceDelta, reader: EventReader) -> None:
        await self._take_headers(reader)  # of a generation that was attached to, a delta may be the first
        if self.started is None and not self._after:
            await self._reject(reader, "`delta` came before `started`")
        if delta.text or delta.reasoning_text or delta.HasField("tool_call") or delta.token_ids:
            self.time_to_first_delta_s = time.perf_counter() - self._entered_s

    async def _await_status(self, reader: EventReader) -> None:
        """Take the status behind `completed`, so that a caller who stops there does not look like one who cancels."""
        try:
            async with asyncio.timeout(STATUS_WAIT_S):
                if await reader.read() is None:
                    self._finish(None)
        except TimeoutError:
            pass
        except HeadraceError as error:
            self._finish(error)

    async def _reject(self, reader: EventReader, message: str) -> NoReturn:
        error = ProtocolError(message, status=grpc.StatusCode.INTERNAL)
        await reader.close()
        self._finish(error)
        try:
            raise error
        finally:
            del error  # its traceback has this frame

    def _finish(self, error: HeadraceError | None) -> None:
        """Note the end, and end the span; only the first call counts."""
        if self._is_over or self._span is None:
            return
        self._is_over = True
        if self._reader is not None:
            self.trailers = self._reader.trailers
        span = self._span
        span.set(STREAM_MESSAGES, self._sequence)
        if self.time_to_first_delta_s is not None:
            span.set(TIME_TO_FIRST_DELTA_S, self.time_to_first_delta_s)
        if error is not None:
            error.events_received = self._sequence
        if self._is_left or (self._is_cancelled and isinstance(error, Cancelled)):
            span.end_cancelled()
        elif error is not None:
            span.end_error(error)
        else:
            span.end_ok()

    def _end_of_iteration(self) -> Exception:
        if self._reader is None:
            return RuntimeError("a generation is read inside its block: async with client.generate(...) as stream")
        if not self._is_left:
            return StopAsyncIteration()
        return RuntimeError("this generation was left; nothing more can be read from it")


def _reason_name(reason: pb.FinishReason) -> str:
    try:
        return pb.FinishReason.Name(reason).removeprefix(REASON_PREFIX)
    except ValueError:  # of a newer server
        return str(reason)
