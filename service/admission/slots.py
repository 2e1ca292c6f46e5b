"""A bounded number of running generations and a bounded waiting line: interactive before batch, else as they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.core.errors import Reason, ServiceError

__all__ = ["Slots"]

# What a refused caller is told to wait; the next slot is not foreseeable here.
RETRY_AFTER_S = 1.0


_Entry = tuple[int, asyncio.Future[None]]


class Slots:
    """The slots of one model.

    A request may need several (one per choice); it waits until it has them
    all, and a smaller one behind it does not overtake, so that none starves
    within its class. Batch requests have a line of their own, of which none gets
    a slot while an interactive one waits; the waiting limit holds for both.
    """

    def __init__(self, *, running_limit: int, waiting_limit: int) -> None:
        self._running_limit = running_limit
        self._waiting_limit = waiting_limit
        self._running = 0
        self._interactive: deque[_Entry] = deque()
        self._batch: deque[_Entry] = deque()

    @property
    def running(self) -> int:
        """Slots in use."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests in the waiting line, of both classes."""
        return len(self._interactive) + len(self._batch)

    @property
    def running_limit(self) -> int:
        """Slots in all."""
        return self._running_limit

    @asynccontextmanager
    async def take(self, count: int = 1, *, batch: bool = False) -> AsyncIterator[None]:
        """Hold `count` slots for the length of the block.

        Waits in line if they are not free. Raises QUEUE_FULL at once if the
        line is full. Cancelling leaves the line and frees what was granted.
        """
        await self._acquire(count, batch=batch)
        try:
            yield
        finally:
            self._running -= count
            self._grant()

    async def _acquire(self, count: int, *, batch: bool) -> None:
        if count > self._running_limit:
            raise ValueError(f"{count} slots asked for, {self._running_limit} exist")
        # An interactive request passes the batch line, and stands behind its own.
        is_first = not self._interactive and not (batch and self._batch)
        if is_first and self._running + count <= self._running_limit:
            self._running += count
            return
        if self.waiting >= self._waiting_limit:
            raise ServiceError(
                Reason.QUEUE_FULL,
                "The model is busy and its waiting line is full; retry later.",
                metadata={"queueLimit": str(self._waiting_limit)},
                retry_after_s=RETRY_AFTER_S,
            )
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line, entry = self._batch if batch else self._interactive, (count, granted)
        line.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                if entry in line:
                    line.remove(entry)
            else:
                self._running -= count  # granted in the same turn as the cancel
            self._grant()
            raise

    def _grant(self) -> None:
        while line := self._interactive or self._batch:
            count, granted = line[0]
            if granted.cancelled():  # its task has not run since
                line.popleft()
                continue
            if self._running + count > self._running_limit:
                return
            line.popleft()
            self._running += count
            granted.set_result(None)
