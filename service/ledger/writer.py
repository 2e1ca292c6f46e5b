"""The thread that writes: takes all that waits, writes it at once, and tells those who wait for it.

It owns what happens while a store fails: records wait in memory and are written when it works again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from service.ledger.process import Process
from service.ledger.records import Begun, Record
from service.ledger.store import Store, StoreError

__all__ = ["Item", "Writer"]

logger = logging.getLogger("headrace.ledger")

# One transaction; what comes meanwhile is the next.
_BATCH_RECORDS: Final = 1000
_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 5.0
_LAST_RETRY_S: Final = 0.1
_LOG_EVERY_S: Final = 5.0
_NAMED: Final = 20


class Item(NamedTuple):
    """A record, and who is told that it is written."""

    record: Record
    waiter: Future[None]


class Writer:
    """Writes what is put into `items` until `stop`.

    `wake` is called, from this thread, with the waiters of what is written, or of what
    cannot be written for now. `on_lost` is told how many beginnings and ends were lost,
    from whichever thread lost them.
    """

    def __init__(
        self,
        store: Store,
        process: Process,
        *,
        wake: Callable[[Sequence[Future[None]]], None],
        on_lost: Callable[[int, int], None],
        beat_s: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        # True while records wait for a store that does not take them.
        self.is_failing = False
        self.lost_begun = self.lost_ended = 0
        self._store = store
        self._process = process
        self._wake = wake
        self._on_lost = on_lost
        self._beat_s = beat_s
        self._now = now
        self._counting = threading.Lock()
        self._stopping = threading.Event()
        self._give_up_s = 0.0
        self._next_log_s = 0.0
        self._thread = threading.Thread(target=self._run, name="headrace-ledger", daemon=True)
        self._opened: queue.SimpleQueue[StoreError | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Open the store and begin to write; blocks. Raises StoreError."""
        self._thread.start()
        if error := self._opened.get():
            raise error

    def stop(self, timeout_s: float) -> bool:
        """Write what waits, say goodbye, and return whether that was done in time; blocks."""
        self._give_up_s = time.monotonic() + timeout_s
        self._stopping.set()
        self.items.put(None)
        self._thread.join(timeout_s + 2 * _LAST_RETRY_S)
        return not self._thread.is_alive()

    def lose(self, records: Sequence[Record]) -> None:
        """Count records that nobody will write."""
        begun = sum(isinstance(record, Begun) for record in records)
        with self._counting:
            self.lost_begun += begun
            self.lost_ended += len(records) - begun
        self._on_lost(begun, len(records) - begun)

    def _run(self) -> None:
        try:
            left = self._store.open(self._process, self._now())
        except Exception as error:  # a bug of a store must not leave the start waiting
            self._opened.put(error if isinstance(error, StoreError) else StoreError(repr(error)))
            return
        self._opened.put(None)
        _tell_interrupted(left)
        beat_at_s = time.monotonic() + self._beat_s
        while not self._stopping.is_set() or not self.items.empty():
            if batch := self._take(beat_at_s - time.monotonic()):
                self._write(batch)
            if time.monotonic() >= beat_at_s:
                self._beat()
                beat_at_s = time.monotonic() + self._beat_s
        self._attempt(lambda: self._store.close(self._now(), self.lost_ended))

    def _take(self, timeout_s: float) -> list[Item]:
        """Wait for the first item, and return it with all that are there."""
        items = []
        try:
            item = self.items.get(timeout=max(timeout_s, 0))
            while item is not None:
                items.append(item)
                if len(items) == _BATCH_RECORDS:
                    break
                item = self.items.get_nowait()
        except queue.Empty:
            pass
        return items

    def _write(self, items: Sequence[Item]) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._is_giving_up():
            try:
                self._store.write([item.record for item in items])
            except StoreError as error:
                self.is_failing = True
                self._tell(items)
                self._complain(error, len(items))
                if self._stopping.wait(retry_s):
                    time.sleep(_LAST_RETRY_S)
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
            except Exception:
                self._write_each(items)
                return
            else:
                self._tell(items)
                self._note_success()
                return
        self.lose([item.record for item in items])

    def _is_giving_up(self) -> bool:
        return self.is_failing and self._stopping.is_set() and time.monotonic() > self._give_up_s

    def _write_each(self, items: Sequence[Item]) -> None:
        """Write one by one, because something is wrong with one of them."""
        if len(items) > 1:
            for item in items:
                self._write([item])
            return
        record = items[0].record
        logger.exception(
            "a record of the usage ledger cannot be written", extra={"generation_id": record.opening.generation_id}
        )
        self.lose([record])
        self._tell(items)

    def _note_success(self) -> None:
        if self.is_failing:
            self.is_failing = False
            logger.warning(
                "the usage ledger is written again",
                extra={"lost_ends": self.lost_ended, "lost_beginnings": self.lost_begun},
            )

    def _complain(self, error: StoreError, waiting: int = 0) -> None:
        now_s = time.monotonic()
        if now_s < self._next_log_s:
            return
        self._next_log_s = now_s + _LOG_EVERY_S
        logger.error(
            "the usage ledger cannot be written, serving goes on: %s",
            error,
            extra={"waiting": waiting + self.items.qsize(), "lost_ends": self.lost_ended},
        )

    def _beat(self) -> None:
        self._attempt(lambda: _tell_interrupted(self._store.beat(self._now())))

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StoreError as error:
            self._complain(error)
        except Exception:
            logger.exception("the usage ledger failed")

    def _tell(self, items: Sequence[Item]) -> None:
        self._wake([item.waiter for item in items])


def _tell_interrupted(ids: Sequence[str]) -> None:
    if not ids:
        return
    named = ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")
    logger.warning("generations interrupted by the end of their process: %d (%s)", len(ids), named)
