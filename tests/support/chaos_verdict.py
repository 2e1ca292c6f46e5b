"""What came of a request, and whether its plan, the limits and the disturbances explain it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tests.support.chaos_plan import GENEROUS_S, CancelByName, How, Leave, Plan
from tests.support.chaos_world import World

__all__ = ["REASONS_BY_CODE", "End", "Seen", "verdict"]

# The word of the HTTP error object -> the reasons of the service behind it; None is the gateway's own.
REASONS_BY_CODE: Final[Mapping[str | None, frozenset[str | None]]] = {
    "server_is_overloaded": frozenset({"QUEUE_FULL"}),
    "queue_timeout": frozenset({"QUEUE_TIMEOUT"}),
    "deadline_exceeded": frozenset({"DEADLINE_TOO_SHORT", "DEADLINE_IN_QUEUE", "DEADLINE_IN_DECODE", None}),
    "backend_unavailable": frozenset({"BACKEND_UNAVAILABLE"}),
    "backend_error": frozenset({"BACKEND_ERROR"}),
    "first_token_timeout": frozenset({"FIRST_TOKEN_TIMEOUT"}),
    "token_gap_timeout": frozenset({"TOKEN_GAP_TIMEOUT"}),
    "consumer_too_slow": frozenset({"CONSUMER_TOO_SLOW"}),
    "draining": frozenset({"DRAINING", None}),
    "model_not_ready": frozenset({"MODEL_NOT_READY"}),
    "cancelled": frozenset({None}),
    None: frozenset({"INTERNAL", None}),
}
_STATUS_BY_REASON: Final = {
    "QUEUE_FULL": "RESOURCE_EXHAUSTED",
    "QUEUE_TIMEOUT": "RESOURCE_EXHAUSTED",
    "CONSUMER_TOO_SLOW": "RESOURCE_EXHAUSTED",
    "DEADLINE_TOO_SHORT": "DEADLINE_EXCEEDED",
    "DEADLINE_IN_QUEUE": "DEADLINE_EXCEEDED",
    "DEADLINE_IN_DECODE": "DEADLINE_EXCEEDED",
    "FIRST_TOKEN_TIMEOUT": "UNAVAILABLE",
    "TOKEN_GAP_TIMEOUT": "UNAVAILABLE",
    "BACKEND_UNAVAILABLE": "UNAVAILABLE",
    "DRAINING": "UNAVAILABLE",
    "MODEL_NOT_READY": "UNAVAILABLE",
    "BACKEND_ERROR": "INTERNAL",
    "INTERNAL": "INTERNAL",
}
_OVERLOADED: Final = frozenset({"server_is_overloaded", "queue_timeout"})
_BUSY: Final = frozenset({"QUEUE_FULL", "QUEUE_TIMEOUT", "DRAINING", "MODEL_NOT_READY"})
_FAULTS: Final = {"BACKEND_ERROR": ("error",), "BACKEND_UNAVAILABLE": ("unavailable", "cut"), "INTERNAL": ("crash",)}
# A deadline is a little early on the wire, and the service ends a margin before it: 5 %, at most 50 ms.
_EARLY_S: Final = 0.08
# What a reader who paused finds, it has to read and check.
_BACKLOG_S: Final = 1.0
# A lag that makes even a generous deadline pass.
_LOST_S: Final = 8.0

# From CancelGeneration to the end of its stream.
_STOP_S: Final = 0.5
_CANCEL_STATES: Final = frozenset({"QUEUED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"})


class End(Enum):
    """How a request ended, as its client saw it."""

    OK = "ok"
    FAILED = "status"  # gRPC: a status that is not OK
    REFUSED = "error document"  # HTTP: a status that is not 200
    ERROR_EVENT = "error event"
    LEFT = "left"
    CUT = "cut"
    NO_CONNECTION = "no connection"
    HUNG = "hung"
    BROKEN = "broken"  # what came is against the protocol, or the client failed


@dataclass(slots=True, kw_only=True)
class Seen:
    """One request as its client saw it. Times are time.monotonic(); `left_s` when the client did what its plan says.

    `status` is a gRPC status or an HTTP one, `reason` that of the ErrorInfo, `code` that of the HTTP error object.
    `problems` are those of the answer's content.
    """

    began_s: float
    ended_s: float = 0.0
    end: End = End.HUNG
    status: str = ""
    reason: str | None = None
    code: str | None = None
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    pushback: str | None = None
    events: int = 0
    queued: int = 0
    is_started: bool = False
    is_complete: bool = False
    finishes: list[str | None] = field(default_factory=list)
    output_tokens: int | None = None
    generation_id: str = ""
    left_s: float | None = None
    cancel_state: str | None = None  # what CancelGeneration answered: a state, or a reason
    problems: list[str] = field(default_factory=list)

    @property
    def is_from_service(self) -> bool:
        """Whether what came proves that the service had the call."""
        return self.is_started or self.queued > 0 or self.reason is not None or bool(self.generation_id)

    def __str__(self) -> str:
        told = [f"{self.end.value} {self.status} {self.reason or self.code or ''}".strip()]
        told.append(f"after {self.ended_s - self.began_s:.3f} s and {self.events} events, choices {self.finishes}")
        told += [self.message[:300]] if self.message else []
        told += [] if self.left_s is None else [f"acted at {self.left_s - self.began_s:.3f} s"]
        told += [] if self.cancel_state is None else [f"CancelGeneration: {self.cancel_state}"]
        told += [f"metadata {dict(self.metadata)}"] if self.metadata else []
        return ", ".join(told)


def verdict(plan: Plan, seen: Seen, world: World) -> list[str]:
    """Return everything about the end of a request that nothing explains."""
    problems = list(seen.problems)
    slack_s = world.slack_s(seen.began_s, seen.ended_s)
    took_s = seen.ended_s - seen.began_s
    has_left = seen.end is End.LEFT
    if seen.end is End.HUNG:
        return [*problems, "no end: it hangs"]
    if seen.end is End.BROKEN:
        return [*problems, f"what came cannot be read: {seen.message}"]
    if not has_left and took_s > plan.deadline_s + _reading_s(plan) + slack_s:
        problems.append(f"the end came {took_s - plan.deadline_s:.3f} s after the deadline (slack {slack_s:.3f} s)")
    problems += _finish_problems(plan, seen, slack_s)
    problems += _cancel_problems(plan, seen, world, slack_s)
    match seen.end:
        case End.OK if not seen.is_complete:
            problems.append("it ended well without being complete")
        case End.FAILED:
            problems += _failure_problems(plan, seen, world, slack_s)
        case End.REFUSED | End.ERROR_EVENT:
            problems += _http_problems(plan, seen, world, slack_s)
        case End.CUT | End.NO_CONNECTION if not _may_be_cut(plan, seen, world):
            problems.append(f"the connection was lost ({seen.end.value}), and nobody did that")
        case _:
            pass
    return problems


def _reading_s(plan: Plan) -> float:
    """Return how long the client itself may keep the end from itself."""
    return plan.pace.total_s + _BACKLOG_S if plan.pace is not None else 0.0


def _finish_problems(plan: Plan, seen: Seen, slack_s: float) -> list[str]:
    found = []
    took_s = seen.ended_s - seen.began_s
    finishes = set(seen.finishes)
    if "CANCELLED" in finishes and not _is_cancelled(plan, seen):
        found.append("finish reason CANCELLED, though nobody cancelled it")
    if "TIME_LIMIT" in finishes and (plan.time_limit_s is None or took_s < plan.time_limit_s - _EARLY_S):
        found.append(f"finish reason TIME_LIMIT after {took_s:.3f} s")
    if plan.time_limit_s is not None and seen.end is End.OK and isinstance(plan.behaviour, Leave) is False:
        late_s = took_s - _reading_s(plan) - max(plan.time_limit_s, 0)
        if finishes == {"TIME_LIMIT"} and late_s > slack_s + 0.3:
            found.append(f"finish reason TIME_LIMIT {late_s:.3f} s after the limit")
    return found


def _cancel_problems(plan: Plan, seen: Seen, world: World, slack_s: float) -> list[str]:
    """Check what CancelGeneration said, and that the end came at once."""
    if not isinstance(plan.behaviour, CancelByName) or seen.left_s is None:
        return []
    if world.disturbed_by(plan, seen.left_s, seen.ended_s):
        return []
    state, is_stranger = seen.cancel_state, plan.behaviour.is_stranger
    if is_stranger != (state == "GENERATION_NOT_FOUND") or (not is_stranger and state not in _CANCEL_STATES):
        return [f"CancelGeneration of {'a stranger' if is_stranger else 'its own caller'} was answered {state}"]
    if not is_stranger and seen.ended_s - seen.left_s > _STOP_S + _reading_s(plan) + slack_s:
        return [f"the end came {seen.ended_s - seen.left_s:.3f} s after the cancel (slack {slack_s:.3f} s)"]
    return []


def _failure_problems(plan: Plan, seen: Seen, world: World, slack_s: float) -> list[str]:
    reason = seen.reason
    if reason is None:
        return [] if _is_library_status(plan, seen, world, slack_s) else [f"status {seen.status} that nothing explains"]
    found = []
    if seen.status != _STATUS_BY_REASON.get(reason):
        found.append(f"{reason} with the status {seen.status}")
    if not _explains(reason, plan, seen, world, slack_s):
        found.append(f"{reason} that nothing explains")
    told = seen.metadata.get("lastSequence")
    has_output = seen.is_started or seen.queued > 0
    if (
        has_output
        and told is None
        and reason not in _BUSY
        and reason not in ("DEADLINE_IN_QUEUE", "DEADLINE_TOO_SHORT")
    ):
        found.append(f"{reason} behind {seen.events} events without lastSequence")
    if told is not None and told != str(seen.events):
        found.append(f"lastSequence {told} behind event {seen.events}")
    if has_output and seen.pushback != "-1":
        found.append(f"{reason} behind output with grpc-retry-pushback-ms {seen.pushback}")
    is_pushed_back = seen.retry_after_s is not None and seen.pushback == str(round(seen.retry_after_s * 1000))
    if reason in ("QUEUE_FULL", "QUEUE_TIMEOUT", "DRAINING") and not has_output and not is_pushed_back:
        found.append(f"{reason} with RetryInfo {seen.retry_after_s} and pushback {seen.pushback}")
    return found


def _http_problems(plan: Plan, seen: Seen, world: World, slack_s: float) -> list[str]:
    reasons = REASONS_BY_CODE.get(seen.code)
    if reasons is None:
        return [f"error code {seen.code} ({seen.status}) that nobody knows"]
    found = []
    is_explained = any(
        _explains(reason, plan, seen, world, slack_s)
        if reason is not None
        else _is_gateways_own(plan, seen, world, slack_s)
        for reason in reasons
    )
    if not is_explained:
        found.append(f"error {seen.code} ({seen.status}) that nothing explains")
    if seen.end is End.REFUSED and seen.code in _OVERLOADED and seen.retry_after_s is None:
        found.append(f"{seen.code} without retry-after")
    return found


def _explains(reason: str, plan: Plan, seen: Seen, world: World, slack_s: float) -> bool:
    """Return whether the service may say this about this request."""
    limits, script, took_s = world.limits, plan.script, seen.ended_s - seen.began_s
    match reason:
        case "QUEUE_FULL":
            return not seen.is_started
        case "QUEUE_TIMEOUT":
            longest_s = limits.batch_queue_s if plan.is_batch else limits.queue_s
            return not seen.is_started and took_s >= longest_s - _EARLY_S
        case "DEADLINE_TOO_SHORT":
            return not seen.is_started and plan.deadline_s < 10 * limits.queue_s
        case "DEADLINE_IN_QUEUE":
            is_limit = plan.time_limit_s is not None and took_s >= plan.time_limit_s - _EARLY_S
            return not seen.is_started and (is_limit or _is_past(plan, seen, slack_s))
        case "DEADLINE_IN_DECODE":
            return _is_past(plan, seen, slack_s)
        case "FIRST_TOKEN_TIMEOUT":
            return script.first_silence_s >= limits.first_token_s - slack_s
        case "TOKEN_GAP_TIMEOUT":
            return script.gap_s >= limits.token_gap_s - slack_s
        case "CONSUMER_TOO_SLOW":
            is_slow = plan.pace is not None or slack_s > min(limits.reader_s, limits.room_s)
            return is_slow or bool(world.disturbed_by(plan, seen.began_s, seen.ended_s))
        case "DRAINING" | "MODEL_NOT_READY":
            return bool(world.disturbed_by(plan, seen.began_s, seen.ended_s))
        case "BACKEND_ERROR" | "BACKEND_UNAVAILABLE" | "INTERNAL":
            return script.fault in _FAULTS[reason]
    return False


def _is_gateways_own(plan: Plan, seen: Seen, world: World, slack_s: float) -> bool:
    """Return whether the gateway may say this by itself."""
    if seen.code == "deadline_exceeded":
        return _is_past(plan, seen, slack_s)
    if seen.code == "cancelled" and _is_cancelled(plan, seen):
        return True
    return bool(world.disturbed_by(plan, seen.began_s, seen.ended_s))


def _is_past(plan: Plan, seen: Seen, slack_s: float) -> bool:
    """Return whether the deadline may have passed. A generous one does not, unless something hangs."""
    is_hanging = plan.deadline_s >= GENEROUS_S and slack_s < _LOST_S
    is_late = seen.ended_s - seen.began_s >= min(plan.deadline_s * 0.94, plan.deadline_s - _EARLY_S)
    return is_late and not is_hanging


def _is_library_status(plan: Plan, seen: Seen, world: World, slack_s: float) -> bool:
    """Return whether a status without a reason may come: from the client's own library, or of a broken connection."""
    if seen.status == "DEADLINE_EXCEEDED":
        return _is_past(plan, seen, slack_s)
    if seen.status in ("UNAVAILABLE", "CANCELLED", "INTERNAL", "UNKNOWN"):
        return bool(world.disturbed_by(plan, seen.began_s, seen.ended_s))
    return False


def _may_be_cut(plan: Plan, seen: Seen, world: World) -> bool:
    if world.disturbed_by(plan, seen.began_s, seen.ended_s):
        return True
    # Whoever closes its half, or takes nothing for too long, is given up without a word.
    is_half_closed = isinstance(plan.behaviour, Leave) and plan.behaviour.how is How.HALF_CLOSE
    return plan.pace is not None or (is_half_closed and seen.left_s is not None)


def _is_cancelled(plan: Plan, seen: Seen) -> bool:
    return isinstance(plan.behaviour, CancelByName) and not plan.behaviour.is_stranger and seen.left_s is not None
