"""The slots of one model for those who wait for them: the asyncio edge of the admission queue.

Owns the clock and the waiters. Who is next is decided in `queue`, how long it
takes in `estimate`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Self

from service.admission.entry import Entry, State
from service.admission.estimate import LoadEstimate
from service.admission.limits import AdmissionLimits
from service.admission.queue import AdmissionQueue, Outlook
from service.core.errors import Reason, ServiceError
from service.core.request import Priority

__all__ = ["Slots", "Ticket"]

# What a refused caller is told to wait: while nothing is known, and the bounds of what is.
_UNKNOWN_RETRY_S: Final = 1.0
_LEAST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 30.0


class Ticket:
    """A request's place in the line and then its slots. Made by `Slots.enter`; to be used in one `async with`.

    Leaving the block leaves the line or frees the slots, whatever the state, also
    when it is left by a cancel that meets the grant.
    """

    __slots__ = ("_entry", "_slots")

    def __init__(self, slots: Slots, entry: Entry) -> None:
        self._slots = slots
        self._entry = entry

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    @property
    def is_granted(self) -> bool:
        """True while it has its slots."""
        return self._entry.state is State.GRANTED

    @property
    def ahead(self) -> int:
        """Requests of its class that are in front of it, as things stand; 0 unless it waits."""
        return self._slots.outlook(self._entry).ahead if self._entry.state is State.WAITING else 0

    def estimated_wait_s(self) -> float | None:
        """Return how long it is likely to wait from now on; 0 unless it waits, None while too little is known."""
        return self._slots.expected_wait_s(self._entry) if self._entry.state is State.WAITING else 0.0

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once it has its slots, False when the time has passed or it was left.

        One task at a time. Cancelling changes nothing about the place in the
        line: the block has to be left for that.
        """
        if self._entry.state is State.WAITING:
            await self._slots.wait(self._entry, timeout_s)
        return self.is_granted

    def leave(self) -> None:
        """Leave the line or free the slots. Idempotent."""
        self._slots.leave(self._entry)


