"""When callers come: an open loop, whose callers do not wait for one another. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["poisson"]


def poisson(rate_per_s: float, begin_s: float, end_s: float, chance: random.Random) -> Iterator[float]:
    """Yield the times of independent arrivals at a mean rate, from `begin_s` to before `end_s`."""
    at_s = begin_s + chance.expovariate(rate_per_s)
    while at_s < end_s:
        yield at_s
        at_s += chance.expovariate(rate_per_s)
