"""The retention section of the bench."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import uvloop

from bench.lines import Line, figure
from bench.options import Options
from bench.retention.plan import PROMISED_US, Case, Way, cases
from bench.retention.run import Cost, Pair, Pairs
from bench.retention.run import measure as run
from bench.retention.servers import NO_REDIS, running_servers

__all__ = ["judge", "measure"]

# Standard errors that a figure may be beyond its limit by chance.
NOISE: Final = 2.0
# Of a limit of nothing: noise above it hides what would matter.
RESOLVED_US: Final = 10.0


@dataclass(frozen=True, slots=True)
class More:
    """What one way costs more than another in µs a token: median of the rounds' differences, and standard error."""

    us: float
    error_us: float

    def is_within(self, limit_us: float) -> bool | None:
        """Whether it is no more than that, or chance explains what is; None where chance is too large to tell."""
        if self.us - NOISE * self.error_us > limit_us:
            return False
        return True if NOISE * self.error_us <= max(limit_us, RESOLVED_US) else None

    def __str__(self) -> str:
        return f"{self.us:+.1f} ± {self.error_us:.1f} µs"


def measure(options: Options) -> list[Line]:
    """Return the figures. About seven minutes."""
    with running_servers() as servers:
        found = uvloop.run(run(servers, cases(options.rounds, options.scale)))
    return [line for case, costs in found for line in judge(case, costs)]


def judge(case: Case, pairs: Pairs) -> Iterable[Line]:
    """Return the figures of one case, and which of them are as promised."""
    off = [pair.base for way, rounds in pairs.items() for pair in rounds if way.base is Way.OFF]
    all_us = [cost.service_us for cost in off]
    off_us = statistics.median(all_us)
    events = f"; {statistics.median(cost.tokens_per_event for cost in off):.1f} tokens an event"
    spread = f"{min(all_us):.1f} to {max(all_us):.1f}{'' if case.is_request else events}"
    yield figure(f"{case.name}, {Way.OFF.value}", f"{off_us:.1f} µs ({spread})")
    for way in case.ways:
        if way is Way.OFF:
            continue
        what, limit_us = f"  {way.value}", None if case.is_request else PROMISED_US.get(way)
        promised = None if limit_us is None else f"at most {limit_us:.0f} µs more" if limit_us else "nothing"
        if way not in pairs:
            yield Line(what, NO_REDIS, promised)
            continue
        more = _more(pairs[way], _service)
        if way is Way.OFF_BESIDE and case.is_lone:  # a sign of life each two seconds
            limit_us = promised = None
        base_us = statistics.median(pair.base.service_us for pair in pairs[way])
        measured = f"{more} ({1 + more.us / base_us:.2f} times){_elsewhere(case, way, pairs[way])}"
        if promised is None or limit_us is None:
            yield figure(what, measured)
        else:
            is_kept = more.is_within(limit_us)
            yield Line(what, measured + ("; too noisy to tell" if is_kept is None else ""), promised, is_kept)


def _elsewhere(case: Case, way: Way, rounds: Sequence[Pair]) -> str:
    """Return what a way costs other processes than the one that generates."""
    told = ""
    if way is Way.REMOTE_JOINER:
        told = f"; its own replica {statistics.median(pair.own.replica_us for pair in rounds):.1f} µs"
    if way is Way.SHARED and not case.is_lone:
        told = f"; redis-server {statistics.median(pair.own.redis_us for pair in rounds):.1f} µs"
    elif way is Way.REMOTE_JOINER:
        told += f"; redis-server {_more(rounds, _redis)}"
    return told


def _more(rounds: Sequence[Pair], of: Callable[[Cost], float]) -> More:
    differences = [of(pair.own) - of(pair.base) for pair in rounds]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return More(statistics.median(differences), error)


def _service(cost: Cost) -> float:
    return cost.service_us


def _redis(cost: Cost) -> float:
    return cost.redis_us
