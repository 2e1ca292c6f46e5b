"""How bytes leave a connection: at once, with little waiting on the way, and an end if the client takes none."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

__all__ = ["SendWatch", "set_up_sending"]

# What may wait in the loop for a client that does not take it: some events. Above it the writer of a stream waits, and
# what comes then waits where it takes less memory: each write that the loop keeps costs it a kilobyte of its own.
_MAX_UNSENT_BYTES: Final = 1024
# The same in the kernel, whose own bound is megabytes; what is on its way does not count.
_MAX_NOT_SENT_BYTES: Final = 16 * 1024
# Of a silent peer, seconds: as often as the service asks its own callers.
_PROBES: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 2}


def set_up_sending(transport: asyncio.Transport, timeout_s: float) -> None:
    """Let no event wait for an acknowledgement, and little for a client that does not read.

    A client that vanished without a word is noticed after twice `timeout_s` where it owes
    an acknowledgement, and after about a minute where nothing is sent. A client that is
    there and takes nothing is noticed earlier, by whoever writes.
    """
    transport.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Else an event waits 40 ms for the acknowledgement of the one before. asyncio does it for own listeners.
    options = {"TCP_NODELAY": 1, "TCP_NOTSENT_LOWAT": _MAX_NOT_SENT_BYTES, "TCP_USER_TIMEOUT": round(timeout_s * 2000)}
    for name, value in {**options, **_PROBES}.items():
        if (option := getattr(socket, name, None)) is not None:  # Linux has them all
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class SendWatch:
    """Watches a client while nothing more is written that would notice that it takes nothing.

    Cuts the connection if of what is unsent nothing was taken for `timeout_s`.
    """

    __slots__ = ("_loop", "_timeout_s", "_timer", "_transport", "_unsent_bytes")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._transport = transport
        self._loop = loop
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0

    def start(self) -> None:
        """Watch from now on, if anything is unsent."""
        self.stop()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        if self._unsent_bytes:
            self._timer = self._loop.call_later(self._timeout_s, self._look)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() >= self._unsent_bytes:
            self._transport.abort()
        else:
            self.start()
