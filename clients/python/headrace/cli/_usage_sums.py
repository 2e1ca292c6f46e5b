"""What `headrace usage` adds up: counts per group, and quantiles in little memory. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

__all__ = ["GROUPINGS", "INTERRUPTED", "Quantiles", "Row", "Sum", "sums_of"]

Row = Mapping[str, Any]
# What rows can be grouped by; a day is that of the request's arrival, in UTC.
GROUPINGS: Final = ("tenant", "subject", "end_user", "model", "priority", "day", "outcome", "reason")
INTERRUPTED: Final = "interrupted"
_TOKENS: Final = ("prompt_tokens", "cached_prompt_tokens", "output_tokens", "reasoning_tokens")
_GROWTH: Final = math.log(1.02)
_LEAST_S: Final = 1e-6


class Quantiles:
    """Quantiles of durations, each true to one in a hundred, whatever their number.

    Values are counted in buckets that grow by a fiftieth.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Take one value."""
        self._counts[math.ceil(math.log(max(seconds, _LEAST_S)) / _GROWTH)] += 1

    def at(self, rank: float) -> float | None:
        """Return the value of which a share of `rank` (0 to 1) are no larger; None without values."""
        wanted = math.ceil(rank * self._counts.total()) or 1
        for bucket, count in sorted(self._counts.items()):
            wanted -= count
            if wanted <= 0:
                return math.exp((bucket - 0.5) * _GROWTH)
        return None


@dataclass(slots=True)
class Sum:
    """The rows of one group. `uncounted` are those that ran and have no token counts."""

    requests: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TOKENS, 0))
    uncounted: int = 0
    ttft: Quantiles = field(default_factory=Quantiles)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        """Take one row."""
        self.requests += 1
        self.outcomes[row["outcome"]] += 1
        for name in _TOKENS:
            self.tokens[name] += row.get(name) or 0
        ttft_s = row.get("ttft_s")
        if ttft_s is not None:
            self.ttft.add(ttft_s)
        has_run = ttft_s is not None or row["outcome"] == INTERRUPTED
        if has_run and (row.get("prompt_tokens") is None or row.get("output_tokens") is None):
            self.uncounted += 1

    def fields(self) -> dict[str, Any]:
        """Return the figures, ready for JSON; null where there are none."""
        p50, p95 = self.ttft.at(0.5), self.ttft.at(0.95)
        return {
            "requests": self.requests,
            **self.tokens,
            "uncounted_requests": self.uncounted,
            "ttft_p50_s": None if p50 is None else round(p50, 6),
            "ttft_p95_s": None if p95 is None else round(p95, 6),
            "outcomes": dict(sorted(self.outcomes.items(), key=lambda item: (-item[1], item[0]))),
        }


def sums_of(rows: Iterable[Row], by: Sequence[str]) -> tuple[dict[tuple[str, ...], Sum], Sum]:
    """Return the sum of each group, ordered by its names, and that of all rows."""
    groups: dict[tuple[str, ...], Sum] = {}
    total = Sum()
    for row in rows:
        key = tuple(_name(row, grouping) for grouping in by)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Sum()
        group.add(row)
        total.add(row)
    return dict(sorted(groups.items())), total


def _name(row: Row, grouping: str) -> str:
    if grouping == "day":
        received_at: datetime = row["received_at"]
        return received_at.date().isoformat()
    return str(row.get(grouping) or "")
