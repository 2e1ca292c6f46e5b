"""How long a wait is likely to be, and how long it is at least, from what was seen last. Pure: times are given.

Two kinds of numbers are kept: how long requests held their slots, the last 64 and
none older than a minute, and how long after they got them their first token came at
the least, ever. Two questions are answered from them:

- `expected_wait_s`: the mean. Slots come free one after the other, in the mean
  time of a hold divided by the slots that there are. It is shown to callers, and
  tells a refused one when to come again.
- `forecast`: a lower bound, to refuse what has no hope. It lets all running work
  end at once, so that only whole rounds of the slots count that have to pass
  after that; a round takes the lower quartile of the holds, or their mean if that is
  less (many may have been cancelled), and the first token half of the shortest time
  that one ever took. With fewer than 16 numbers of a kind its
  part is 0: nothing is refused by it.

A wrong bound for the first token, when only long prompts were seen yet, would keep
itself alive, because whom it refuses is never seen. So of the requests that it alone
would refuse about two a second are let in all the same (`takes_a_chance`): the one that
has the most time, and one drawn by lot, so that nobody who asks often, or first, takes
the chance from others for long. One that does get its first token early brings the
bound down for good. The line corrects itself: those ahead do run, and are seen.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

__all__ = ["Forecast", "LoadEstimate"]

KEPT: Final = 64
KEPT_S: Final = 60.0
LEAST_TO_REFUSE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The least that a request has to expect, in seconds: until it has its slots, and from there to its first token."""

    queue_s: float
    first_token_s: float

    @property
    def total_s(self) -> float:
        """Until the first token."""
        return self.queue_s + self.first_token_s

    def is_hopeless(self, remaining_s: float) -> bool:
        """Return whether a deadline in so many seconds passes before there can be a token."""
        return remaining_s < self.total_s


class LoadEstimate:
    """What was seen of one model lately. All times are seconds, `now_s` on any one monotonic clock."""

    def __init__(self, lot: Callable[[], float] = random.random) -> None:
        self._holds = _Recent()
        self._first_tokens = 0
        self._least_first_token_s = math.inf
        # From 0 to 1, evenly.
        self._lot = lot
        # Of those that asked for a chance, in this second and in the one before.
        self._second = 0
        self._asked = self._asked_before = 0
        self._longest_s = self._longest_before_s = 0.0
        self._has_longest = False

    def note_hold(self, held_s: float, now_s: float) -> None:
        """Note how long a request had its slots."""
        self._holds.note(held_s, now_s)

    def note_first_token(self, took_s: float) -> None:
        """Note how long after it got its slots a request had its first token."""
        self._first_tokens += 1
        self._least_first_token_s = min(self._least_first_token_s, took_s)

    def expected_wait_s(self, shortage: float, lanes: int, now_s: float) -> float | None:
        """Return the mean time until `shortage` slots of `lanes` came free; None if nothing was seen lately."""
        holds = self._holds.values(now_s)
        return shortage / lanes * (sum(holds) / len(holds)) if holds else None

    def forecast(self, slots_ahead: int, count: int, lanes: int, now_s: float) -> Forecast:
        """Return the least that a request for `count` slots has to expect behind `slots_ahead` others."""
        first_token_s = self._least_first_token_s / 2 if self._first_tokens >= LEAST_TO_REFUSE else 0.0
        rounds = (slots_ahead + min(count, lanes) - 1) // lanes
        queue_s = 0.0
        if rounds > 0:
            holds = self._holds.values(now_s)
            if len(holds) >= LEAST_TO_REFUSE:
                quartile_s = sorted(holds)[(len(holds) - 1) // 4]
                queue_s = rounds * min(quartile_s, sum(holds) / len(holds))
        return Forecast(queue_s=queue_s, first_token_s=first_token_s)

    def takes_a_chance(self, remaining_s: float, now_s: float) -> bool:
        """Return True for about two requests a second of those that ask: they are let in."""
        second = int(now_s)
        if second != self._second:
            is_next = second == self._second + 1
            self._asked_before, self._longest_before_s = (self._asked, self._longest_s) if is_next else (0, 0.0)
            self._second, self._asked, self._longest_s, self._has_longest = second, 0, 0.0, False
        self._asked += 1
        self._longest_s = max(self._longest_s, remaining_s)
        if not self._has_longest and remaining_s >= max(self._longest_s, self._longest_before_s):
            self._has_longest = True
            return True
        return self._lot() * max(self._asked, self._asked_before) < 1


class _Recent:
    """The last numbers of one kind."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=KEPT)
        self._noted_s: deque[float] = deque(maxlen=KEPT)

    def note(self, value: float, now_s: float) -> None:
        self._values.append(value)
        self._noted_s.append(now_s)

    def values(self, now_s: float) -> Collection[float]:
        oldest_s = now_s - KEPT_S
        while self._noted_s and self._noted_s[0] < oldest_s:
            self._noted_s.popleft()
            self._values.popleft()
        return self._values
