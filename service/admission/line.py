"""One scheduling class: who of it waits, in which order, and how many slots its tenants use.

Does not know how many slots there are, nor the other class.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from service.admission.entry import Entry, Fifo
from service.admission.ranking import Ranking

__all__ = ["Before", "Line"]

# Outdated keys that are kept before the order is built anew, beyond twice the number of tenants.
_SPARE_KEYS: Final = 64
# In a line up to this length the picture of the order is made anew after every change.
_RANKED_ANEW: Final = 32

# Slots in use, since when it waits for its turn, the tenant: the least goes first.
_Key = tuple[int, int, str]


class Before(NamedTuple):
    """What stands in front of a request: requests, and the slots that they ask for."""

    requests: int
    slots: int


class Line:
    """The requests of one class.

    First come, first served within a tenant. Between tenants the one that uses
    the fewest slots of this class goes first, and of several such the one that
    waits longest for its turn: since its last one, or since its oldest waiting
    request came if that was later. A head for which slots are kept is pinned: it
    stays the head until it is granted or leaves.

    All operations are O(log n) for n waiting requests.
    """

    def __init__(self) -> None:
        self.used = 0
        # Counts what happens, so that of two numbers the lesser is longer ago.
        self._now = 0
        # Of every tenant that runs or waits: slots in use, and its last turn.
        self._used_by: dict[str, int] = {}
        self._last_turn: dict[str, int] = {}
        self._waiting: dict[str, Fifo] = {}
        # While several tenants wait, each has its present key here; others are outdated and skipped.
        self._order: list[_Key] = []
        self._pinned: Entry | None = None
        self._length = 0
        self._ranking: Ranking | None = None
        self._changes = 0

    def __len__(self) -> int:
        return self._length

    def waiting_of(self, tenant: str) -> int:
        """Return how many requests of a tenant wait."""
        fifo = self._waiting.get(tenant)
        return 0 if fifo is None else len(fifo)

    def first_of(self, tenant: str) -> Entry | None:
        """Return the oldest waiting request of a tenant."""
        fifo = self._waiting.get(tenant)
        return None if fifo is None else fifo.first

    @property
    def head(self) -> Entry | None:
        """Whose turn it is."""
        if self._pinned is not None:
            return self._pinned
        if len(self._waiting) == 1:
            return next(iter(self._waiting.values())).first
        order = self._order
        while order:
            key = order[0]
            tenant = key[2]
            if tenant in self._waiting and key == self._key(tenant):
                return self._waiting[tenant].first
            heappop(order)
        return None

    def pin(self, entry: Entry) -> None:
        """Let the head stay the head: slots are kept for it."""
        self._pinned = entry

    def add(self, entry: Entry) -> None:
        """Put a newcomer into the line."""
        tenant = entry.tenant
        fifo = self._waiting.get(tenant)
        if fifo is None:
            fifo = self._waiting[tenant] = Fifo()
        self._now += 1
        entry.arrival = self._now
        fifo.append(entry)
        self._length += 1
        self._changes += 1
        if len(fifo) == 1:
            self._note(tenant)

    def remove(self, entry: Entry) -> None:
        """Take a request out of the line."""
        tenant = entry.tenant
        if self._pinned is entry:
            self._pinned = None
        fifo = self._waiting[tenant]
        was_first = fifo.first is entry
        fifo.remove(entry)
        self._length -= 1
        self._changes += 1
        if not fifo:
            del self._waiting[tenant]
            if tenant not in self._used_by:
                self._last_turn.pop(tenant, None)
        elif was_first:
            self._note(tenant)

    def start(self, entry: Entry) -> None:
        """Count the slots of a request that is not in the line (any more) as used: its tenant has had its turn."""
        tenant = entry.tenant
        self._changes += 1
        self._now += 1
        self.used += entry.count
        self._used_by[tenant] = self._used_by.get(tenant, 0) + entry.count
        self._last_turn[tenant] = self._now
        if tenant in self._waiting:
            self._note(tenant)

    def stop(self, entry: Entry) -> None:
        """Count them as free again."""
        tenant = entry.tenant
        self._changes += 1
        self.used -= entry.count
        left = self._used_by[tenant] - entry.count
        if left:
            self._used_by[tenant] = left
        else:
            del self._used_by[tenant]
            if tenant not in self._waiting:
                del self._last_turn[tenant]
        if tenant in self._waiting:
            self._note(tenant)

    def before(self, entry: Entry) -> Before:
        """Return what goes before a waiting request if no running one ends: the end of one may change the order.

        Exact for up to 32 waiting requests and while one tenant waits; of more it
        may be a quarter of the line's length of changes behind.
        """
        fifo = self._waiting[entry.tenant]
        position = fifo.position(entry)
        slots = position * fifo.slots // len(fifo)
        if len(self._waiting) == 1:
            return Before(position, slots)
        return Before(*self._ranked().before(entry.arrival, self._used_by.get(entry.tenant, 0) + slots))

    def before_new(self, tenant: str) -> Before:
        """Return what would go before a newcomer."""
        fifo = self._waiting.get(tenant)
        own, slots = (0, 0) if fifo is None else (len(fifo), fifo.slots)
        if own == self._length:
            return Before(own, slots)
        return Before(*self._ranked().before(self._now + 1, self._used_by.get(tenant, 0) + slots))

    def _key(self, tenant: str) -> _Key:
        first = self._waiting[tenant].first.arrival
        return self._used_by.get(tenant, 0), max(first, self._last_turn.get(tenant, 0)), tenant

    def _note(self, tenant: str) -> None:
        """Put the present key of a tenant that waits into the order, which is not kept while only one does."""
        tenants = len(self._waiting)
        if tenants == 1:
            self._order.clear()
        elif not self._order or len(self._order) > 2 * tenants + _SPARE_KEYS:
            self._order = [self._key(name) for name in self._waiting]
            heapify(self._order)
        else:
            heappush(self._order, self._key(tenant))

    def _ranked(self) -> Ranking:
        """Return a picture of the order that is new enough."""
        if self._ranking is None or self._changes > (self._length // 4 if self._length > _RANKED_ANEW else 0):
            waiting = ((*self._key(tenant)[:2], fifo) for tenant, fifo in self._waiting.items())
            self._ranking = Ranking(waiting, self._pinned, self._now)
            self._changes = 0
        return self._ranking
