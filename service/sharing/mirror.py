"""From the logs of this process to the shared store: a few times a second everything that is new, in one round trip.

Nothing is done per event: a log is looked at, not told. While the store is down
logs go on in memory; when it is back they go on behind what it has, which is nothing
if it comes back empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.retention.log import EventLog
from service.sharing.names import Claim
from service.sharing.store import SharedStore, StoreError
from service.sharing.tasks import stop

__all__ = ["Mirror"]

logger = logging.getLogger("headrace.service")

# What a reader at another replica waits for at most. A round trip costs some 0.2 to 0.5 ms of CPU, and each log in it
# 20 µs: by the token it is the more the fewer of them there are to share it.
_INTERVAL_S: Final = 0.1
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
    is_stale: bool = False  # the store may lack what was sent


class Mirror:
    """Writes the logs that it is given while it runs. `keep_s`: how long the store keeps what is not ended in order."""

    def __init__(self, store: SharedStore, keep_s: float) -> None:
        self._store = store
        self._keep_s = keep_s
        self._logs: dict[str, _Mirrored] = {}
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def add(
        self, generation_id: str, log: EventLog, facts: Mapping[str, bytes], claim: tuple[str, str, Claim] | None
    ) -> None:
        """Write a log from now on, and `facts` once; where the store has lost them, with `claim` again."""
        self._logs[generation_id] = _Mirrored(log, facts, claim, log.first - 1)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="mirror")

    async def settle(self, generation_id: str) -> None:
        """Write what is left of a log, and no more of it. Raises StoreError."""
        mirrored = self._logs.get(generation_id)
        if mirrored is None:
            return
        async with self._writing:
            while mirrored.sent < mirrored.log.last or not mirrored.is_described or mirrored.is_stale:
                await self._write({generation_id: mirrored})
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
            try:
                async with self._writing:
                    await self._write(self._logs)
            except StoreError as error:
                logger.warning("the shared store does not take events: %s", error)
                self.distrust()
                await asyncio.sleep(_PAUSE_S)
            await asyncio.sleep(_INTERVAL_S)

    async def _write(self, logs: dict[str, _Mirrored]) -> None:
        for generation_id, mirrored in tuple(logs.items()):
            if mirrored.is_stale:
                mirrored.sent = await self._trusted(generation_id, mirrored.log)
                if mirrored.claim is not None:
                    await self._store.claim(*mirrored.claim, self._keep_s)
                mirrored.is_stale = mirrored.is_described = False
            if not mirrored.is_described:
                await self._store.describe(generation_id, mirrored.facts, self._keep_s)
                mirrored.is_described = True
        batches, taken, room = [], [], _TRIP
        for generation_id, mirrored in tuple(logs.items()):
            log = mirrored.log
            log.pull()
            begin = max(mirrored.sent, log.first - 1)
            if begin < log.last and room > 0:
                events = log.kept_after(begin, min(_ENTRY, room))
                room -= len(events)
                batches.append((generation_id, begin + 1, events, log.first))
                taken.append((mirrored, begin + len(events)))
        if batches:
            await self._store.append(batches, self._keep_s)
            for mirrored, sent in taken:
                mirrored.sent = sent
