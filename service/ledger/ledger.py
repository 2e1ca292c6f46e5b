"""The usage ledger as the event loop sees it: nothing here waits for a store for longer than a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from service.core.account import Closing, Opening
from service.ledger.process import Process, this_process
from service.ledger.records import Begun, Ended
from service.ledger.store import Store
from service.ledger.writer import Item, Writer

__all__ = ["Ledger"]

logger = logging.getLogger("headrace.ledger")

# About 1 KB each; half a minute of 300 requests a second, which is how long a database may be away.
_QUEUED_RECORDS: Final = 20_000
_END_WAIT_S: Final = 1.0
# What a first token may wait, so that a crash names whatever somebody has seen running. It takes 0.1 ms in a file and
# 0.3 ms in SQLite.
_BEGIN_WAIT_S: Final = 0.25
_BEAT_S: Final = 10.0
_CLOSE_S: Final = 5.0
_LOG_EVERY_S: Final = 5.0


def _nobody(_begun: int, _ended: int) -> None:
    """Be told of a loss and do nothing."""


class Ledger:
    """Records the beginning and the end of every generation; for one event loop.

    `on_lost` is told how many beginnings and ends were lost, from any thread.
    """

    def __init__(
        self,
        store: Store,
        *,
        process: Process | None = None,
        queued_records: int = _QUEUED_RECORDS,
        end_wait_s: float = _END_WAIT_S,
        begin_wait_s: float = _BEGIN_WAIT_S,
        beat_s: float = _BEAT_S,
        on_lost: Callable[[int, int], None] = _nobody,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(
            store, process or this_process(), wake=self._wake, on_lost=on_lost, beat_s=beat_s, now=now
        )
        self._queued_records = queued_records
        self._end_wait_s = end_wait_s
        self._begin_wait_s = begin_wait_s
        # True after somebody has waited in vain, until something is written again.
        self._is_late = False
        self._is_closed = False
        self._next_log_s = 0.0

    async def start(self) -> None:
        """Open the store and name what dead processes have left. Raises StoreError."""
        await asyncio.to_thread(self._writer.start)

    def begin(self, opening: Opening) -> Coroutine[Any, Any, None]:
        """Queue the record that a generation runs, at once; what is returned waits until it is written.

        That takes a quarter of a second at most. Lost, and counted, while half of the
        queue waits for the store: there is more room for ends.
        """
        return self._put(Begun(opening), self._queued_records // 2, self._begin_wait_s)

    def end(self, opening: Opening, closing: Closing) -> Coroutine[Any, Any, None]:
        """Queue the record of its end, at once; what is returned waits until it is written.

        That takes a second at most. Neither it nor `begin` raises or waits while the
        store is known to fail; cancelling the wait takes nothing back.
        """
        return self._put(Ended(opening, closing), self._queued_records, self._end_wait_s)

    async def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Write what waits within `timeout_s`, and say what was lost."""
        self._is_closed = True
        in_time = await asyncio.to_thread(self._writer.stop, timeout_s)
        writer = self._writer
        if not in_time:
            logger.error("the usage ledger did not close in time", extra={"unwritten": writer.items.qsize()})
        if writer.lost_ended or writer.lost_begun:
            logger.error(
                "the usage ledger has lost records: the ends of %d generations, the beginnings of %d",
                writer.lost_ended,
                writer.lost_begun,
            )

    def _put(self, record: Begun | Ended, room: int, wait_s: float) -> Coroutine[Any, Any, None]:
        if self._is_closed or self._writer.items.qsize() >= room:
            self._lose(record)
            return self._settled(None, 0.0)
        is_waiting = not (self._is_late or self._writer.is_failing)
        waiter: asyncio.Future[None] = self._loop.create_future()
        # Those that do not wait are told too: it is how the ledger learns that the store is back.
        self._writer.items.put(Item(record, waiter))
        return self._settled(waiter if is_waiting else None, wait_s)

    def _lose(self, record: Begun | Ended) -> None:
        self._writer.lose([record])
        now_s = time.monotonic()
        if now_s >= self._next_log_s:
            self._next_log_s = now_s + _LOG_EVERY_S
            logger.error(
                "the usage ledger loses records: %s",
                "it is closed" if self._is_closed else "its queue is full",
                extra={"lost_ends": self._writer.lost_ended, "lost_beginnings": self._writer.lost_begun},
            )

    async def _settled(self, waiter: asyncio.Future[None] | None, wait_s: float) -> None:
        if waiter is None:
            return
        # A timer of its own: asyncio.timeout would cost several times as much.
        timer = self._loop.call_later(wait_s, self._give_up, waiter, wait_s)
        try:
            await waiter
        finally:
            timer.cancel()

    def _give_up(self, waiter: asyncio.Future[None], waited_s: float) -> None:
        if not waiter.done():
            # A store that is slow for a moment is no reason to let go of ends.
            self._is_late = self._is_late or waited_s >= self._end_wait_s
            waiter.set_result(None)

    def _wake(self, waiters: Sequence[asyncio.Future[None]]) -> None:
        # It has ended, and with it everybody who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken, waiters)

    def _woken(self, waiters: Sequence[asyncio.Future[None]]) -> None:
        self._is_late = False
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
