"""What counters of several processes have counted lately: increments, a moving window, quantiles of histograms. Pure.

Times are given, in seconds on one clock. It knows no name of a metric, and nothing of HTTP.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Counts", "Histogram", "Key", "Quantile", "Window", "has_restarted", "increments"]

# A sample's name and its labels, ordered by name.
Key = tuple[str, tuple[tuple[str, str], ...]]
Counts = Mapping[Key, float]

# A window is kept in no more parts than about this, however often it is read.
_PARTS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A quantile, as Prometheus' histogram_quantile has it, and what is known of it.

    `is_beyond`: it is above the last edge, and `value` is that edge. `is_below`:
    it is in the first bucket, of which only the upper edge, `edge`, is known.
    """

    value: float
    edge: float
    is_beyond: bool = False
    is_below: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many values were at most each upper edge; edges ascend, and the last one is infinite."""

    buckets: tuple[tuple[float, float], ...] = ()
    sum: float = 0.0

    @classmethod
    def merged(cls, parts: Iterable[tuple[Mapping[float, float], float]]) -> Histogram:
        """Return the sum of histograms, each as its counts by upper edge and the sum of its values.

        Over the edges that all of them have: counts there are exact, whatever else
        each one has. Replicas with different objectives have different edges.
        """
        known = [part for part in parts if math.inf in part[0]]
        if not known:
            return cls()
        edges = sorted(set.intersection(*(set(counts) for counts, _ in known)))
        return cls(
            buckets=tuple((edge, math.fsum(counts[edge] for counts, _ in known)) for edge in edges),
            sum=math.fsum(total for _, total in known),
        )

    @property
    def count(self) -> float:
        """How many values there are."""
        return self.buckets[-1][1] if self.buckets else 0.0

    def quantile(self, share: float) -> Quantile | None:
        """Return the value of which a share (0 to 1) of all are no larger; None without values, or without edges.

        The rules are those of Prometheus' histogram_quantile for classic buckets:
        values lie evenly in a bucket, the first one begins at 0, and what is above
        the last edge is that edge.
        """
        total = self.count
        if not total > 0 or len(self.buckets) < 2:
            return None
        rank = share * total
        lower = below = 0.0
        for upper, counted in self.buckets[:-1]:
            cumulative = max(counted, below)  # readings of several processes are not of one moment
            if cumulative >= rank:
                if upper <= 0:
                    return Quantile(value=upper, edge=upper, is_below=True)
                # As Prometheus: a rank of 0 is the lower edge of the first bucket, be it empty.
                inside = (rank - below) / (cumulative - below) if cumulative > below else 0.0
                return Quantile(value=lower + (upper - lower) * inside, edge=upper, is_below=lower == 0)
            lower, below = upper, cumulative
        return Quantile(value=lower, edge=lower, is_beyond=True)


def has_restarted(before: Counts, after: Counts) -> bool:
    """Return whether the process behind two readings is another one: a count fell, or is gone.

    Sums of values are not looked at: those may fall, where a value is below 0.
    """
    return any(after.get(key, -1.0) < count for key, count in before.items() if not key[0].endswith("_sum"))


def increments(before: Counts, after: Counts, *, is_new: bool = False) -> dict[Key, float]:
    """Return what was counted between two readings of a process; what is new began at 0.

    Where counts fell the process has started anew, and everything of `after` was
    counted since: Prometheus does so for each series by itself, and misses those
    that have overtaken. `is_new` says it where it is known otherwise.
    """
    if is_new or has_restarted(before, after):
        return dict(after)
    return {key: count - before.get(key, 0.0) for key, count in after.items()}


@dataclass(slots=True)
class _Part:
    began_s: float
    ended_s: float
    counts: dict[Key, float]

    def add(self, counts: Counts, share: float = 1.0) -> None:
        for key, count in counts.items():
            self.counts[key] = self.counts.get(key, 0.0) + count * share


class Window:
    """What was counted in the last `length_s` seconds, or a little more: whole rounds of reading.

    Bounded: parts that are short against the window are joined.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._parts: deque[_Part] = deque()
        self._now_s: float | None = None

    def advance(self, now_s: float) -> None:
        """Begin a round at `now_s`, later than all before; what is then added was counted until then."""
        if self._now_s is not None:
            last = self._parts[-1] if self._parts else None
            if last is not None and now_s - last.began_s <= self._length_s / _PARTS:
                last.ended_s = now_s
            else:
                self._parts.append(_Part(self._now_s, now_s, {}))
        self._now_s = now_s
        while len(self._parts) > 1:
            first, second = self._parts[0], self._parts[1]
            # Rounds are not quite even: up to half of one may be missing to the full length.
            if now_s - second.began_s < self._length_s - (second.began_s - first.began_s) / 2:
                break
            self._parts.popleft()

    def add(self, since_s: float, counts: Counts) -> None:
        """Add what was counted from `since_s` until this round.

        Of what began before the window, because its process could not be reached for a
        while, as much is taken as lies in it, as if it had come evenly.
        """
        if not self._parts or self._now_s is None:
            return
        covered = [part for part in self._parts if part.ended_s > since_s]
        if len(covered) == 1:
            covered[0].add(counts)
            return
        for part in covered:
            inside_s = part.ended_s - max(part.began_s, since_s)
            part.add(counts, inside_s / (self._now_s - since_s))

    @property
    def span_s(self) -> float | None:
        """How long the window is; None before the second round."""
        return None if not self._parts or self._now_s is None else self._now_s - self._parts[0].began_s

    def counts(self) -> Counts:
        """Return what was counted in it."""
        whole = _Part(0.0, 0.0, {})
        for part in self._parts:
            whole.add(part.counts)
        return whole.counts
