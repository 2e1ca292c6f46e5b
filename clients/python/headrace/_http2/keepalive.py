"""Whether a silent peer is still there: pings while calls run, and an end when none is answered.

One timer per connection, which fires about once per interval and not per read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Keepalive", "KeepaliveTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveTimes:
    """How long silence may last before a ping, and after it, seconds; None for no pings."""

    interval_s: float | None
    timeout_s: float
    is_always_on: bool = False  # also while no call runs


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
