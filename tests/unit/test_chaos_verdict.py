"""A storm's verdicts and its ledger find every planted fault, and none where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.v1 import generation_pb2 as gen
from tests.support.chaos_fates import fate_problem
from tests.support.chaos_ledger import (
    Line,
    calls_in,
    count_problems,
    gateway_problems,
    ledger_problems,
    stray_lines,
    unexpected_lines,
)
from tests.support.chaos_plan import CancelByName, How, Leave, Moment, Pace, Plan, Way
from tests.support.chaos_script import Script
from tests.support.chaos_verdict import End, Seen, verdict
from tests.support.chaos_world import Disturbance, Target, World

AT_ONCE = Moment(seconds=0.1)
SLOW = Pace(every=1, pause_s=0.5, times=2)
CANCEL = CancelByName(when=AT_ONCE)


def plan(**members: Any) -> Plan:
    script = Script(pieces=(b"<0>",), output_tokens=8, limit=100, **members.pop("script", {}))
    return Plan(seed=1, number=2, script=script, **({"way": Way.RAW} | members))


def seen(end: End = End.OK, took_s: float = 0.5, **members: Any) -> Seen:
    if end is End.OK:
        members = {"is_started": True, "is_complete": True, "finishes": ["STOP"], "output_tokens": 8} | members
    return Seen(began_s=100.0, ended_s=100.0 + took_s, end=end, **members)


def failed(status: str, reason: str | None = None, took_s: float = 0.5, **members: Any) -> Seen:
    return seen(End.FAILED, took_s, status=status, reason=reason, **members)


def busy(reason: str, status: str = "RESOURCE_EXHAUSTED", took_s: float = 0.5, **members: Any) -> Seen:
    return failed(status, reason, took_s, **{"retry_after_s": 1.0, "pushback": "1000", **members})


def begun(status: str, reason: str, took_s: float = 0.5, **members: Any) -> Seen:
    given = {"is_started": True, "events": 3, "metadata": {"lastSequence": "3"}, "pushback": "-1"}
    return failed(status, reason, took_s, **(given | members))


def disturbed(target: Target) -> World:
    return World(disturbances=[Disturbance(target=target, what="reset", from_s=99, to_s=101)])


CALM = World()
STRANGERS = plan(behaviour=CancelByName(when=AT_ONCE, is_stranger=True))
RIGHT: dict[str, tuple[Plan, Seen, World]] = {
    "it ends well": (plan(), seen(), CALM),
    "a full line": (plan(), busy("QUEUE_FULL"), CALM),
    "too long in the line": (plan(), busy("QUEUE_TIMEOUT", took_s=1.01), CALM),
    "a deadline in the line": (plan(deadline_s=0.5), failed("DEADLINE_EXCEEDED", "DEADLINE_IN_QUEUE"), CALM),
    "a deadline at work": (plan(deadline_s=0.5), begun("DEADLINE_EXCEEDED", "DEADLINE_IN_DECODE"), CALM),
    "a deadline of the client's own": (plan(deadline_s=0.5), failed("DEADLINE_EXCEEDED"), CALM),
    "a deadline that is too short": (
        plan(deadline_s=0.002),
        failed("DEADLINE_EXCEEDED", "DEADLINE_TOO_SHORT", 0.01),
        CALM,
    ),
    "a script that fails": (
        plan(script={"fault": "error", "fault_after": 3}),
        begun("INTERNAL", "BACKEND_ERROR"),
        CALM,
    ),
    "a script that hangs": (
        plan(script={"fault": "hang", "fault_after": 3}),
        begun("UNAVAILABLE", "TOKEN_GAP_TIMEOUT"),
        CALM,
    ),
    "a slow prefill": (plan(script={"prefill_ms": 1500}), failed("UNAVAILABLE", "FIRST_TOKEN_TIMEOUT", 1), CALM),
    "a slow reader": (plan(pace=SLOW), begun("RESOURCE_EXHAUSTED", "CONSUMER_TOO_SLOW", 2), CALM),
    "a cancel by name": (
        plan(behaviour=CANCEL),
        seen(finishes=["CANCELLED"], left_s=100.1, cancel_state="RUNNING"),
        CALM,
    ),
    "a stranger's cancel": (STRANGERS, seen(left_s=100.1, cancel_state="GENERATION_NOT_FOUND"), CALM),
    "a time limit": (plan(time_limit_s=0.45), seen(finishes=["TIME_LIMIT"]), CALM),
    "a client that leaves": (plan(behaviour=Leave(how=How.RESET, when=AT_ONCE)), seen(End.LEFT), CALM),
    "a restart": (plan(), busy("DRAINING", "UNAVAILABLE"), disturbed(Target.SERVICE)),
    "a broken connection": (plan(is_relayed=True), failed("UNAVAILABLE"), disturbed(Target.CLIENT_WIRE)),
    "a killed gateway": (plan(way=Way.STREAM), seen(End.CUT), disturbed(Target.GATEWAY)),
    "a full line over HTTP": (
        plan(way=Way.WHOLE),
        seen(End.REFUSED, status="503", code="server_is_overloaded", retry_after_s=1),
        CALM,
    ),
    "an error event": (
        plan(way=Way.STREAM, script={"fault": "error"}),
        seen(End.ERROR_EVENT, status="200", code="backend_error"),
        CALM,
    ),
}
WRONG: dict[str, tuple[Plan, Seen, World]] = {
    "it hangs": (plan(), seen(End.HUNG), CALM),
    "it cannot be read": (plan(), seen(End.BROKEN), disturbed(Target.SERVICE)),
    "it is not complete": (plan(), seen(is_complete=False), CALM),
    "its text is wrong": (plan(), seen(problems=["text"]), CALM),
    "it is late": (plan(deadline_s=0.1), seen(took_s=0.5), CALM),
    "a failure that nobody asked for": (plan(), begun("INTERNAL", "BACKEND_ERROR"), CALM),
    "a failure of another kind": (plan(script={"fault": "unavailable"}), begun("INTERNAL", "BACKEND_ERROR"), CALM),
    "a reason with another status": (plan(), busy("QUEUE_FULL", "UNAVAILABLE"), CALM),
    "a reason that is unknown": (plan(), begun("INTERNAL", "SURPRISE"), CALM),
    "no reason": (plan(), failed("UNAVAILABLE"), CALM),
    "no reason, and a break elsewhere": (plan(), failed("UNAVAILABLE"), disturbed(Target.CLIENT_WIRE)),
    "a full line behind output": (plan(), busy("QUEUE_FULL", is_started=True), CALM),
    "a full line without a time": (plan(), busy("QUEUE_FULL", retry_after_s=None), CALM),
    "too early in the line": (plan(), busy("QUEUE_TIMEOUT", took_s=0.5), CALM),
    "interactive patience for batch": (plan(is_batch=True), busy("QUEUE_TIMEOUT", took_s=1.01), CALM),
    "a hang that ends with the deadline": (plan(), failed("DEADLINE_EXCEEDED", took_s=20), CALM),
    "an early deadline": (plan(deadline_s=3), begun("DEADLINE_EXCEEDED", "DEADLINE_IN_DECODE"), CALM),
    "an early deadline of the client's own": (plan(deadline_s=3), failed("DEADLINE_EXCEEDED"), CALM),
    "a hopeless deadline that is generous": (plan(), failed("DEADLINE_EXCEEDED", "DEADLINE_TOO_SHORT"), CALM),
    "a stall that was none": (plan(), begun("UNAVAILABLE", "TOKEN_GAP_TIMEOUT"), CALM),
    "a slow reader that was none": (plan(), begun("RESOURCE_EXHAUSTED", "CONSUMER_TOO_SLOW"), CALM),
    "an event that was lost": (
        plan(script={"fault": "error"}),
        begun("INTERNAL", "BACKEND_ERROR", metadata={"lastSequence": "4"}),
        CALM,
    ),
    "no last sequence": (plan(script={"fault": "error"}), begun("INTERNAL", "BACKEND_ERROR", metadata={}), CALM),
    "a retry of what has begun": (
        plan(script={"fault": "error"}),
        begun("INTERNAL", "BACKEND_ERROR", pushback="1000"),
        CALM,
    ),
    "a cancel that nobody asked for": (plan(), seen(finishes=["CANCELLED"]), CALM),
    "a stranger's cancel that worked": (
        STRANGERS,
        seen(finishes=["CANCELLED"], left_s=100.1, cancel_state="GENERATION_NOT_FOUND"),
        CALM,
    ),
    "a stranger who is told of it": (STRANGERS, seen(left_s=100.1, cancel_state="RUNNING"), CALM),
    "a cancel that finds nothing": (
        plan(behaviour=CANCEL),
        seen(left_s=100.1, cancel_state="GENERATION_NOT_FOUND"),
        CALM,
    ),
    "a cancel that is late": (
        plan(behaviour=CANCEL),
        seen(took_s=2, finishes=["CANCELLED"], left_s=100.1, cancel_state="RUNNING"),
        CALM,
    ),
    "a time limit that is early": (plan(time_limit_s=2), seen(finishes=["TIME_LIMIT"]), CALM),
    "a time limit that nobody set": (plan(), seen(finishes=["TIME_LIMIT"]), CALM),
    "a time limit that is late": (plan(time_limit_s=0.5), seen(finishes=["TIME_LIMIT"], took_s=2), CALM),
    "draining without a restart": (plan(), busy("DRAINING", "UNAVAILABLE"), CALM),
    "a cut that nobody made": (plan(way=Way.STREAM), seen(End.CUT), CALM),
    "a cut elsewhere": (plan(way=Way.STREAM), seen(End.CUT), disturbed(Target.CLIENT_WIRE)),
    "an HTTP code that is unknown": (plan(way=Way.WHOLE), seen(End.REFUSED, status="500", code="surprise"), CALM),
    "a 500 that nobody asked for": (plan(way=Way.WHOLE), seen(End.REFUSED, status="500"), CALM),
    "overloaded without retry-after": (
        plan(way=Way.WHOLE),
        seen(End.REFUSED, status="503", code="server_is_overloaded"),
        CALM,
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_the_plan_explains_is_no_problem(case: str) -> None:
    assert verdict(*RIGHT[case]) == []


@pytest.mark.parametrize("case", WRONG)
def test_what_nothing_explains_is_a_problem(case: str) -> None:
    assert verdict(*WRONG[case])


def test_lags_that_were_measured_excuse_as_much_lateness_at_their_time_alone() -> None:
    world = World()
    world.note_lag(50.0, 2.0)
    world.note_lag(100.1, 0.3)
    world.note_lag(100.2, 0.1)
    assert verdict(plan(deadline_s=0.1), seen(took_s=0.7), world) == []
    assert verdict(plan(deadline_s=0.1), seen(took_s=0.8), world)


def line(**fields: Any) -> Line:
    usual = {"logger": "headrace.request", "request_id": "chaos-1-2", "generation_id": "gen_1", "outcome": "completed"}
    return {**usual, "status": "OK", "reason": None, "output_tokens": 8, "priority": "interactive"} | fields


CLIENT = plan(way=Way.ASYNCIO)
REFUSED = line(generation_id=None, outcome="drained", status="UNAVAILABLE", output_tokens=None)
IN_ORDER: dict[str, tuple[Plan, Seen, list[Line]]] = {
    "one call": (plan(), seen(), [line()]),
    "a call that never arrived": (plan(), failed("UNAVAILABLE"), []),
    "a second try": (CLIENT, seen(), [REFUSED, line()]),
    "a failure": (
        plan(),
        begun("INTERNAL", "BACKEND_ERROR"),
        [line(outcome="backend_error", status="INTERNAL", reason="BACKEND_ERROR")],
    ),
    "a cancel by name": (plan(), seen(finishes=["CANCELLED"]), [line(outcome="cancelled")]),
    "a client that left": (plan(), seen(End.LEFT), [line(outcome="client_cancelled", status="CANCELLED")]),
    "over HTTP": (
        plan(way=Way.WHOLE),
        seen(End.REFUSED, status="500", code="backend_error"),
        [line(outcome="backend_error", status="INTERNAL", reason="BACKEND_ERROR")],
    ),
}
OUT_OF_ORDER: dict[str, tuple[Plan, Seen, list[Line]]] = {
    "no line": (plan(), seen(), []),
    "two lines": (plan(), seen(), [line(), line(generation_id="gen_2")]),
    "run twice": (CLIENT, seen(), [line(generation_id="gen_2"), line()]),
    "one generation with two lines": (CLIENT, seen(), [REFUSED, line(), line()]),
    "a line of nobody": (plan(), seen(), [line(), line(request_id="chaos-1-3", generation_id="gen_2")]),
    "another reason": (
        plan(),
        begun("INTERNAL", "BACKEND_ERROR"),
        [line(outcome="backend_error", status="UNAVAILABLE", reason="BACKEND_UNAVAILABLE")],
    ),
    "another end": (plan(), seen(), [line(outcome="client_cancelled", status="CANCELLED")]),
    "a cancel that is called a completion": (plan(), seen(finishes=["CANCELLED"]), [line()]),
    "an outcome that does not go with its status": (plan(), seen(), [line(outcome="backend_error")]),
    "another count": (plan(), seen(), [line(output_tokens=9)]),
    "a client that never left": (
        plan(),
        failed("UNAVAILABLE"),
        [line(outcome="client_cancelled", status="CANCELLED")],
    ),
    "another code over HTTP": (plan(way=Way.WHOLE), seen(End.REFUSED, status="500", code="backend_error"), [line()]),
    "another class": (plan(), seen(), [line(priority="batch")]),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_calls_that_are_accounted_for_once_are_no_problem(case: str) -> None:
    asked, came, lines = IN_ORDER[case]
    assert ledger_problems({asked.request_id: (asked, came)}, lines, CALM) == {}


@pytest.mark.parametrize("case", OUT_OF_ORDER)
def test_calls_that_are_not_accounted_for_once_are_a_problem(case: str) -> None:
    asked, came, lines = OUT_OF_ORDER[case]
    assert ledger_problems({asked.request_id: (asked, came)}, lines, CALM)


def test_an_answer_over_http_has_one_line_in_the_log_of_the_gateway_with_its_status() -> None:
    http, answered = plan(way=Way.WHOLE), seen(status="200")
    access = {"logger": "gateway.requests", "request_id": http.request_id, "status": 200}
    asked = {http.request_id: (http, answered)}
    assert gateway_problems(asked, [access], CALM) == {}
    assert gateway_problems(asked, [access, access], CALM)
    assert gateway_problems(asked, [{**access, "status": 500}], CALM)
    assert gateway_problems(asked, [], CALM)
    assert gateway_problems(asked, [], disturbed(Target.GATEWAY)) == {}


def test_what_is_no_line_of_the_log_is_stray() -> None:
    assert stray_lines('{"level": "INFO"}\nE0000 chttp2: bad\n') == ["E0000 chttp2: bad"]


def fate(state: str = "COMPLETED", *, tokens: int = 8, last: int = 10, **fields: Any) -> gen.GetGenerationResponse:
    given = {"model": "wide", "priority": gen.PRIORITY_INTERACTIVE} | fields
    answer = gen.GetGenerationResponse(state=f"GENERATION_STATE_{state}", last_sequence=last, **given)
    answer.usage.output_token_count = tokens
    return answer


def test_what_a_service_remembers_has_to_be_what_the_client_saw() -> None:
    well = seen(events=10)
    assert fate_problem(plan(), well, fate()) is None
    for wrong in (fate("RUNNING"), fate("CANCELLED"), fate(tokens=9), fate(last=9), fate(model="narrow")):
        assert fate_problem(plan(), well, wrong)
    assert fate_problem(plan(is_batch=True), well, fate())
    failed_there = begun("INTERNAL", "BACKEND_ERROR")
    assert fate_problem(plan(), failed_there, fate("FAILED", failure_reason="ERROR_REASON_BACKEND_ERROR")) is None
    assert fate_problem(plan(), failed_there, fate("FAILED", failure_reason="ERROR_REASON_BACKEND_UNAVAILABLE"))
    assert fate_problem(plan(), failed_there, fate())
    assert fate_problem(plan(), seen(End.LEFT), fate("CANCELLED")) is None
    assert fate_problem(plan(), seen(End.LEFT), fate("QUEUED"))


def test_counts_have_to_be_those_of_the_log_for_every_outcome() -> None:
    calls = [line(), line(), line(outcome="rejected")]
    assert count_problems(calls, {"completed": 2, "rejected": 1}) == []
    assert count_problems(calls, {"completed": 3})
    assert count_problems(calls, {"completed": 2, "rejected": 1, "drained": 1})
    assert count_problems(calls, {"completed": 2})


def test_only_lines_of_generate_calls_are_calls() -> None:
    refused = {"logger": "headrace.request", "method": "headrace.v1.GenerationService/Generate"}
    other = {"logger": "headrace.request", "method": "headrace.v1.GenerationService/CancelGeneration"}
    assert calls_in([line(), refused, other, {"logger": "headrace.service"}]) == [line(), refused]


def test_warnings_are_expected_of_the_scripts_that_ask_for_them_alone() -> None:
    fails, crashes = plan(script={"fault": "error"}), plan(script={"fault": "crash"})
    warning = {"level": "WARNING", "request_id": "chaos-1-2", "message": "BACKEND_ERROR: scripted: line 1"}
    error = {
        "level": "ERROR",
        "logger": "headrace.service",
        "request_id": "chaos-1-2",
        "message": "unexpected failure",
    }
    for asked, right, wrong in ((fails, warning, error), (crashes, error, warning)):
        assert unexpected_lines([right], {asked.request_id: (asked, seen())}) == []
        assert unexpected_lines([wrong], {asked.request_id: (asked, seen())}) == [wrong]
    assert unexpected_lines([{"level": "INFO"}], {}) == []
    assert unexpected_lines([{"level": "ERROR", "message": "x"}], {}) != []
