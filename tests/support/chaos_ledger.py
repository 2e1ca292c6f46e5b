"""Every call accounted for exactly once: the service's log against what its clients saw, and its own counts. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tests.support.chaos_plan import Plan, Way
from tests.support.chaos_verdict import REASONS_BY_CODE, End, Seen
from tests.support.chaos_world import Target, World

__all__ = [
    "Line",
    "calls_in",
    "count_problems",
    "gateway_problems",
    "ledger_problems",
    "stray_lines",
    "unexpected_lines",
]

Line = Mapping[str, Any]

_REQUESTS: Final = "headrace.request"
_ACCESS: Final = "gateway.requests"
_GENERATE: Final = "/Generate"
# Of a gateway that is told to end while a request runs longer than its grace.
_END_OF_GRACE: Final = ("gateway.server", "the grace is over")
# The client's retries, and gRPC's transparent one.
_MOST_CALLS: Final = 4
# Refused before anything was sent, in words that let a client try again; or cut off before anything had come.
_TRIED_AGAIN: Final = "UNAVAILABLE"
_CUT_OFF: Final = "CANCELLED"
# Outcome that the log gives -> statuses with it.
_STATUSES: Final[Mapping[str, frozenset[str]]] = {
    "completed": frozenset({"OK"}),
    "cancelled": frozenset({"OK"}),
    "client_cancelled": frozenset({"CANCELLED"}),
    "deadline_exceeded": frozenset({"DEADLINE_EXCEEDED"}),
    "rejected": frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"}),
    "backend_error": frozenset({"INTERNAL", "UNAVAILABLE"}),
    "backend_timeout": frozenset({"UNAVAILABLE"}),
    "drained": frozenset({"UNAVAILABLE"}),
    "consumer_too_slow": frozenset({"RESOURCE_EXHAUSTED"}),
    "internal_error": frozenset({"INTERNAL"}),
}

_REASONS: Final = {"internal_error": "INTERNAL"}


def calls_in(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that tell the end of a Generate call."""
    return [
        line
        for line in lines
        if line.get("logger") == _REQUESTS
        and ("generation_id" in line or str(line.get("method", "")).endswith(_GENERATE))
    ]


def ledger_problems(
    asked: Mapping[str, tuple[Plan, Seen]], calls: Sequence[Line], world: World
) -> dict[str, list[str]]:
    """Return by request id what the log of all services does not account for, or twice."""
    found: dict[str, list[str]] = defaultdict(list)
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in calls:
        by_id[line["request_id"]].append(line)
    generations = Counter(line["generation_id"] for line in calls if line.get("generation_id"))
    for generation_id, times in generations.items():
        if times > 1:
            found[""].append(f"generation {generation_id} has {times} lines")
    for request_id in by_id.keys() - asked.keys():
        found[""].append(f"a line of a request that nobody sent: {request_id}")
    for request_id, (plan, seen) in asked.items():
        found[request_id] += _problems(plan, seen, by_id.get(request_id, []), world)
    return {request_id: problems for request_id, problems in found.items() if problems}


def _problems(plan: Plan, seen: Seen, lines: Sequence[Line], world: World) -> list[str]:
    found = []
    if not lines:
        return ["it reached the service and has no line in the log"] if seen.is_from_service else []
    most = 1 if plan.way is Way.RAW else _MOST_CALLS
    if len(lines) > most:
        found.append(f"{len(lines)} lines in the log")
    is_disturbed = bool(world.disturbed_by(plan, seen.began_s, seen.ended_s))
    may_try = (_TRIED_AGAIN, _CUT_OFF) if is_disturbed else (_TRIED_AGAIN,)
    found += [
        f"called again behind {line['outcome']} ({line['status']})"
        for line in lines[:-1]
        if line["status"] not in may_try
    ]
    found += [
        f"outcome {line['outcome']} with the status {line['status']}"
        for line in lines
        if line["status"] not in _STATUSES.get(line["outcome"], ())
    ]
    return found + _last_line_problems(plan, seen, lines[-1], world)


