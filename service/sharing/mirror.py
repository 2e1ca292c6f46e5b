"""From the logs of this process to the shared store: everything that is new, in one round trip for all of them.

One task writes, and nothing is done per event: a log is looked at, not told. Twice a
second, so that little is lost with this process; ten times where somebody reads it at
another replica, who says so; at once where it is new or has ended, and with all that
are in the same moment. While the store is down logs go on in memory; when it is back
they go on behind what it has, which is nothing if it comes back empty.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from service.retention.log import EventLog
from service.sharing.store import Batch, Claimed, Ending, SharedStore, StoreError
from service.sharing.tasks import stop

__all__ = ["Mirror"]

logger = logging.getLogger("headrace.service")

# A round trip costs many times the CPU that a log in it does: by the token it is the more the fewer of them there are
# to share it.
_INTERVAL_S: Final = 0.5
# The same for a log that is read elsewhere: what its reader there waits for at most.
_READ_INTERVAL_S: Final = 0.1
# How long it counts as read since its reader last said so, which it does each second.
_READ_S: Final = 3.0
# Between two round trips at least, for what comes meanwhile.
_LEAST_S: Final = 0.02
_PAUSE_S: Final = 1.0
# Events of one entry, and of one round trip; logs of one round trip.
_ENTRY: Final = 1024
_TRIP: Final = 4096
_LOGS: Final = 128
# Ends that wait for the store.
_MOST_UNTOLD: Final = 1000


@dataclass(slots=True)
class _Mirrored:
    log: EventLog
    facts: Mapping[str, bytes]
    claim: Claimed | None
    sent: int
    is_described: bool = False
    is_kept: bool = False  # the store has an entry, and knows when to drop them
    is_stale: bool = False  # the store may lack what was sent
    ending: Ending | None = None
    told: asyncio.Future[None] | None = None  # of who waits for the end to be written


class Mirror:
    """Writes the logs that it is given while it runs. `keep_s`: how long the store keeps what is not ended in order."""

    def __init__(self, store: SharedStore, keep_s: float) -> None:
        self._store = store
        self._keep_s = keep_s
        self._logs: dict[str, _Mirrored] = {}
        self._task: asyncio.Task[None] | None = None
        # Set where the next round must not wait, and for which logs: they are new or have ended, and it is not written.
        self._hurry = asyncio.Event()
        self._urgent: dict[str, _Mirrored] = {}
        self._read_until_s: dict[str, float] = {}  # logs that are read elsewhere, on the monotonic clock
        self._left: dict[str, _Mirrored] = {}  # that the last round trip did not take
        self._due_s = 0.0  # the next round for all logs
        self._read_due_s = 0.0  # and for those that are read elsewhere
        self._written_s = 0.0  # the last round trip

    def add(self, generation_id: str, log: EventLog, facts: Mapping[str, bytes], claim: Claimed | None) -> None:
        """Write a log from now on, and `facts` once; where the store has lost them, with `claim` again."""
        mirrored = _Mirrored(log, facts, claim, log.first - 1)
        self._logs[generation_id] = self._urgent[generation_id] = mirrored
        self._hurry.set()  # who asks for it finds it
        if not self._is_running:
            self._task = asyncio.create_task(self._run(), name="mirror")

    def note_read(self, generation_ids: Iterable[str]) -> None:
        """Write these logs more often for a while: they are read at another replica. Others' are nothing to it."""
        until_s = time.monotonic() + _READ_S
        for generation_id in generation_ids:
            if generation_id in self._logs:
                if generation_id not in self._read_until_s:
                    self._read_due_s = 0.0
                    self._hurry.set()
                self._read_until_s[generation_id] = until_s

    async def finish(self, generation_id: str, ending: Ending) -> None:
        """Write what is left of a log and its end, and no more of it. Raises StoreError where that is done later."""
        mirrored = self._logs.get(generation_id)
        if mirrored is None:
            return
        if not self._is_running:
            raise StoreError("nothing is written any more")
        mirrored.ending, mirrored.claim = ending, ending.claim
        mirrored.told = asyncio.get_running_loop().create_future()
        self._urgent[generation_id] = mirrored
        self._hurry.set()
        await mirrored.told

    def distrust(self) -> None:
        """Look again what the store has of all of them: it was not as it should be."""
        for mirrored in self._logs.values():
            mirrored.is_stale = True

    async def close(self) -> None:
        """Stop."""
        await stop(self._task)

    @property
    def _is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _run(self) -> None:
        try:
            while self._logs:
                self._hurry.clear()
                try:
                    await self._write(self._due())
                except StoreError as error:
                    logger.warning("the shared store does not take events: %s", error)
                    self.distrust()
                    self._put_off(error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_s()):
                        await self._hurry.wait()
                if (rest_s := self._written_s + _LEAST_S - time.monotonic()) > 0:
                    await asyncio.sleep(rest_s)
        finally:
            self._put_off(StoreError("nothing is written any more"))

    def _due(self) -> dict[str, _Mirrored]:
        """Return the logs of this round: those that are urgent or left, and those for which the time has come."""
        due, self._left = self._urgent | self._left, {}
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + _INTERVAL_S
            due |= self._logs
        if self._read_until_s and now_s >= self._read_due_s:
            self._read_due_s = now_s + _READ_INTERVAL_S
            self._read_until_s = {name: until_s for name, until_s in self._read_until_s.items() if until_s >= now_s}
            due |= {name: self._logs[name] for name in self._read_until_s}
        return due

    def _wait_s(self) -> float:
        if self._left:
            return 0.0
        due_s = min(self._due_s, self._read_due_s) if self._read_until_s else self._due_s
        return max(0.0, due_s - time.monotonic())

    async def _write(self, logs: Mapping[str, _Mirrored]) -> None:
        """Write what is new in these logs, as much of it as one round trip takes."""
        for generation_id, mirrored in logs.items():
            if mirrored.is_stale:
                await self._look_again(generation_id, mirrored)
        batches, left = _news(logs)
        if batches:
            await self._store.write(batches, self._keep_s)
            self._written_s = time.monotonic()
            for batch in batches:
                self._note_written(batch, logs[batch.generation_id])
        self._left = left

    async def _look_again(self, generation_id: str, mirrored: _Mirrored) -> None:
        """Find out what the store has of a log, and take the key again if it has lost that."""
        mirrored.is_stale = mirrored.is_described = mirrored.is_kept = False  # it may become so again meanwhile
        mirrored.sent = await self._trusted(generation_id, mirrored.log)
        if mirrored.claim is not None:
            await self._store.claim(*mirrored.claim, self._keep_s)

    async def _trusted(self, generation_id: str, log: EventLog) -> int:
        """Return the number of the last event that the store has, with all before it that are kept here."""
        oldest = await self._store.oldest(generation_id)
        if oldest is not None and oldest > log.first:
            await self._store.restart(generation_id)  # it was emptied, and written on
            return log.first - 1
        return max(await self._store.newest(generation_id), log.first - 1)

    def _note_written(self, batch: Batch, mirrored: _Mirrored) -> None:
        mirrored.sent, mirrored.is_described = _sent(batch), True
        mirrored.is_kept = mirrored.is_kept or bool(batch.events)
        if batch.ending is not None:
            self._drop(batch.generation_id)
            _settle(mirrored, None)
        elif mirrored.ending is None:
            self._urgent.pop(batch.generation_id, None)

    def _drop(self, generation_id: str) -> None:
        """Write no more of a log."""
        for all_of_them in (self._logs, self._urgent, self._read_until_s):
            all_of_them.pop(generation_id, None)

    def _put_off(self, error: StoreError) -> None:
        """Say to who waits for an end that it is written later; of too many the first ones never are."""
        ended = [(name, mirrored) for name, mirrored in self._urgent.items() if mirrored.ending is not None]
        for _, mirrored in ended:
            _settle(mirrored, error)
        for generation_id, _ in ended[:-_MOST_UNTOLD]:
            self._drop(generation_id)


def _news(logs: Mapping[str, _Mirrored]) -> tuple[list[Batch], dict[str, _Mirrored]]:
    """Return what is new in logs, as much of it as one round trip takes, and the logs that are left for the next one.

    Those that had no turn are its first.
    """
    batches: list[Batch] = []
    without_turn, with_more = dict[str, _Mirrored](), dict[str, _Mirrored]()
    room = _TRIP
    for generation_id, mirrored in logs.items():
        if not room or len(batches) == _LOGS:
            without_turn[generation_id] = mirrored
            continue
        log = mirrored.log
        log.pull()
        if mirrored.sent >= log.last and mirrored.is_described and mirrored.ending is None:
            continue
        batch = _batch(generation_id, mirrored, min(_ENTRY, room))
        batches.append(batch)
        room -= len(batch.events)
        if _sent(batch) < log.last:
            with_more[generation_id] = mirrored
    return batches, without_turn | with_more


def _batch(generation_id: str, mirrored: _Mirrored, most: int) -> Batch:
    """Return what is to be written of a log, with at most so many events; with its end, if nothing is before that."""
    log, ending = mirrored.log, mirrored.ending
    begin = max(mirrored.sent, log.first - 1)
    events = log.kept_after(begin, most)
    if ending is not None and begin + len(events) < ending.last:
        ending = None
    facts = {} if mirrored.is_described else mirrored.facts
    return Batch(generation_id, facts, begin + 1, events, log.first, not mirrored.is_kept, ending)


def _sent(batch: Batch) -> int:
    """Return the number of the last event that the store has when this is written."""
    return batch.first + len(batch.events) - 1


def _settle(mirrored: _Mirrored, error: StoreError | None) -> None:
    """Tell who waits for the end of a log; nobody does where it was told before."""
    if (told := mirrored.told) is None or told.done():
        return
    if error is None:
        told.set_result(None)
    else:
        told.set_exception(StoreError(*error.args))
