"""A bounded number of running generations and a bounded waiting line, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.core.errors import Reason, ServiceError

__all__ = ["Slots"]

# What a refused caller is told to wait; the next slot is not foreseeable here.
RETRY_AFTER_S = 1.0


class Slots:
    """The slots of one model.

    A request may need several (one per choice); it waits until it has them
    all, and a smaller one behind it does not overtake, so that none starves.
    """

    def __init__(self, *, running_limit: int, waiting_limit: int) -> None:
        self._running_limit = running_limit
        self._waiting_limit = waiting_limit
        self._running = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def running(self) -> int:
        """Slots in use."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests in the waiting line."""
        return len(self._waiting)

    @property
    def running_limit(self) -> int:
        """Slots in all."""
        return self._running_limit

    @asynccontextmanager
    async def take(self, count: int = 1) -> AsyncIterator[None]:
        """Hold `count` slots for the length of the block.

        Waits in line if they are not free. Raises QUEUE_FULL at once if the
        line is full. Cancelling leaves the line and frees what was granted.
        """
        await self._acquire(count)
        try:
            yield
        finally:
            self._running -= count
            self._grant()

    async def _acquire(self, count: int) -> None:
        if count > self._running_limit:
            raise ValueError(f"{count} slots asked for, {self._running_limit} exist")
        if not self._waiting and self._running + count <= self._running_limit:
            self._running += count
            return
        if len(self._waiting) >= self._waiting_limit:
            raise ServiceError(
                Reason.QUEUE_FULL,
                "The model is busy and its waiting line is full; retry later.",
                metadata={"queueLimit": str(self._waiting_limit)},
                retry_after_s=RETRY_AFTER_S,
            )
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (count, granted)
        self._waiting.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                if entry in self._waiting:
                    self._waiting.remove(entry)
            else:
                self._running -= count  # granted in the same turn as the cancel
            self._grant()
            raise

    def _grant(self) -> None:
        while self._waiting and self._running + self._waiting[0][0] <= self._running_limit:
            count, granted = self._waiting.popleft()
            if granted.cancelled():  # its task has not run since
                continue
            self._running += count
            granted.set_result(None)
