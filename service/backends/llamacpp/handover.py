"""Hands items from an engine thread to the event loop: bounded, cheap, cancellable.

Knows neither llama.cpp nor what an item is for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Final

from service.backends.base import EngineItem

__all__ = ["Handover"]

# About a second of a stream. Past it the thread waits; what llama.cpp still generates
# meanwhile stays in its own queue, which max_output_tokens bounds.
MAX_WAITING_ITEMS: Final = 64
# A loop that was closed under a blocked thread wakes nobody.
_LOOK_AGAIN_S: Final = 1.0


class Handover:
    """One run's items, from one thread to one task of `loop`.

    The thread calls `put` and `end`, the task calls `next` and `cancel`.
    Per item the thread appends to a deque, and wakes the loop only if the task
    sleeps; a task that lags behind finds the next items without a wake-up.
    """

    __slots__ = ("_failure", "_is_cancelled", "_is_ended", "_items", "_limit", "_loop", "_room", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int = MAX_WAITING_ITEMS) -> None:
        self._loop = loop
        self._limit = limit
        self._items: deque[EngineItem] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._room = threading.Event()
        self._is_cancelled = False
        self._is_ended = False
        self._failure: BaseException | None = None

    @property
    def is_cancelled(self) -> bool:
        """True once nobody reads any more. Safe to ask from any thread."""
        return self._is_cancelled

    @property
    def is_full(self) -> bool:
        """True while the thread waits for the reader. Safe to ask from any thread."""
        return len(self._items) >= self._limit

    def put(self, item: EngineItem) -> bool:
        """Hand one item over (engine thread). False: stop, nobody reads.

        Blocks while `limit` items wait, until one is read or the run is cancelled.
        """
        while self.is_full and not self._is_cancelled:
            self._room.clear()
            # Looked at again after clear(), or a read in between would be missed.
            if self.is_full and not self._is_cancelled:
                self._room.wait(_LOOK_AGAIN_S)
            if self._loop.is_closed():
                self.cancel()
        if self._is_cancelled:
            return False
        self._items.append(item)
        return self._wake()

    def end(self, failure: BaseException | None = None) -> None:
        """Say that no item will follow (engine thread), and why if it failed. The first call counts."""
        if not self._is_ended:
            self._failure = failure
            self._is_ended = True
            self._wake()

    async def next(self) -> EngineItem | None:
        """Return the next item, or None at the end (event loop). Raises what the run failed with."""
        while not self._items:
            if self._is_ended and not self._items:
                if self._failure is not None:
                    raise self._failure
                return None
            waiter = self._loop.create_future()
            # Published before the last look: the thread appends first and then
            # looks for a waiter, so that one of the two sees the other.
            self._waiter = waiter
            if self._items or self._is_ended:
                self._waiter = None
                continue
            try:
                await waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if not self._room.is_set():
            self._room.set()
        return item

    def cancel(self) -> None:
        """Stop the run: the engine sees it at its next chunk. Idempotent, any thread."""
        self._is_cancelled = True
        self._room.set()

    def _wake(self) -> bool:
        waiter = self._waiter
        if waiter is None:
            return True
        try:
            self._loop.call_soon_threadsafe(_resolve, waiter)
        except RuntimeError:  # the loop is closed: its task is gone
            self.cancel()
            return False
        return True


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