class Slots:
    """The slots of one model and its waiting lines; for one event loop.

    `clock` is monotonic, in seconds; `lot` draws from 0 to 1, evenly.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        clock: Callable[[], float] = time.monotonic,
        lot: Callable[[], float] = random.random,
    ) -> None:
        self._queue = AdmissionQueue(limits)
        self._estimate = LoadEstimate(lot)
        self._clock = clock
        self._waiters: dict[Entry, asyncio.Future[None]] = {}
        self._refused_s: float | None = None
        # The part of a line that a tenant may hold; None for all of it. Set by whoever knows the tenants.
        self.share_of: Callable[[str], float | None] = _whole_line

    @property
    def limits(self) -> AdmissionLimits:
        """The bounds."""
        return self._queue.limits

    @property
    def running_limit(self) -> int:
        """Slots in all."""
        return self._queue.limits.running

    @property
    def running(self) -> int:
        """Slots in use."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """Requests in the lines, of both classes."""
        return self._queue.waiting

    def running_of(self, priority: Priority) -> int:
        """Return the slots that a class uses."""
        return self._queue.running_of(priority)

    def waiting_of(self, priority: Priority) -> int:
        """Return how many requests of a class wait."""
        return self._queue.waiting_of(priority)

    def oldest_wait_s(self, priority: Priority) -> float:
        """Return how long the one of a class has waited that waits longest, 0 if nobody does; from any thread."""
        waiting = [entry.entered_s for entry in list(self._waiters) if entry.priority is priority]
        return self._clock() - min(waiting) if waiting else 0.0

    def was_full_within(self, seconds: float) -> bool:
        """Return whether a line has refused a request in the last `seconds`."""
        return self._refused_s is not None and self._clock() - self._refused_s <= seconds

    def enter(self, count: int = 1, *, priority: Priority = Priority.INTERACTIVE, tenant: str = "") -> Ticket:
        """Return a place in the line, or slots if they are free: `async with slots.enter(2) as ticket`.

        Raises QUEUE_FULL at once if the line of its class is full, or its tenant's share
        of it; ValueError for more slots than there are. `tenant` is whose it is; slots
        are shared out between tenants.
        """
        now_s = self._clock()
        entry = self._queue.enter(count, priority, tenant, now_s, self.share_of(tenant))
        if entry is None:
            raise self._full(priority, tenant, now_s)
        return Ticket(self, entry)

    @asynccontextmanager
    async def take(
        self, count: int = 1, *, priority: Priority = Priority.INTERACTIVE, tenant: str = ""
    ) -> AsyncIterator[None]:
        """Hold `count` slots for the length of the block, after waiting for them as long as it takes.

        Raises what `enter` does. Cancelling leaves the line and frees what was granted.
        """
        async with self.enter(count, priority=priority, tenant=tenant) as ticket:
            await ticket.wait()
            yield

    def resize(self, limits: AdmissionLimits) -> None:
        """Go by other limits from now on. What runs and waits stays; with fewer slots than run, nobody gets one."""
        self._wake_granted(self._queue.resize(limits, self._clock()))

    def note_first_token(self, seconds: float) -> None:
        """Note how long after it got its slots a request had its first token."""
        self._estimate.note_first_token(seconds)

    def check_room(self, priority: Priority = Priority.INTERACTIVE, tenant: str = "") -> None:
        """Raise QUEUE_FULL if a request that came now would find its line full, or its tenant's share of it.

        Asked before the work that a request takes until it can stand in line; `enter`
        asks again.
        """
        # In an empty line nobody waits for what may be free.
        if self.waiting_of(priority) and self._queue.is_full(priority, tenant, self.share_of(tenant)):
            raise self._full(priority, tenant, self._clock())

    def check_deadline(
        self,
        remaining_s: float,
        count: int = 1,
        *,
        priority: Priority = Priority.INTERACTIVE,
        tenant: str = "",
    ) -> None:
        """Raise DEADLINE_TOO_SHORT if a request that came now could not have a token in time.

        `service.admission.estimate` says what is taken for certain, and who may prove it wrong.
        """
        if not self.limits.refuses_hopeless:
            return
        now_s = self._clock()
        outlook = self._queue.outlook_of_new(count, priority, tenant)
        least = self._estimate.forecast(outlook.slots_ahead, count, self.limits.running_of(priority), now_s)
        if not least.is_hopeless(remaining_s):
            return
        if least.queue_s <= remaining_s and self._estimate.takes_a_chance(remaining_s, now_s):
            return
        remaining_ms, queue_ms, first_token_ms = (
            round(1000 * seconds) for seconds in (remaining_s, least.queue_s, least.first_token_s)
        )
        raise ServiceError(
            Reason.DEADLINE_TOO_SHORT,
            f"The deadline leaves {remaining_ms} ms, and under the present load the first token takes at least "
            f"{queue_ms + first_token_ms} ms: {queue_ms} ms until a slot is free and {first_token_ms} ms from there. "
            "Allow more time, or come again under less load.",
            metadata={
                "remainingMs": str(remaining_ms),
                "queueMs": str(queue_ms),
                "firstTokenMs": str(first_token_ms),
            },
        )

    def outlook(self, entry: Entry) -> Outlook:
        """For `Ticket`: what lies before a waiting request."""
        return self._queue.outlook(entry)

    def expected_wait_s(self, entry: Entry) -> float | None:
        """For `Ticket`: the mean time until it is granted."""
        outlook = self._queue.outlook(entry)
        return self._estimate.expected_wait_s(outlook.shortage, outlook.lanes, self._clock())

    async def wait(self, entry: Entry, timeout_s: float | None) -> None:
        """For `Ticket`: return when it is granted, has left, or the time has passed."""
        if entry in self._waiters:
            raise RuntimeError("two tasks wait for one ticket")
        loop = asyncio.get_running_loop()
        waiter = self._waiters[entry] = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            del self._waiters[entry]
            if timer is not None:
                timer.cancel()

    def leave(self, entry: Entry) -> None:
        """For `Ticket`: leave the line or free the slots."""
        now_s = self._clock()
        if entry.state is State.GRANTED:
            self._estimate.note_hold(now_s - entry.granted_s, now_s)
        self._wake_granted([entry, *self._queue.leave(entry, now_s)])

    def _wake_granted(self, changed: Iterable[Entry]) -> None:
        for entry in changed:
            if (waiter := self._waiters.get(entry)) is not None:
                _wake(waiter)

    def _full(self, priority: Priority, tenant: str, now_s: float) -> ServiceError:
        limit = self.limits.waiting_of(priority)
        is_share = self.waiting_of(priority) < limit
        if is_share:
            limit = self.limits.places_of(priority, self.share_of(tenant))
            what = f"your share of its waiting line for {priority.value} requests ({limit} places)"
        else:
            # A share that is full is one tenant's matter, and says nothing about the server.
            self._refused_s = now_s
            what = f"its waiting line for {priority.value} requests"
        outlook = self._queue.outlook_of_place(priority, tenant if is_share else None)
        wait_s = self._estimate.expected_wait_s(outlook.shortage, outlook.lanes, now_s)
        return ServiceError(
            Reason.QUEUE_FULL,
            f"The model is busy and {what} is full; retry later.",
            metadata={"queueLimit": str(limit), "priority": priority.value}
            | ({"limit": "queue_share"} if is_share else {}),
            retry_after_s=(_UNKNOWN_RETRY_S if wait_s is None else min(max(wait_s, _LEAST_RETRY_S), _LONGEST_RETRY_S)),
        )


def _whole_line(_tenant: str) -> None:
    """Say that nobody is held to a share."""


def _wake(waiter: asyncio.Future[None]) -> None:
    # Its task may have been cancelled in the same turn of the loop.
    if not waiter.done():
        waiter.set_result(None)