def _last_line_problems(plan: Plan, seen: Seen, line: Line, world: World) -> list[str]:
    found = []
    # What nobody foresaw gets its reason where it leaves the service, behind the log line.
    outcome, reason = line["outcome"], line.get("reason") or _REASONS.get(line["outcome"])
    told = f"the log says {outcome} {reason or ''}".strip()
    if seen.end is End.OK:
        is_cancelled = "CANCELLED" in seen.finishes
        if line["status"] != "OK" or (outcome == "cancelled") != is_cancelled:
            found.append(f"it ended well, with choices {seen.finishes}, and {told}")
        elif line.get("output_tokens") != seen.output_tokens:
            found.append(f"{seen.output_tokens} tokens, and the log has {line.get('output_tokens')}")
    elif seen.reason is not None and reason != seen.reason:
        found.append(f"its client was told {seen.reason}, and {told}")
    elif seen.end in (End.REFUSED, End.ERROR_EVENT):
        reasons = REASONS_BY_CODE.get(seen.code, frozenset())
        if None not in reasons and reason not in reasons:
            found.append(f"its client was told {seen.code}, and {told}")
    if outcome == "client_cancelled" and not _may_seem_to_leave(plan, seen, world):
        found.append(f"{told}, and it never left")
    if line.get("priority") not in (None, "batch" if plan.is_batch else "interactive"):
        found.append(f"the log says priority {line['priority']}")
    return found


def _may_seem_to_leave(plan: Plan, seen: Seen, world: World) -> bool:
    is_cut = seen.end in (End.CUT, End.NO_CONNECTION, End.LEFT, End.HUNG)
    is_late = seen.ended_s - seen.began_s >= 0.9 * plan.deadline_s - 0.1
    return is_cut or is_late or bool(world.disturbed_by(plan, seen.began_s, seen.ended_s))


def count_problems(calls: Sequence[Line], outcome_counts: Mapping[str, int]) -> list[str]:
    """Return what a service's own counts say otherwise than its log."""
    logged = Counter(line["outcome"] for line in calls)
    return [
        f"{outcome_counts.get(outcome, 0)} calls counted as {outcome}, and {logged[outcome]} logged"
        for outcome in sorted(logged.keys() | outcome_counts.keys())
        if logged[outcome] != outcome_counts.get(outcome, 0)
    ]


def gateway_problems(
    asked: Mapping[str, tuple[Plan, Seen]], lines: Iterable[Line], world: World
) -> dict[str, list[str]]:
    """Return by request id what the log of all gateways does not account for, or twice."""
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.get("logger") == _ACCESS:
            by_id[line["request_id"]].append(line)
    found: dict[str, list[str]] = {}
    for request_id, (plan, seen) in asked.items():
        own = by_id.get(request_id, [])
        is_killed = any(one.target is Target.GATEWAY for one in world.disturbed_by(plan, seen.began_s, seen.ended_s))
        is_answered = plan.way.is_http and seen.end in (End.OK, End.REFUSED, End.ERROR_EVENT)
        if len(own) > 1 or (is_answered and not own and not is_killed):
            found[request_id] = [f"{len(own)} lines in the log of the gateway"]
        elif is_answered and own and str(own[0]["status"]) != (seen.status or "200"):
            found[request_id] = [f"its client got {seen.status}, and the gateway logged {own[0]['status']}"]
    return found


def stray_lines(output: str) -> list[str]:
    """Return the lines of a process that are none of its log: of a library, or of the interpreter."""
    return [line for line in output.splitlines() if line and not line.startswith("{")]


def unexpected_lines(lines: Iterable[Line], asked: Mapping[str, tuple[Plan, Seen]]) -> list[Line]:
    """Return warnings and errors but those that a request's script asks for."""
    return [
        line
        for line in lines
        if line.get("level") in ("WARNING", "ERROR", "CRITICAL") and not _is_asked_for(line, asked)
    ]


def _is_asked_for(line: Line, asked: Mapping[str, tuple[Plan, Seen]]) -> bool:
    if (line.get("logger"), line.get("message")) == _END_OF_GRACE:
        return True
    plan = asked[line["request_id"]][0] if line.get("request_id") in asked else None
    fault = None if plan is None else plan.script.fault
    message = str(line.get("message", ""))
    if "scripted: " in message:
        return fault == "error"
    return fault == "crash" and line.get("logger") == "headrace.service" and "unexpected failure" in message
