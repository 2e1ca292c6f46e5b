"""From the shared store to logs of this process: generations that run or ran at another replica, for readers here.

One task reads all of them in one call. An owner that shows no sign of life, for its
lease and half of one more, ends its generations for their readers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from service.core.errors import Reason, ServiceError
from service.retention.log import EventLog
from service.sharing.names import End
from service.sharing.store import Entry, SharedStore, StoreError
from service.sharing.tasks import stop

__all__ = ["Remotes"]

logger = logging.getLogger("headrace.service")

# A log that is new to the reading task is seen by its next call.
_WAIT_S: Final = 0.025
_LOOK_S: Final = 1.0
# Without the store nobody knows what becomes of a generation elsewhere.
_BLIND_S: Final = 5.0
# Of a lease, until an owner without one is taken to be gone.
_PATIENCE: Final = 0.5


@dataclass(slots=True)
class _Followed:
    log: EventLog
    owner: str
    on_end: Callable[[End], None]
    is_read: Callable[[], bool]


class Remotes:
    """Fills the logs that it is given until they end. `tell` says to the owners which of theirs are read here."""

    def __init__(self, store: SharedStore, tell: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        self._store = store
        self._tell = tell
        self._followed: dict[str, list[_Followed]] = {}
        self._task: asyncio.Task[None] | None = None
        self._seen_s = 0.0  # the store, last
        self._looked_s = -math.inf
        self._missing: dict[str, float] = {}  # owners without a lease, and since when

    def follow(
        self, generation_id: str, owner: str, log: EventLog, on_end: Callable[[End], None], is_read: Callable[[], bool]
    ) -> None:
        """Fill `log` until the generation ends, and say how; its owner is told while `is_read` says yes."""
        self._followed.setdefault(generation_id, []).append(_Followed(log, owner, on_end, is_read))
        self._looked_s = -math.inf  # its owner is told at once that it is read here
        if self._task is None or self._task.done():
            self._seen_s = time.monotonic()
            self._task = asyncio.create_task(self._run(), name="remotes")

    def drop(self, generation_id: str, log: EventLog) -> None:
        """Fill no more of a log."""
        left = [one for one in self._followed.pop(generation_id, ()) if one.log is not log]
        if left:
            self._followed[generation_id] = left

    async def close(self) -> None:
        """Stop; readers that are left are told that the store is not there for them any more."""
        await stop(self._task)
        self._end_all(_blind())

    async def _run(self) -> None:
        while self._followed:
            try:
                await self._read()
                if time.monotonic() - self._looked_s >= _LOOK_S:
                    self._looked_s = time.monotonic()
                    await self._look()
                self._seen_s = time.monotonic()
            except StoreError as error:
                if time.monotonic() - self._seen_s > _BLIND_S:
                    logger.warning("the shared store does not tell events: %s", error)
                    self._end_all(_blind())
                await asyncio.sleep(_WAIT_S * 4)

    async def _read(self) -> None:
        # Who comes while the answer is under way is not meant by it.
        asked = {name: tuple(all_of_it) for name, all_of_it in self._followed.items()}
        after = {name: min(one.log.last for one in all_of_it) for name, all_of_it in asked.items()}
        for name, entries in (await self._store.read(after, wait_s=_WAIT_S)).items():
            for one in asked[name]:
                _take(one.log, entries)
                if (end := entries[-1].end) is not None:
                    self.drop(name, one.log)
                    one.on_end(end)

    async def _look(self) -> None:
        """Look whether the owners live, and tell them which of theirs are read here."""
        owners = {name: all_of_it[0].owner for name, all_of_it in self._followed.items()}
        if not owners:
            return
        alive = await self._store.are_alive(sorted(set(owners.values())))
        read = [name for name, all_of_it in self._followed.items() if any(one.is_read() for one in all_of_it)]
        if read:
            await self._store.note_readers(read, _LOOK_S * 3)
            await self._tell(read)
        now_s = time.monotonic()
        self._missing = {owner: self._missing.get(owner, now_s) for owner, is_alive in alive.items() if not is_alive}
        # One that lives signs again within a third of its lease, where the store has lost it.
        patience_s = self._store.lease_s * _PATIENCE
        gone = {owner for owner, since_s in self._missing.items() if now_s - since_s >= patience_s}
        dead = [name for name, owner in owners.items() if owner in gone]
        if dead:
            await self._read()  # what it wrote at last
            for generation_id in dead:
                self._end(generation_id, End(_lost()))

    def _end(self, generation_id: str, end: End) -> None:
        for one in self._followed.pop(generation_id, ()):
            one.on_end(end)

    def _end_all(self, failure: ServiceError) -> None:
        for generation_id in tuple(self._followed):
            self._end(generation_id, End(failure))


def _take(log: EventLog, entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry.end is None:
            if entry.first > log.last + 1:
                log.begin_at(entry.first)  # the older ones are no longer kept
            for event in entry.events[log.last + 1 - entry.first :]:
                log.append(event)


def _lost() -> ServiceError:
    """Return what is said of a generation whose server is gone."""
    return ServiceError(
        Reason.GENERATION_LOST, "The server that ran this generation is gone, and the generation with it."
    )


def _blind() -> ServiceError:
    return ServiceError(
        Reason.STORE_UNAVAILABLE,
        "The store that replicas share does not answer; the generation may go on, and can be joined again.",
        retry_after_s=1.0,
    )
