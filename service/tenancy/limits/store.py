"""Where the counters are: in this process, or in a Redis that replicas share, with this process for when that fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from service.tenancy.limits.redis_line import RedisLine, StoreError
from service.tenancy.limits.script import RENEW, SETTLE, TAKE
from service.tenancy.limits.windows import LEASE_MS, Answer, Ask, Correction, Limit, Span, State, Windows

__all__ = ["LimitStore", "Taken"]

logger = logging.getLogger("headrace.limits")

# Three chances within a lease.
_RENEW_S: Final = LEASE_MS / 3000
# While Redis does not answer: how often it is asked whether it does.
_PROBE_S: Final = 1.0
# Corrections that wait for it to come back; of those of one counter and bucket there is one.
_MOST_PENDING: Final = 4096
# Names in one call of a script.
_MEMBERS: Final = 500
_HELD: Final = Span(0, 0)


class Taken(NamedTuple):
    """What a request has taken, and where; or why it has not."""

    answer: Answer
    is_shared: bool


class LimitStore:
    """Takes, settles and lets go. Never raises for a store that fails: counting goes on in this process.

    `problem` says in words why it does not count with the others; None while all is
    well. `on_change` is told whether it does, whenever that changes.
    """

    def __init__(
        self,
        line: RedisLine | None = None,
        *,
        on_change: Callable[[bool], None] = lambda _is_shared: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._line = line
        self._on_change = on_change
        self._clock = clock
        self._windows = Windows()
        self._is_up = False
        self._pending: dict[tuple[str, Span, int], Correction] = {}
        self._task: asyncio.Task[None] | None = None
        self._came_down = asyncio.Event()
        self.problem: str | None = None

    async def start(self) -> None:
        """Begin; a Redis that does not answer now is a warning and no failure."""
        if self._line is None:
            return
        self._line.start()
        await self._probe()
        self._task = asyncio.create_task(self._keep(self._line), name="limits")

    async def close(self) -> None:
        """End. What still runs is let go by its lease."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._line is not None:
            await self._line.close()

    async def take(self, asks: Sequence[Ask], member: str) -> Taken:
        """Take of all limits or of none. `member` names what is held. Not to be cancelled."""
        line = self._line
        if line is not None and self._is_up:
            try:
                answer = _answer(await line.call(TAKE, [ask.key for ask in asks], _take_arguments(asks, member)), asks)
            except StoreError as error:
                self._lost(error)
            else:
                if answer.is_taken:
                    self._hold(asks, member)
                return Taken(answer, is_shared=True)
        return Taken(self._windows.take(asks, member, self._now_ms()), is_shared=False)

    async def settle(self, taken: Taken, asks: Sequence[Ask], member: str, deltas: Sequence[int]) -> None:
        """Put right what was taken, by a number for each ask, and let go what is held."""
        held = [ask.key for ask in asks if ask.limit is Limit.STREAMS]
        corrections = [
            Correction(ask.key, span, taken.answer.at_ms, delta)
            for ask, delta in zip(asks, deltas, strict=True)
            if delta and (span := ask.limit.span) is not None
        ]
        self._windows.let_go(held, member)
        if not taken.is_shared:
            self._windows.settle(corrections, self._now_ms())
            corrections = []
        line = self._line
        if line is None or not (corrections or held):
            return
        if not self._is_up:
            self._keep_for_later(corrections)
            return
        try:
            await line.call(
                SETTLE, [*(c.key for c in corrections), *held], ["0", member, len(corrections), *_settled(corrections)]
            )
        except StoreError as error:
            # Not kept for later: it may have been done, and twice would be worse than never.
            self._lost(error)

    async def _keep(self, line: RedisLine) -> None:
        """Renew what is held while Redis answers, and look whether it does again while not."""
        while True:
            self._came_down.clear()
            try:
                async with asyncio.timeout(_RENEW_S if self._is_up else _PROBE_S):
                    await self._came_down.wait()
            except TimeoutError:
                if self._is_up:
                    await self._renew(line)
                else:
                    await self._probe()

    async def _probe(self) -> None:
        line = self._line
        assert line is not None
        try:
            await line.ping()
        except StoreError as error:
            self._lost(error)
            return
        self._is_up = True
        if self.problem is not None:
            self.problem = None
            logger.warning("limits: Redis answers again, replicas count together")
        self._on_change(True)  # noqa: FBT003 - the callback says what it is
        await self._catch_up(line)

    async def _catch_up(self, line: RedisLine) -> None:
        """Tell it what it has missed: what is held here, and what was used less, or more, than it knows."""
        await self._renew(line)
        pending, self._pending = list(self._pending.values()), {}
        for start in range(0, len(pending), _MEMBERS):
            part = pending[start : start + _MEMBERS]
            try:
                await line.call(SETTLE, [c.key for c in part], ["0", "", len(part), *_settled(part)])
            except StoreError as error:
                self._lost(error)
                self._keep_for_later(pending[start + _MEMBERS :])
                return

    async def _renew(self, line: RedisLine) -> None:
        sent = {key: list(members) for key, members in self._windows.held.items()}
        for key, members in sent.items():
            for start in range(0, len(members), _MEMBERS):
                try:
                    await line.call(RENEW, [key], ["0", LEASE_MS, *members[start : start + _MEMBERS]])
                except StoreError as error:
                    self._lost(error)
                    return
            # What was let go in between must not come back by this.
            for member in set(members) - set(self._windows.held.get(key, ())):
                try:
                    await line.call(SETTLE, [key], ["0", member, 0])
                except StoreError as error:
                    self._lost(error)
                    return

    def _hold(self, asks: Sequence[Ask], member: str) -> None:
        for ask in asks:
            if ask.limit is Limit.STREAMS:
                self._windows.hold(ask.key, member)

    def _keep_for_later(self, corrections: Sequence[Correction]) -> None:
        for key, span, taken_at_ms, delta in corrections:
            place = key, span, taken_at_ms // span.bucket_ms
            before = self._pending.pop(place, None)
            self._pending[place] = Correction(key, span, taken_at_ms, delta + (0 if before is None else before.delta))
        while len(self._pending) > _MOST_PENDING:
            del self._pending[next(iter(self._pending))]

    def _lost(self, error: StoreError) -> None:
        if not self._is_up and self.problem is not None:
            return
        self._is_up = False
        self.problem = f"limits are counted by each process for itself: {error}"
        self._came_down.set()
        logger.warning("limits: Redis does not answer (%s); until it does, each process counts for itself", error)
        self._on_change(False)  # noqa: FBT003 - the callback says what it is

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _take_arguments(asks: Sequence[Ask], member: str) -> list[str | int]:
    arguments: list[str | int] = ["0", member, LEASE_MS]
    for ask in asks:
        arguments += (ask.most, ask.cost, *(ask.limit.span or _HELD))
    return arguments


def _settled(corrections: Sequence[Correction]) -> list[str | int]:
    arguments: list[str | int] = []
    for _, span, taken_at_ms, delta in corrections:
        arguments += (taken_at_ms // span.bucket_ms, delta, *span)
    return arguments


def _answer(numbers: Sequence[int], asks: Sequence[Ask]) -> Answer:
    states = tuple(State(*numbers[at : at + 3]) for at in range(2, 2 + 3 * len(asks), 3))
    return Answer(is_taken=bool(numbers[0]), at_ms=numbers[1], states=states)
