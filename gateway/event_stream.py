"""The response side of one stream: when the status goes out, heartbeats, and the bound on slow readers.

One timer per stream, re-armed when it fires and not when something is sent, so
that a token costs two attribute writes here. It knows bytes and clocks, and
nothing of what the events say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from starlette.types import Send

from gateway import sse
from gateway.openai.errors import ApiError

__all__ = ["EventStream", "StreamTimes"]

RawHeaders = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """The three clocks of a stream, seconds; `gateway.config` has the reasons."""

    status_hold_s: float
    heartbeat_s: float
    send_timeout_s: float


class EventStream:
    """Async context manager that sends one event stream.

    `start` sends the status line and headers, `send` bodies (it may lie below
    middleware, which a token then need not pass). Nothing is sent before
    `open`, the first `write`, or the end of `status_hold_s` unless it `waits`,
    whichever comes first. `on_stall` is called once if the client takes nothing for
    `send_timeout_s`. Leaving the block ends timer and heartbeat; it does not
    end the response: that is `close` or `fail`.
    """

    def __init__(self, start: Send, send: Send, times: StreamTimes, on_stall: Callable[[], None]) -> None:
        self.is_open = False
        self.has_ended = False  # the whole response was handed over
        self.waits = False  # the status goes out with the first event, however late that is
        self.headers: dict[str, str] = {}  # beside those of every stream; until it is open
        self._start = start
        self._send = send
        self._times = times
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._wrote_at_s = self._time()  # when the last write began
        self._is_writing = False
        self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._arm(self._times.status_hold_s)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.wait([self._heartbeat])

    async def open(self) -> None:
        """Send the status 200 and the headers, once."""
        if not self.is_open:
            self.is_open = True
            beside = [(name.encode(), value.encode()) for name, value in self.headers.items()]
            await self._begin(200, [*sse.HEADERS, *beside])

    async def write(self, frame: bytes) -> None:
        """Send whole events; waits while the connection is full."""
        if not self.is_open:
            await self.open()
        self._wrote_at_s = self._time()
        self._is_writing = True
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._is_writing = False

    async def close(self, frame: bytes = b"") -> None:
        """Send the last events and end the body; does nothing if that has begun already."""
        if self._is_ending:
            return
        self._is_ending = True
        await self.open()
        await self._end(frame)

    async def close_empty(self) -> None:
        """End with 204 what has not begun: there is nothing to read, and will not be."""
        self.is_open = self._is_ending = True
        await self._begin(204, ())
        await self._end(b"")

    async def fail(self, error: ApiError, frame: bytes) -> None:
        """End with `error`: as a response of its own if none has begun, else with `frame`, the last event."""
        document = error.document()
        if self.is_open:
            # No [DONE] behind it: a failure must not look like an end.
            await self.close(frame)
            return
        self.is_open = self._is_ending = True
        body = document.encode("ascii")
        headers = [(name.encode(), value.encode()) for name, value in error.headers().items()]
        await self._begin(
            error.http_status,
            [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers],
        )
        await self._end(body)

    async def _end(self, body: bytes) -> None:
        self._wrote_at_s = self._time()
        self._is_writing = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self._is_writing = False
        self.has_ended = True

    async def _ping(self) -> None:
        # Between the timer and here the stream may have come to its end.
        if not self._is_ending:
            await self.write(sse.PING)

    async def _begin(self, status: int, headers: RawHeaders) -> None:
        self._wrote_at_s = self._time()
        self._is_writing = True
        await self._start({"type": "http.response.start", "status": status, "headers": list(headers)})
        self._is_writing = False

    def _arm(self, delay_s: float) -> None:
        # What begins right after this, a write or the open stream's silence, has to
        # be looked at in time as well.
        soonest_s = min(delay_s, self._times.heartbeat_s, self._times.send_timeout_s)
        self._timer = self._loop.call_later(soonest_s, self._tick)

    def _tick(self) -> None:
        silent_s = self._time() - self._wrote_at_s
        if self._is_writing:
            if silent_s >= self._times.send_timeout_s:
                self._timer = None
                self._on_stall()
                return
            self._arm(self._times.send_timeout_s - silent_s)
            return
        if self.waits and not self.is_open:
            self._arm(self._times.heartbeat_s)
            return
        patience_s = self._times.heartbeat_s if self.is_open else self._times.status_hold_s
        if silent_s >= patience_s:
            if self._heartbeat is None or self._heartbeat.done():
                self._heartbeat = asyncio.create_task(self._ping())
            patience_s, silent_s = self._times.heartbeat_s, 0.0
        self._arm(patience_s - silent_s)
