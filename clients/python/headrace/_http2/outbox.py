"""What one connection still has to send of its requests, and the windows that bound it.

It owns flow control towards the peer (RFC 9113, section 5.2). Whatever fits
goes out in the order in which the calls began. It writes through a function and
knows no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace._http2 import frames
from headrace._http2.frames import ErrorCode, Flag, FrameError, FrameType

__all__ = ["Outbox"]


class _Body:
    __slots__ = ("data", "sent", "window")

    def __init__(self, data: bytes, window: int) -> None:
        self.data = memoryview(data)
        self.sent = 0
        self.window = window


class Outbox:
    """The unsent bodies of one connection, by stream. Bounded by the requests themselves."""

    __slots__ = ("_bodies", "_initial_window", "_window", "_write", "is_paused", "max_frame_bytes")

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._bodies: dict[int, _Body] = {}
        self._window: int = frames.WINDOW_BYTES
        self._initial_window: int = frames.WINDOW_BYTES
        self.max_frame_bytes: int = frames.MAX_FRAME_BYTES
        self.is_paused = False  # the socket takes no more for now

    def send(self, stream_id: int, head: bytes, body: bytes) -> None:
        """Send the headers of a stream, and its body as far as the windows let it; the rest follows by itself."""
        fits = min(self._window, self._initial_window, self.max_frame_bytes)
        if len(body) <= fits and not self._bodies and not self.is_paused:
            self._window -= len(body)
            self._write(head + frames.frame(FrameType.DATA, Flag.END_STREAM, stream_id, body))
            return
        self._write(head)
        self._bodies[stream_id] = _Body(body, self._initial_window)
        self.flush()

    def is_sending(self, stream_id: int) -> bool:
        """Whether a part of the stream's body is unsent."""
        return stream_id in self._bodies

    def drop(self, stream_id: int) -> None:
        """Forget what is unsent of a stream that ended."""
        self._bodies.pop(stream_id, None)

    def widen(self, stream_id: int, increment: int) -> bool:
        """Add to the window of a stream (0: the connection); False if that stream's window leaves its bounds."""
        if not stream_id:
            self._window += increment
            if self._window > frames.MAX_WINDOW_BYTES:
                raise FrameError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window left its bounds")
        elif (body := self._bodies.get(stream_id)) is not None:
            body.window += increment
            if body.window > frames.MAX_WINDOW_BYTES:
                return False
        self.flush()
        return True

    def set_initial_window(self, window: int) -> None:
        """Take the peer's setting, which also moves the windows of open streams (it can make them negative)."""
        change, self._initial_window = window - self._initial_window, window
        for body in self._bodies.values():
            body.window += change
            if body.window > frames.MAX_WINDOW_BYTES:
                raise FrameError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window left its bounds")
        self.flush()

    def flush(self) -> None:
        """Send what fits."""
        for stream_id in list(self._bodies):
            if self.is_paused or self._window <= 0:
                return
            self._flush(stream_id, self._bodies[stream_id])

    def _flush(self, stream_id: int, body: _Body) -> None:
        total: Final = len(body.data)
        # An empty body still has its END_STREAM to send, which needs no window.
        while not self.is_paused:
            size = min(total - body.sent, self._window, body.window, self.max_frame_bytes)
            if size <= 0 and body.sent < total:
                return
            payload = bytes(body.data[body.sent : body.sent + size])
            body.sent += size
            body.window -= size
            self._window -= size
            is_last = body.sent == total
            self._write(frames.frame(FrameType.DATA, Flag.END_STREAM if is_last else 0, stream_id, payload))
            if is_last:
                del self._bodies[stream_id]
                return
