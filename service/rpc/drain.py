"""Out of service, for good or for a while: no new work, what runs may finish, the rest is told.

Knows neither gRPC nor health: whoever answers for those asks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from service.core.errors import Reason, ServiceError
from service.generation.watch import Cause

__all__ = ["RETRY_AFTER_S", "Drain", "Interruptible"]

# A client that retries at once reaches another replica through its balancer.
RETRY_AFTER_S: Final = 1.0
# For work that was interrupted, to tell its reader; of one that reads nothing it is all.
_LAST_WORDS_S: Final = 2.0
_LAST_WORDS_AT_ONCE_S: Final = 0.3
# Every generation has ended by its deadline long before.
_LONGEST_GRACE_S: Final = 86_400.0


class Interruptible(Protocol):
    """Work that can be ended early."""

    def interrupt(self, cause: Cause) -> None:
        """End it for `cause`; may be called again, and behind its end."""
        ...


class Drain:
    """Knows everything that runs, and whether new work is taken.

    `is_draining`: new work is refused, by an operator who may take that back or at
    the end of the process. `is_shutting_down`: the process ends; until it drains, it
    still serves.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self.is_shutting_down = False
        self._running: set[Interruptible] = set()
        self._short_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurried = asyncio.Event()
        # What `finish` waits for: idle, or hurried.
        self._settled = asyncio.Event()
        self._settled.set()
        self._grace: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        """Generations being served, waiting ones included."""
        return len(self._running)

    @property
    def is_leaving(self) -> bool:
        """True while nobody should come here, whether new work is still taken or not."""
        return self.is_draining or self.is_shutting_down

    def check(self) -> None:
        """Raise DRAINING if new work is refused."""
        if self.is_draining:
            raise ServiceError(
                Reason.DRAINING,
                "The server takes no new work now; retry, on another one if there is one.",
                retry_after_s=RETRY_AFTER_S,
            )

    @contextmanager
    def running_under(self, work: Interruptible) -> Iterator[None]:
        """Count the block as running work that may be interrupted."""
        self._running.add(work)
        self._note_busy()
        try:
            yield
        finally:
            self._running.discard(work)
            self._note_idle()

    @contextmanager
    def short_call(self) -> Iterator[None]:
        """Count the block as a call that is waited for and not interrupted, since its end is near."""
        self._short_calls += 1
        self._note_busy()
        try:
            yield
        finally:
            self._short_calls -= 1
            self._note_idle()

    # For a while.

    def begin(self, grace_s: float | None) -> None:
        """Refuse new work from now on; interrupt what still runs after `grace_s`, None for never.

        Called again it sets another grace, which begins anew.
        """
        self.is_draining = True
        self._end_grace()
        if grace_s is not None:
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(min(grace_s, _LONGEST_GRACE_S), self._interrupt_all)

    def resume(self) -> bool:
        """Take new work again; False, and nothing done, once the process is shutting down."""
        if self.is_shutting_down:
            return False
        self._end_grace()
        self.is_draining = False
        return True

    # For good.

    def leave(self) -> None:
        """Note that the process is to end: nobody should come any more, who does is still served."""
        self.is_shutting_down = True

    async def lame_duck(self, delay_s: float) -> None:
        """Wait for `delay_s`; not if new work is refused already, and no longer than until `hurry`."""
        if not self.is_draining:
            await _within(self._hurried, delay_s)

    async def finish(self, grace_s: float) -> None:
        """Refuse new work, wait up to `grace_s` for what runs, then end the rest with DRAINING."""
        self.is_shutting_down = self.is_draining = True
        await _within(self._settled, grace_s)
        self._interrupt_all()
        await _within(self._idle, _LAST_WORDS_AT_ONCE_S if self._hurried.is_set() else _LAST_WORDS_S)
        self._end_grace()

    def hurry(self) -> None:
        """End everything now: what waits in here need not wait longer. For good."""
        self.is_shutting_down = self.is_draining = True
        self._hurried.set()
        self._settled.set()
        self._interrupt_all()

    @property
    def is_hurried(self) -> bool:
        """True once `hurry` was called."""
        return self._hurried.is_set()

    def _note_busy(self) -> None:
        self._idle.clear()
        if not self._hurried.is_set():
            self._settled.clear()

    def _note_idle(self) -> None:
        if not self._running and not self._short_calls:
            self._idle.set()
            self._settled.set()

    def _interrupt_all(self) -> None:
        for work in tuple(self._running):
            work.interrupt(Cause.DRAIN)

    def _end_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None


async def _within(event: asyncio.Event, limit_s: float) -> None:
    """Wait for the event, no longer than `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass
