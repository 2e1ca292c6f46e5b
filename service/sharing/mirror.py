"""From the logs of this process to the shared store: everything that is new, in one round trip for all of them.

Nothing is done per event: a log is looked at, not told. Twice a second, so that little
is lost with this process; ten times where somebody reads it at another replica, who
says so. While the store is down
logs go on in memory; when it is back they go on behind what it has, which is nothing
if it comes back empty.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from service.retention.log import EventLog
from service.sharing.names import Claim
from service.sharing.store import Batch, SharedStore, StoreError
from service.sharing.tasks import stop

__all__ = ["Mirror"]

logger = logging.getLogger("headrace.service")

# A round trip costs some 0.2 to 0.5 ms of CPU, and each log in it 20 µs: by the token it is the more the fewer of
# them there are to share it.
_INTERVAL_S: Final = 0.5
# The same for a log that is read elsewhere: what its reader there waits for at most.
_READ_INTERVAL_S: Final = 0.1
# How long it counts as read since its reader last said so, which it does each second.
_READ_S: Final = 3.0
# Where more waits than one round trip takes.
_MORE_S: Final = 0.01
_PAUSE_S: Final = 1.0
# Events of one entry, and of one round trip.
_ENTRY: Final = 256
_TRIP: Final = 4096


@dataclass(slots=True)
class _Mirrored:
    log: EventLog
    facts: Mapping[str, bytes]
    claim: tuple[str, str, Claim] | None  # tenant and key, and whose it is
    sent: int
    is_described: bool = False
    is_kept: bool = False  # the store has an entry, and knows when to drop them
    read_until_s: float = 0.0  # elsewhere, on the monotonic clock
    is_stale: bool = False  # the store may lack what was sent


class Mirror:
    """Writes the logs that it is given while it runs. `keep_s`: how long the store keeps what is not ended in order."""

    def __init__(self, store: SharedStore, keep_s: float) -> None:
        self._store = store
        self._keep_s = keep_s
        self._logs: dict[str, _Mirrored] = {}
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        # Set where the next round must not wait.
        self._hurry = asyncio.Event()
        self._due_s = 0.0  # the next one for all logs

    def add(
        self, generation_id: str, log: EventLog, facts: Mapping[str, bytes], claim: tuple[str, str, Claim] | None
    ) -> None:
        """Write a log from now on, and `facts` once; where the store has lost them, with `claim` again."""
        self._logs[generation_id] = _Mirrored(log, facts, claim, log.first - 1)
        self._hurry.set()  # who asks for it finds it
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="mirror")

    def note_read(self, generation_ids: Iterable[str]) -> None:
        """Write these logs more often for a while: they are read at another replica. Others' are nothing to it."""
        until_s = time.monotonic() + _READ_S
        for generation_id in generation_ids:
            mirrored = self._logs.get(generation_id)
            if mirrored is not None:
                if mirrored.read_until_s < until_s - _READ_S:
                    self._hurry.set()
                mirrored.read_until_s = until_s

    async def settle(self, generation_id: str) -> None:
        """Write what is left of a log, and no more of it. Raises StoreError."""
        mirrored = self._logs.get(generation_id)
        if mirrored is None:
            return
        async with self._writing:
            while mirrored.sent < mirrored.log.last or not mirrored.is_described or mirrored.is_stale:
                await self._write([(generation_id, mirrored)])
        self._logs.pop(generation_id, None)

    def drop(self, generation_id: str) -> None:
        """Write no more of a log."""
        self._logs.pop(generation_id, None)

    def distrust(self) -> None:
        """Look again what the store has of all of them: it was not as it should be."""
        for mirrored in self._logs.values():
            mirrored.is_stale = True

    async def close(self) -> None:
        """Stop."""
        await stop(self._task)

    async def _trusted(self, generation_id: str, log: EventLog) -> int:
        """Return the number of the last event that the store has, with all before it that are kept here."""
        oldest = await self._store.oldest(generation_id)
        if oldest is not None and oldest > log.first:
            await self._store.restart(generation_id)  # it was emptied, and written on
            return log.first - 1
        return max(await self._store.newest(generation_id), log.first - 1)

    async def _run(self) -> None:
        while self._logs:
            self._hurry.clear()
            wait_s = _PAUSE_S
            try:
                async with self._writing:
                    has_more = await self._write(self._due())
                if has_more:
                    self._due_s = 0.0
                wait_s = _MORE_S if has_more else self._wait_s()
            except StoreError as error:
                logger.warning("the shared store does not take events: %s", error)
                self.distrust()
                await asyncio.sleep(_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()

    def _due(self) -> list[tuple[str, _Mirrored]]:
        """Return the logs of this round: all of them, or those that are new or read elsewhere."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + _INTERVAL_S
            return list(self._logs.items())
        return [(name, one) for name, one in self._logs.items() if not one.is_described or one.read_until_s >= now_s]

    def _wait_s(self) -> float:
        now_s = time.monotonic()
        is_read = any(one.read_until_s >= now_s for one in self._logs.values())
        return max(0.0, min(self._due_s - now_s, _READ_INTERVAL_S if is_read else _INTERVAL_S))

    async def _write(self, logs: Sequence[tuple[str, _Mirrored]]) -> bool:
        """Write what is new in these logs; return whether there was more than one round trip takes."""
        for generation_id, mirrored in logs:
            if mirrored.is_stale:
                mirrored.sent = await self._trusted(generation_id, mirrored.log)
                if mirrored.claim is not None:
                    await self._store.claim(*mirrored.claim, self._keep_s)
                mirrored.is_stale = mirrored.is_described = mirrored.is_kept = False
            if not mirrored.is_described:
                await self._store.describe(generation_id, mirrored.facts, self._keep_s)
                mirrored.is_described = True
        batches, taken, room, has_more = [], [], _TRIP, False
        for generation_id, mirrored in logs:
            log = mirrored.log
            log.pull()
            begin = max(mirrored.sent, log.first - 1)
            if begin >= log.last:
                continue
            if not room:
                has_more = True
                break
            events = log.kept_after(begin, min(_ENTRY, room))
            sent = begin + len(events)
            room -= len(events)
            has_more = has_more or sent < log.last
            batches.append(Batch(generation_id, begin + 1, events, log.first, is_first=not mirrored.is_kept))
            taken.append((mirrored, sent))
        if batches:
            await self._store.append(batches, self._keep_s)
            for mirrored, sent in taken:
                mirrored.sent, mirrored.is_kept = sent, True
        return has_more
