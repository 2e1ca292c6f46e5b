"""Counters that forget: what was used in the last minute, in this day, and what is held now.

The rules of counting, and the counters of one process. Pure: times are given, in
milliseconds of Unix time. `service.tenancy.limits.script` says the same to Redis.

- A window is a row of buckets. What is taken goes into the bucket of its time.
- A minute has buckets of a second each, and one leaves a minute after the last
  thing that went into it. So in no minute, whenever it begins, more is taken
  than the limit, and what is refused fits a minute later at the latest. What was
  taken first in a second stays up to a second longer than a minute.
- A day is one bucket, which leaves at midnight UTC.
- What was taken is settled in its own bucket: less than was taken frees the rest.
  Of a bucket that has left nothing is given back, and what was used beyond it
  counts now.
- What is held (streams) is a set of names; each leaves by itself when its lease ends.
- A request is held against all its limits at once: it takes of all or of none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

__all__ = [
    "DAY",
    "LEASE_MS",
    "MINUTE",
    "UNKNOWN_MS",
    "Answer",
    "Ask",
    "Correction",
    "Limit",
    "Span",
    "State",
    "Windows",
]

# How long a stream is counted whose process says nothing more of it.
LEASE_MS: Final = 15_000
# For "nobody can tell".
UNKNOWN_MS: Final = -1
_SWEEP_MS: Final = 60_000


class Span(NamedTuple):
    """The length of a window's buckets, and how long one stays behind the last thing in it; 0: until its own end."""

    bucket_ms: int
    keep_ms: int

    def leaves_ms(self, now_ms: int) -> int:
        """Return when the bucket leaves that something goes into now."""
        return now_ms + self.keep_ms if self.keep_ms else (now_ms // self.bucket_ms + 1) * self.bucket_ms


MINUTE: Final = Span(1_000, 60_000)
DAY: Final = Span(86_400_000, 0)


class Limit(Enum):
    """What is counted. The values are the names of the limits file."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    DAY_TOKENS = "tokens_per_day"
    STREAMS = "concurrent_streams"

    @property
    def span(self) -> Span | None:
        """Its window; None for what is held."""
        return _SPANS[self]


_SPANS: Final[Mapping[Limit, Span | None]] = {
    Limit.REQUESTS: MINUTE,
    Limit.TOKENS: MINUTE,
    Limit.DAY_TOKENS: DAY,
    Limit.STREAMS: None,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One limit that a request is held against, and what it would take of it.

    `key` names the counter; `model` is set for a limit of one model.
    """

    key: str
    limit: Limit
    most: int
    cost: int
    model: str | None = None


class State(NamedTuple):
    """Where one limit stands.

    reset_ms: until all of it is free again, if nothing more is taken; 0 if it is.
    wait_ms: until what was asked for fits; 0 if it does, UNKNOWN_MS where no time tells.
    """

    used: int
    reset_ms: int
    wait_ms: int


class Answer(NamedTuple):
    """Whether a request has taken what it asked for, when, and a state for each of its asks: after it if it has."""

    is_taken: bool
    at_ms: int
    states: tuple[State, ...]


class Correction(NamedTuple):
    """By how much more, or less, was used than taken at a time."""

    key: str
    span: Span
    taken_at_ms: int
    delta: int


class _Bucket:
    __slots__ = ("count", "leaves_ms")

    def __init__(self) -> None:
        self.count = self.leaves_ms = 0


class Windows:
    """The counters of one process."""

    def __init__(self) -> None:
        self._windows: dict[str, dict[int, _Bucket]] = {}
        # When each lease ends; None for never.
        self._held: dict[str, dict[str, int | None]] = {}
        self._has_leases = False
        self._swept_ms = 0

    def take(self, asks: Sequence[Ask], member: str, now_ms: int, *, lease_ms: int | None = None) -> Answer:
        """Take of all of them or of none. `member` names what is held, without a lease until it is let go."""
        self._sweep(now_ms)
        states = [self._state(ask, now_ms) for ask in asks]
        if any(state.wait_ms for state in states):
            return Answer(is_taken=False, at_ms=now_ms, states=tuple(states))
        for number, ask in enumerate(asks):
            span = ask.limit.span
            if span is None:
                self.hold(ask.key, member, None if lease_ms is None else now_ms + lease_ms)
            else:
                self._add(ask.key, span, ask.cost, now_ms)
            state = self._state(ask, now_ms)
            states[number] = State(state.used, state.reset_ms, 0)
        return Answer(is_taken=True, at_ms=now_ms, states=tuple(states))

    def settle(self, corrections: Sequence[Correction], now_ms: int) -> None:
        """Put right what was taken."""
        for key, span, taken_at_ms, delta in corrections:
            bucket = self._live(key, now_ms).get(taken_at_ms // span.bucket_ms)
            if bucket is not None:
                # Below 0 only if the counters began anew in between.
                bucket.count = max(0, bucket.count + delta)
            elif delta > 0:
                self._add(key, span, delta, now_ms)

    def hold(self, key: str, member: str, until_ms: int | None = None) -> None:
        """Hold it, whatever the limit is."""
        self._held.setdefault(key, {})[member] = until_ms
        self._has_leases = self._has_leases or until_ms is not None

    def let_go(self, keys: Sequence[str], member: str) -> None:
        """Hold it no more. Idempotent."""
        for key in keys:
            if (members := self._held.get(key)) is not None:
                members.pop(member, None)
                if not members:
                    del self._held[key]

    @property
    def held(self) -> Mapping[str, Collection[str]]:
        """What is held under each key."""
        return self._held

    def used(self, key: str, now_ms: int) -> int:
        """Return what a window has."""
        return sum(bucket.count for bucket in self._live(key, now_ms).values())

    def _state(self, ask: Ask, now_ms: int) -> State:
        if ask.limit.span is None:
            members = self._held.get(ask.key, {})
            if self._has_leases:
                for name in [name for name, end_ms in members.items() if end_ms is not None and end_ms <= now_ms]:
                    del members[name]
            return State(len(members), 0, 0 if len(members) + ask.cost <= ask.most else UNKNOWN_MS)
        live = sorted((b.leaves_ms, b.count) for b in self._live(ask.key, now_ms).values() if b.count)
        used = sum(count for _, count in live)
        reset_ms = live[-1][0] - now_ms if live else 0
        if used + ask.cost <= ask.most:
            return State(used, reset_ms, 0)
        wait_ms, left = UNKNOWN_MS, used
        for leaves_ms, count in live:
            left -= count
            if left + ask.cost <= ask.most:
                wait_ms = leaves_ms - now_ms
                break
        return State(used, reset_ms, wait_ms)

    def _add(self, key: str, span: Span, count: int, now_ms: int) -> None:
        bucket = self._windows.setdefault(key, {}).setdefault(now_ms // span.bucket_ms, _Bucket())
        bucket.count += count
        bucket.leaves_ms = span.leaves_ms(now_ms)

    def _live(self, key: str, now_ms: int) -> dict[int, _Bucket]:
        buckets = self._windows.get(key)
        if buckets is None:
            return {}
        for number in [number for number, bucket in buckets.items() if bucket.leaves_ms <= now_ms]:
            del buckets[number]
        return buckets

    def _sweep(self, now_ms: int) -> None:
        """Forget the keys of those who have not come for a while."""
        if abs(now_ms - self._swept_ms) < _SWEEP_MS:
            return
        self._swept_ms = now_ms
        for key in [key for key in self._windows if not self._live(key, now_ms)]:
            del self._windows[key]
