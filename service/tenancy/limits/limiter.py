"""The limits as accounts: taken before a generation may run, settled by what it used, whatever its end is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from service.core.account import Account, Closing, NoAccounts, Opening
from service.core.identity import Identity
from service.tenancy.limits.demand import (
    TOKEN_LIMITS,
    Reservation,
    asks_of,
    check_size,
    refusal,
    reservation_of,
    used_tokens,
)
from service.tenancy.limits.file import LimitsFile
from service.tenancy.limits.headers import headers_of
from service.tenancy.limits.rules import Rules
from service.tenancy.limits.store import LimitStore, Taken
from service.tenancy.limits.windows import Ask

__all__ = ["Limiter"]

logger = logging.getLogger("headrace.limits")

# How often the file is looked at.
_LOOK_S: Final = 1.0
_UNLIMITED: Final = NoAccounts()


class Limiter:
    """`service.core.account.Accounts` for what tenants may use.

    `prefix` begins the names of the counters. `on_refusal` is told of every request
    that was refused: the name of the limit and the model.
    """

    def __init__(
        self,
        rules: LimitsFile | Rules,
        store: LimitStore | None = None,
        *,
        prefix: str = "headrace",
        on_refusal: Callable[[str, str], None] = lambda _limit, _model: None,
    ) -> None:
        self._file = rules if isinstance(rules, LimitsFile) else None
        self._rules = rules.rules if isinstance(rules, LimitsFile) else rules
        self._store = store or LimitStore()
        self._prefix = prefix
        self._on_refusal = on_refusal
        self._looking: asyncio.Task[None] | None = None
        self._settling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to follow the file, and to count with the others; a store that does not answer stops nobody."""
        await self._store.start()
        if self._file is not None:
            self._looking = asyncio.create_task(self._look(self._file), name="limits file")

    async def close(self) -> None:
        """End, when no account is open any more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._settling:
            await asyncio.wait(self._settling)
        await self._store.close()

    async def open(self, opening: Opening) -> Account:
        """Take what the generation may need. RATE_LIMITED, QUOTA_EXHAUSTED; INVALID_FIELD for what can never fit.

        A cancelled one has taken nothing, soon after.
        """
        rules = self._rules
        reservation = reservation_of(opening, rules)
        asks = asks_of(opening, rules, reservation, self._prefix)
        check_size(opening, rules, asks)
        if not asks:
            return _UNLIMITED
        taking = asyncio.ensure_future(self._store.take(asks, opening.generation_id))
        try:
            taken = await asyncio.shield(taking)
        except asyncio.CancelledError:
            # It may be under way to Redis, and nobody else would give it back.
            self._settle_later(self._give_back(taking, asks, opening.generation_id, reservation))
            raise
        headers = headers_of(asks, taken.answer.states)
        if not taken.answer.is_taken:
            error = refusal(opening, asks, taken.answer, headers)
            self._on_refusal(error.metadata["limit"], opening.model)
            raise error
        return _LimitedAccount(self, opening.generation_id, asks, taken, reservation, headers)

    def max_output_tokens(self, identity: Identity, model: str) -> int | None:
        """Return the most tokens that a choice may have by the limits; None for what the model itself allows."""
        return self._rules.max_output_tokens(identity.tenant, model)

    def queue_share(self, tenant: str, model: str) -> float | None:
        """Return the part of a model's waiting line that a tenant may hold; None for all of it."""
        return self._rules.queue_share(tenant, model)

    @property
    def models(self) -> frozenset[str]:
        """The models that the rules name."""
        return self._rules.models

    def problem(self) -> str | None:
        """Return what keeps the limits from holding as they should, in words; None if nothing does."""
        return self._store.problem or (None if self._file is None else self._file.problem)

    async def settle(self, taken: Taken, asks: Sequence[Ask], member: str, reservation: Reservation, used: int) -> None:
        """For its accounts: put right what was reserved. Done to its end even where the caller is cancelled."""
        delta = used - reservation.total
        deltas = [delta if ask.limit in TOKEN_LIMITS else 0 for ask in asks]
        await asyncio.shield(self._settle_later(self._store.settle(taken, asks, member, deltas)))

    def _settle_later(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _give_back(
        self, taking: asyncio.Future[Taken], asks: Sequence[Ask], member: str, reservation: Reservation
    ) -> None:
        taken = await taking
        if taken.answer.is_taken:
            deltas = [-reservation.total if ask.limit in TOKEN_LIMITS else 0 for ask in asks]
            await self._store.settle(taken, asks, member, deltas)

    async def _look(self, file: LimitsFile) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                # In a thread: no call waits for a disk.
                await asyncio.to_thread(file.look)
            except Exception:
                logger.exception("the limits file could not be looked at")
            self._rules = file.rules


class _LimitedAccount:
    """What one generation has taken."""

    def __init__(
        self,
        limiter: Limiter,
        generation_id: str,
        asks: Sequence[Ask],
        taken: Taken,
        reservation: Reservation,
        headers: Sequence[tuple[str, str]],
    ) -> None:
        self.headers = headers
        self._limiter = limiter
        self._generation_id = generation_id
        self._asks = asks
        self._taken = taken
        self._reservation = reservation

    async def close(self, closing: Closing) -> None:
        """Settle it by what was used."""
        used = used_tokens(self._reservation, closing)
        await self._limiter.settle(self._taken, self._asks, self._generation_id, self._reservation, used)
