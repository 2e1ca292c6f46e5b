"""The order in which the waiting requests of a class would go if no running one ended. A picture, not a live list."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate

from service.admission.entry import Entry

__all__ = ["Ranking", "Waiting"]

# One tenant: slots that it uses, since when it waits for its turn, and its waiting requests, oldest first.
Waiting = tuple[int, int, Iterable[Entry]]


class Ranking:
    """The order, made by playing the rule to the end: O(n log n) for n requests. Reading it is a search.

    first: goes before all others, whatever the rule says.
    now: later than any `since`, on the scale of them.
    """

    def __init__(self, tenants: Iterable[Waiting], first: Entry | None, now: int) -> None:
        order = list(_played(tenants, now))
        if first is not None:
            order.sort(key=lambda turn: turn[1] is not first)
        self._levels = [level if entry is not first else -1 for level, entry in order]
        self._slots: Sequence[int] = list(accumulate((entry.count for _, entry in order), initial=0))
        self._rank = {entry.arrival: rank for rank, (_, entry) in enumerate(order)}

    def before(self, arrival: int, level: int) -> tuple[int, int]:
        """Return how many requests stand in front of one, and the slots they ask for.

        `level` is for one that came later: slots that its tenant uses when its turn comes.
        """
        rank = self._rank.get(arrival)
        if rank is None:
            rank = bisect_left(self._levels, level + 1)
        return rank, self._slots[rank]


def _played(tenants: Iterable[Waiting], now: int) -> Iterator[tuple[int, Entry]]:
    """Yield the requests as they would be granted, each with the slots that its tenant then uses already."""
    heap = [(used, since, number, iter(entries)) for number, (used, since, entries) in enumerate(tenants)]
    heapify(heap)
    while heap:
        used, _, number, entries = heap[0]
        entry = next(entries, None)
        if entry is None:
            heappop(heap)
        else:
            yield used, entry
            now += 1
            heapreplace(heap, (used + entry.count, now, number, entries))
