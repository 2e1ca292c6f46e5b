"""Service level objectives: which a generation met, and whether its trace is worth to be kept. Pure.

An objective is a promise to a caller who waits, so that batch requests have none.
A good generation meets every objective that is set; the rules stand in
docs/observability.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["ALL", "E2E", "KEEP_TRAILER", "TIMING_TRAILER", "TPOT", "TTFT", "Objectives", "keep_reason"]

TTFT: Final = "ttft"
TPOT: Final = "tpot"
E2E: Final = "e2e"
ALL: Final = "all"

# Trailing metadata by which a service tells its caller that this trace is slow, stalled or failed: the caller's own
# part belongs to it. On a cancel there are no trailers.
KEEP_TRAILER: Final = "headrace-trace-keep"
# Where the time went, in the syntax of HTTP's Server-Timing: of every call whose end the service could still tell.
TIMING_TRAILER: Final = "server-timing"

# Ends of which the server is the cause: whatever came before, the caller has no whole answer.
_FAILED: Final = frozenset({"deadline_exceeded", "backend_error", "internal_error", "drained"})
# Ends of which the caller is: what was promised until then counts, and nothing behind it.
_LEFT: Final = frozenset({"client_cancelled", "cancelled", "consumer_too_slow"})
# Refusals because of this server's own load; others are the caller's.
_OVERLOAD: Final = frozenset({"QUEUE_FULL", "QUEUE_TIMEOUT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Longest times that are good, seconds; None is no objective. `stall_s` is no promise, but is worth a trace."""

    ttft_s: float | None = 0.5
    tpot_s: float | None = 0.1
    e2e_s: float | None = None
    stall_s: float | None = 2.0

    def judge(
        self,
        outcome: str,
        *,
        reason: str | None = None,
        ttft_s: float | None,
        tpot_s: float | None,
        total_s: float,
    ) -> Mapping[str, bool]:
        """Return which objectives were met, by name; empty for a generation that says nothing about the server.

        `total_s` is how long the caller waited in all. `reason` is why it was refused
        or failed.
        """
        if outcome == "rejected":
            return dict.fromkeys(self._names(), False) if reason in _OVERLOAD else {}
        met: dict[str, bool] = {}
        failed, left = outcome in _FAILED, outcome in _LEFT
        if self.ttft_s is not None:
            if ttft_s is not None:
                met[TTFT] = ttft_s <= self.ttft_s
            elif failed:
                met[TTFT] = False
            elif left and total_s > self.ttft_s:
                met[TTFT] = False  # who leaves sooner has not waited too long
        if self.tpot_s is not None and tpot_s is not None:
            met[TPOT] = tpot_s <= self.tpot_s
        if self.e2e_s is not None:
            if failed or total_s > self.e2e_s:
                met[E2E] = False
            elif not left:
                met[E2E] = True
        if met or failed:
            met[ALL] = not failed and all(met.values())
        return met

    def _names(self) -> list[str]:
        return [TTFT, *([] if self.e2e_s is None else [E2E]), ALL] if self.ttft_s is not None else [ALL]

    @property
    def edges(self) -> Mapping[str, float]:
        """Objectives by name, to be edges of the histograms: a bucket then counts exactly the good ones."""
        pairs = ((TTFT, self.ttft_s), (TPOT, self.tpot_s), (E2E, self.e2e_s), ("stall", self.stall_s))
        return {name: value for name, value in pairs if value is not None}


def keep_reason(met: Mapping[str, bool], *, failed: bool, max_gap_s: float, stall_s: float | None) -> str | None:
    """Return why a trace is kept although the sampler dropped it: failed, slow or stalled; None if it is not."""
    if failed:
        return "failed"
    if False in met.values():
        return "slow"
    return "stalled" if stall_s is not None and max_gap_s > stall_s else None
