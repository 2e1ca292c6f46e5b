"""One request in a line or at work, and the line of one tenant, which knows the place of each in it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from service.core.request import Priority

__all__ = ["Entry", "Fifo", "State"]

# Gaps that are kept before the places are numbered anew, beyond twice the line's length.
_SPARE_GAPS: Final = 64


class State(Enum):
    """Where an entry is: in its line, at work, or neither any more."""

    WAITING = "waiting"
    GRANTED = "granted"
    LEFT = "left"


@dataclass(slots=True, eq=False)
class Entry:
    """One request. `entered_s` and `granted_s` are on the clock of whoever gives the times.

    `arrival` and `place` are the line's own: of two in one line the lesser came first.
    """

    count: int
    priority: Priority
    tenant: str
    state: State = State.WAITING
    entered_s: float = 0.0
    granted_s: float = 0.0
    arrival: int = 0
    place: int = 0


class Fifo:
    """The entries of one tenant that wait, oldest first.

    Entries may leave anywhere. All operations are O(1) or a search in a sorted
    list of the places that entries left.
    """

    __slots__ = ("_entries", "_gaps", "_next_place", "slots")

    def __init__(self) -> None:
        # A dict that forgets its first keys searches for the first one that is left; this one is a linked list.
        self._entries: OrderedDict[Entry, None] = OrderedDict()
        self._gaps: list[int] = []
        self._next_place = 0
        # Slots that all of them ask for.
        self.slots = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def first(self) -> Entry:
        """The oldest one; there has to be one."""
        return next(iter(self._entries))

    def append(self, entry: Entry) -> None:
        """Put an entry at the end."""
        entry.place = self._next_place
        self._next_place += 1
        self._entries[entry] = None
        self.slots += entry.count

    def remove(self, entry: Entry) -> None:
        """Take an entry out, wherever it stands. Raises KeyError if it does not stand here."""
        is_first = self.first is entry
        del self._entries[entry]
        self.slots -= entry.count
        if not self._entries:
            self._gaps.clear()
        elif is_first:
            if self._gaps:
                del self._gaps[: bisect_left(self._gaps, self.first.place)]
        else:
            insort(self._gaps, entry.place)
            if len(self._gaps) > 2 * len(self._entries) + _SPARE_GAPS:
                self._number_anew()

    def position(self, entry: Entry) -> int:
        """Return how many stand before it."""
        return entry.place - self.first.place - bisect_left(self._gaps, entry.place)

    def _number_anew(self) -> None:
        for place, entry in enumerate(self._entries):
            entry.place = place
        self._next_place = len(self._entries)
        self._gaps.clear()
