"""From a generation into its log: what lies in between, so that retention costs a reader no turn of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.core.events import Event
from service.generation.limits import Limits
from service.generation.outbox import Outbox
from service.retention.log import EventLog

__all__ = ["Inlet"]


class Inlet(Outbox):
    """Takes the place of the outbox of a generation that is retained.

    Events are written into the log when a reader comes for them: one that keeps up
    gets each of them, and one that lags gets joined deltas, as from any outbox, which
    is most of the cost of a token. Where nobody reads they are written at once, and
    what would hold up the engine is written whoever reads. `write` encodes an event
    and appends it.
    """

    __slots__ = ("_is_read", "_log", "_loop", "_over", "_write")

    def __init__(
        self, limits: Limits, log: EventLog, write: Callable[[Event], None], is_read: Callable[[], bool]
    ) -> None:
        super().__init__(limits)
        self.lag_s = None  # its readers have a log, and each its own pace
        self._log = log
        self._write = write
        self._is_read = is_read
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        log.source = self.pull

    def put(self, event: Event) -> None:
        """Add an event behind those that wait, and tell whoever waits for it."""
        is_first = not self._waiting
        super().put(event)
        if self._log.is_awaited:
            self._log.wake()
        elif self.is_full:
            self.pull()
        elif is_first and not self._is_read():
            # Not at once: the generation gives way to others only while something waits.
            self._loop.call_soon(self.pull)

    def pull(self) -> None:
        """Write what waits into the log. A failure is that of `ended`."""
        waiting = self._waiting
        self._bytes = 0
        try:
            while waiting:
                event = waiting.popleft()
                self.taken += 1
                self._write(event)
        except Exception as error:
            if not self._over.done():
                self._over.set_exception(error)

    def close(self, error: BaseException | None = None, *, drops: bool = False) -> None:
        """Say that nothing follows; what waits goes into the log, unless it `drops`."""
        super().close(error, drops=drops)
        self.pull()
        if not self._over.done():
            self._over.set_result(None)

    async def ended(self) -> None:
        """Wait until the generation has ended and all of it is in the log. Raises what it failed with."""
        try:
            await self._over
        finally:
            self._log.source = None
        if self._error is not None:
            raise self._error
