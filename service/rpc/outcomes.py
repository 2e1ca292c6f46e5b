"""How the generations of this process have ended, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

__all__ = ["Outcomes"]


class Outcomes:
    """Counts by outcome. Every Generate call is counted once, at its end."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, outcome: str) -> None:
        """Note the end of one call."""
        self._counts[outcome] += 1

    @property
    def counts(self) -> Mapping[str, int]:
        """The counts since the process began."""
        return self._counts
