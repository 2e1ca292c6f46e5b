"""What a client of a storm does at a moment of its plan, whatever the wire: it waits for the moment, and acts once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from tests.support.chaos_plan import Moment, Pace, Plan
from tests.support.chaos_verdict import Seen

__all__ = ["Act", "Pauses"]

_NO_PAUSE: Final = Pace(every=1, pause_s=0, times=0)


class Act:
    """Async context manager: calls `do` at `when`, at most once, and notes the time in `seen`.

    `do` may return an awaitable, which the end of the block waits for.
    """

    def __init__(self, when: Moment | None, seen: Seen, do: Callable[[], Awaitable[None] | None]) -> None:
        self._when = when
        self._seen = seen
        self._do = do
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        if self._when is not None:
            self._timer = asyncio.get_running_loop().call_later(self._when.seconds, self.now)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._work is not None:
            await self._work

    def on_event(self, events: int, kind: str) -> None:
        """Say that an event of this kind has come, the `events`th."""
        when = self._when
        if when is not None and (when.events == events or when.kind == kind):
            self.now()

    def now(self) -> None:
        """Act, unless that was done."""
        if self._seen.left_s is None:
            self._seen.left_s = time.monotonic()
            work = self._do()
            if work is not None:
                self._work = asyncio.ensure_future(work)


class Pauses:
    """The pauses of a slow reader; no pause for any other."""

    def __init__(self, plan: Plan) -> None:
        self._pace = plan.pace or _NO_PAUSE
        self._left = self._pace.times
        self.total_s = self._pace.total_s

    async def after(self, events: int) -> None:
        """Wait, if it is time for a pause behind so many events."""
        if self._left and events % self._pace.every == 0:
            self._left -= 1
            await asyncio.sleep(self._pace.pause_s)
