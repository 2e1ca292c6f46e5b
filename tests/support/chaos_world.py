"""What a storm knows besides its requests: the limits that the servers run under, what was done to them, their lag."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tests.support.chaos_plan import Plan

__all__ = ["Disturbance", "Limits", "Target", "World"]

# What two processes and a client on a busy machine may add to any time.
_SLACK_S: Final = 0.25
_USUAL_LAG_S: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds; what the servers are set to, short enough for every one of them to be reached."""

    queue_s: float = 1.0
    batch_queue_s: float = 2.0
    first_token_s: float = 0.8
    token_gap_s: float = 0.6
    reader_s: float = 1.0
    room_s: float = 1.0
    send_s: float = 1.0
    grace_s: float = 1.0
    floor_s: float = 0.005


class Target(Enum):
    """What a disturbance is done to."""

    SERVICE = "service"
    GATEWAY = "gateway"
    GATEWAY_WIRE = "connection of the gateway to the service"
    CLIENT_WIRE = "connection of relayed clients to the service"


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Something done to a target from one moment (time.monotonic) to another, until which it may be felt."""

    target: Target
    what: str
    from_s: float
    to_s: float

    def affects(self, plan: Plan, began_s: float, ended_s: float) -> bool:
        """Return whether a request of that time may feel it."""
        match self.target:
            case Target.SERVICE:
                is_in_the_way = True
            case Target.GATEWAY | Target.GATEWAY_WIRE:
                is_in_the_way = plan.way.is_http
            case Target.CLIENT_WIRE:
                is_in_the_way = plan.is_relayed
        return is_in_the_way and began_s <= self.to_s and ended_s >= self.from_s


@dataclass(slots=True)
class World:
    """Collects what happens; is asked what that explains."""

    limits: Limits = field(default_factory=Limits)
    disturbances: list[Disturbance] = field(default_factory=list)
    # When, and how much too late an answer or a timer was then; in the order of time.
    _lags: list[tuple[float, float]] = field(default_factory=list)

    def note_lag(self, at_s: float, lag_s: float) -> None:
        """Note that something took so much longer than it takes, up to this moment."""
        if lag_s > _USUAL_LAG_S:
            self._lags.append((at_s, lag_s))

    def slack_s(self, from_s: float, to_s: float) -> float:
        """Return how far times may be off that were measured between these moments: what lagged then, in all."""
        first = bisect_left(self._lags, (from_s, 0.0))
        last = bisect_left(self._lags, (to_s + _SLACK_S, 0.0))
        return _SLACK_S + sum(lag for _, lag in self._lags[first:last])

    def disturbed_by(self, plan: Plan, began_s: float, ended_s: float) -> list[Disturbance]:
        """Return what a request of that time may have felt."""
        return [one for one in self.disturbances if one.affects(plan, began_s, ended_s)]
