"""What the bench concludes from what it saw: a verdict has to be able to be a bad one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench.calls import COMPLETED, QUEUE_FULL, QUEUE_TIMEOUT, Answer, Call
from bench.gauges import Load
from bench.lines import Line, document, quantiles
from bench.memory import Rss, steady, trend
from bench.overload.judge import judge
from bench.overload.plan import CAPACITY_PER_S, QUEUE_S, arrivals, phases
from bench.overload.run import Answered, Recording
from bench.probes import Probe
from bench.report import filled
from bench.soak import mix
from bench.streams.cases import cases

PAGES = Path(__file__).parents[2] / "docs"


def _noise(seconds: int, kib_per_min: float) -> list[tuple[float, float]]:
    chance = random.Random(3)
    return [(float(at_s), 80_000 + chance.gauss(0, 40) + kib_per_min * at_s / 60) for at_s in range(seconds)]


def test_memory_that_only_wavers_is_flat() -> None:
    line = trend(_noise(1800, 0.0))
    assert line.is_flat
    assert abs(line.slope) < 1


def test_memory_that_grows_is_not_flat_and_its_slope_is_told() -> None:
    line = trend(_noise(1800, 20.0))
    assert not line.is_flat
    assert line.slope == pytest.approx(20.0, abs=1.0)


def test_a_step_is_no_steady_growth_and_a_leak_is() -> None:
    flat, leaking = _noise(1800, 0.0), _noise(1800, 20.0)
    stepped = [(at_s, kib + (500 if at_s > 800 else 0)) for at_s, kib in flat]
    assert not trend(stepped).is_flat
    assert steady(stepped).is_flat
    assert not steady(leaking).is_flat
    assert steady(leaking).slope == pytest.approx(20.0, abs=8.0)
    assert steady([(at_s, kib + (500 if at_s > 800 else 0)) for at_s, kib in leaking]).slope > 10


def test_noise_that_wanders_widens_the_error() -> None:
    chance, level, steps = random.Random(5), 0.0, []
    for at_s in range(1800):
        level = 0.999 * level + chance.gauss(0, 4)
        steps.append((float(at_s), level))
    shuffled = [level for _, level in steps]
    chance.shuffle(shuffled)
    mixed = [(at_s, level) for (at_s, _), level in zip(steps, shuffled, strict=True)]
    assert trend(steps).error > 3 * trend(mixed).error


def test_quantiles_of_one_sample_are_that_sample() -> None:
    assert quantiles([7.0]).p99 == 7.0
    assert quantiles([]).count == 0


def test_the_same_seed_plans_the_same_calls_at_the_asked_rate() -> None:
    plan = phases(is_quick=False)
    calls = arrivals(plan)
    assert calls == arrivals(plan)
    full = plan[1]
    overload = [call for call in calls if call.phase == "overload"]
    assert all(full.begin_s <= call.at_s < full.end_s for call in overload)
    assert len(overload) / (full.end_s - full.begin_s) == pytest.approx(4 * CAPACITY_PER_S, rel=0.1)
    assert {call.call.wire for call in overload} == {"grpc", "http"}


def _recording() -> Recording:
    """A run in which everything is as promised."""
    plan = phases(is_quick=True)
    answered = []
    for number, arrival in enumerate(arrivals(plan)):
        answer = Answer(ttft_s=0.11, total_s=0.5, outcome=COMPLETED)
        if arrival.phase == "overload" and number % 3:
            answer = Answer(ttft_s=None, total_s=0.004, outcome=QUEUE_FULL)
        answered.append(Answered(arrival=arrival, sent_s=arrival.at_s, answer=answer))
    full = plan[1]
    return Recording(
        plan=plan,
        planned=len(answered),
        answered=answered,
        rss=[Rss(full.begin_s + step / 2, 80_000.0, 75_000.0) for step in range(12)],
        loads=[(20.0, Load())],
        probes=[Probe(kind=kind, at_s=full.begin_s, took_s=0.01, is_good=True) for kind in ("grpc", "http")],
        lags_s=[0.001],
        cpu_share={"service": 0.5},
    )


def _broken(recording: Recording) -> list[str]:
    return [line.what for line in judge(recording) if line.is_kept is False]


def test_a_run_in_which_everything_is_as_promised_breaks_nothing() -> None:
    assert _broken(_recording()) == []


def _instead(recording: Recording, answer: Answer, *, priority: str = "interactive") -> None:
    """Let one call of the overload end otherwise."""
    at = next(
        at
        for at, one in enumerate(recording.answered)
        if one.arrival.phase == "overload" and one.arrival.call.priority == priority
    )
    recording.answered[at] = replace(recording.answered[at], answer=answer)


def test_a_first_token_beyond_the_bound_is_a_broken_promise() -> None:
    recording = _recording()
    _instead(recording, Answer(ttft_s=QUEUE_S + 0.2, total_s=3.0, outcome=COMPLETED))
    (what,) = _broken(recording)
    assert what.startswith("TTFT of accepted interactive")


def test_a_refusal_that_comes_late_is_a_broken_promise() -> None:
    recording = _recording()
    _instead(recording, Answer(ttft_s=None, total_s=QUEUE_S + 0.2, outcome=QUEUE_TIMEOUT))
    (what,) = _broken(recording)
    assert what.startswith("Refused after the bound")


def test_a_call_without_an_end_and_a_slot_that_is_left_are_broken_promises() -> None:
    recording = _recording()
    recording.planned += 1
    recording.loads.append((21.0, Load(running=1)))
    assert _broken(recording) == [
        "Calls that ended otherwise, or not at all",
        "Left when all callers have their answer",
    ]


def test_an_outcome_that_nobody_expects_is_a_broken_promise() -> None:
    recording = _recording()
    _instead(recording, Answer(ttft_s=0.1, total_s=0.2, outcome="INTERNAL"))
    assert _broken(recording) == ["Calls that ended otherwise, or not at all"]


def test_memory_that_grows_and_health_that_is_late_are_broken_promises() -> None:
    recording = _recording()
    recording.rss = [replace(one, gateway_kib=75_000.0 + 1_000 * one.at_s) for one in recording.rss]
    recording.probes.append(Probe(kind="http", at_s=recording.plan[1].begin_s + 1, took_s=0.4, is_good=False))
    assert _broken(recording) == [
        "RSS of the gateway, growth in the second half of the overload",
        "Health during the overload, /readyz, p99",
        "Health answers other than that it serves",
    ]


def test_batch_that_stands_still_is_a_broken_promise() -> None:
    recording = _recording()
    for at, one in enumerate(recording.answered):
        if one.arrival.call.priority == "batch" and one.arrival.phase == "overload":
            recording.answered[at] = replace(one, answer=replace(one.answer, outcome=QUEUE_FULL))
    assert [what for what in _broken(recording) if what.startswith("Batch")]


def test_every_kind_of_caller_takes_part_in_the_soak() -> None:
    chance = random.Random(1)
    calls: list[Call] = [mix.call(chance) for _ in range(2000)]
    assert any(call.leave_after_s for call in calls)
    assert any(call.timeout_s < 1 for call in calls)
    assert any(call.pause_s > mix.READER_TIMEOUT_S for call in calls)
    assert any(0 < call.pause_s < mix.READER_TIMEOUT_S for call in calls)
    assert any(call.top_p > 1 for call in calls)


def test_streams_over_http_are_no_more_than_there_may_be_open_files() -> None:
    (http,) = [case for case in cases(is_quick=False, file_limit=4096) if case.name == "idle in prefill, HTTP"]
    assert http.streams < 4096


def _results(*, is_quick: bool) -> dict[str, object]:
    machine = {"cores": 2, "cpu": "x86_64", "memory_mb": 24_000, "system": "Linux 6", "python": "3.11.7"}
    lines = document([Line("TTFT", "1 ms", "at most 2 ms", is_kept=True)])
    return {"overload": {"is_quick": is_quick, "taken": "2026-01-02 03:04 UTC", "machine": machine, "lines": lines}}


def test_the_page_takes_the_figures_of_a_full_run_and_of_no_quick_one() -> None:
    page = (PAGES / "performance.md").read_text()
    assert "| TTFT | 1 ms | at most 2 ms | kept |" in filled(page, _results(is_quick=False))
    assert filled(page, _results(is_quick=True)) == page
    again = filled(page, _results(is_quick=False))
    assert filled(again, _results(is_quick=False)) == again
