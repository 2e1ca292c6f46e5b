"""Whether a silent peer is still there: pings while calls run, and an end when none is answered.

One timer per connection, which fires about once per interval and not per read.
The kernel watches what was sent: a peer that does not acknowledge it is gone
after the time that a ping may take.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Keepalive", "KeepaliveTimes", "bound_unacknowledged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveTimes:
    """How long silence may last before a ping, and after it, seconds; None for no pings."""

    interval_s: float | None
    timeout_s: float
    is_always_on: bool = False  # also while no call runs


def bound_unacknowledged(found: Any, times: KeepaliveTimes) -> None:
    """Have the kernel end a TCP connection whose data nobody acknowledges, as gRPC does; `found` is its socket or None.

    Without it a request to a machine that vanished waits for the next ping, which is minutes away.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has it
    is_tcp = found is not None and found.family in (socket.AF_INET, socket.AF_INET6)
    if is_tcp and option is not None and times.interval_s is not None:
        found.setsockopt(socket.IPPROTO_TCP, option, int(times.timeout_s * 1000))


class Keepalive:
    """Runs from `start` to `stop`. The connection writes the time at which it last read into `heard_s`."""

    __slots__ = ("_is_busy", "_loop", "_on_silence", "_ping", "_pinged_s", "_timer", "_times", "heard_s")

    def __init__(
        self,
        times: KeepaliveTimes,
        *,
        ping: Callable[[], None],
        is_busy: Callable[[], bool],
        on_silence: Callable[[], None],
    ) -> None:
        self._times = times
        self._ping = ping
        self._is_busy = is_busy
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pinged_s: float | None = None
        self.heard_s = self._loop.time()

    def start(self) -> None:
        """Begin to watch."""
        self.heard_s = self._loop.time()
        if self._times.interval_s is not None:
            self._timer = self._loop.call_later(self._times.interval_s, self._look, self._times.interval_s)

    def stop(self) -> None:
        """End the watch; nothing is called any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, interval_s: float) -> None:
        if self._pinged_s is not None and self.heard_s < self._pinged_s:
            self._timer = None
            self._on_silence()
            return
        self._pinged_s = None
        silent_s = self._loop.time() - self.heard_s
        wait_s = interval_s - silent_s
        if wait_s <= 0:
            wait_s = interval_s
            if self._times.is_always_on or self._is_busy():
                self._pinged_s = self._loop.time()
                self._ping()
                wait_s = self._times.timeout_s
        self._timer = self._loop.call_later(wait_s, self._look, interval_s)
