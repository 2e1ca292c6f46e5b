"""Which objectives a generation meets, and whose trace is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.slo import Objectives, keep_reason

ALL_THREE = Objectives(ttft_s=0.5, tpot_s=0.1, e2e_s=5.0)
FAST = {"ttft_s": 0.2, "tpot_s": 0.05, "total_s": 2.0}
GOOD = {"ttft": True, "tpot": True, "e2e": True, "all": True}

OUTCOMES = [
    "completed",
    "client_cancelled",
    "cancelled",
    "deadline_exceeded",
    "rejected",
    "backend_error",
    "consumer_too_slow",
    "internal_error",
    "drained",
]


@pytest.mark.parametrize(
    ("outcome", "changed", "met"),
    [
        ("completed", {}, GOOD),
        ("completed", {"ttft_s": 0.5}, GOOD),  # the edge is within, as it is in a histogram's bucket
        ("completed", {"ttft_s": 0.6}, {**GOOD, "ttft": False, "all": False}),
        ("completed", {"tpot_s": 0.2}, {**GOOD, "tpot": False, "all": False}),
        ("completed", {"total_s": 6.0}, {**GOOD, "e2e": False, "all": False}),
        ("completed", {"ttft_s": None, "tpot_s": None}, {"e2e": True, "all": True}),
        # A failure is a miss whatever came before; the token that came in time did come in time.
        ("backend_error", {}, {"ttft": True, "tpot": True, "e2e": False, "all": False}),
        ("deadline_exceeded", {"ttft_s": None, "tpot_s": None}, {"ttft": False, "e2e": False, "all": False}),
        ("internal_error", {"ttft_s": None, "tpot_s": None}, {"ttft": False, "e2e": False, "all": False}),
        ("drained", {"ttft_s": None, "tpot_s": None}, {"ttft": False, "e2e": False, "all": False}),
        # Who leaves is held against what was promised until then.
        ("client_cancelled", {}, {"ttft": True, "tpot": True, "all": True}),
        ("client_cancelled", {"ttft_s": None, "tpot_s": None, "total_s": 0.4}, {}),
        ("client_cancelled", {"ttft_s": None, "tpot_s": None, "total_s": 0.6}, {"ttft": False, "all": False}),
        ("cancelled", {"total_s": 9.0}, {"ttft": True, "tpot": True, "e2e": False, "all": False}),
        ("consumer_too_slow", {"total_s": 3.0}, {"ttft": True, "tpot": True, "all": True}),
    ],
)
def test_what_is_met(outcome: str, changed: dict[str, float | None], met: dict[str, bool]) -> None:
    assert ALL_THREE.judge(outcome, **{**FAST, **changed}) == met  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["RATE_LIMITED", "INVALID_FIELD", "DRAINING", "MODEL_NOT_FOUND", None])
def test_a_refusal_that_is_the_callers_says_nothing_of_the_server(reason: str | None) -> None:
    assert ALL_THREE.judge("rejected", reason=reason, ttft_s=None, tpot_s=None, total_s=0.001) == {}


@pytest.mark.parametrize("reason", ["QUEUE_FULL", "QUEUE_TIMEOUT"])
def test_a_refusal_because_of_load_is_a_miss(reason: str) -> None:
    refused = ALL_THREE.judge("rejected", reason=reason, ttft_s=None, tpot_s=None, total_s=0.001)
    assert refused == {"ttft": False, "e2e": False, "all": False}


def test_without_objectives_only_failures_count() -> None:
    none = Objectives(ttft_s=None, tpot_s=None, e2e_s=None)
    assert none.judge("completed", **FAST) == {}  # type: ignore[arg-type]
    assert none.judge("backend_error", **FAST) == {"all": False}  # type: ignore[arg-type]


times = st.none() | st.floats(0, 100)


@given(outcome=st.sampled_from(OUTCOMES), ttft_s=times, tpot_s=times, total_s=st.floats(0, 100))
def test_all_is_met_exactly_where_nothing_was_missed(
    outcome: str, ttft_s: float | None, tpot_s: float | None, total_s: float
) -> None:
    met = dict(ALL_THREE.judge(outcome, reason=None, ttft_s=ttft_s, tpot_s=tpot_s, total_s=total_s))
    whole = met.pop("all", None)
    if outcome in {"backend_error", "deadline_exceeded", "internal_error", "drained"}:
        assert whole is False
    elif met:
        assert whole is all(met.values())
    else:
        assert whole is None


@pytest.mark.parametrize(
    ("met", "failed", "max_gap_s", "reason"),
    [
        ({}, False, 0.0, None),
        ({"ttft": True, "all": True}, False, 1.9, None),
        ({"ttft": True, "all": True}, False, 2.1, "stalled"),
        ({"ttft": False, "all": False}, False, 9.0, "slow"),
        ({"ttft": True, "all": False}, True, 9.0, "failed"),
    ],
)
def test_whose_trace_is_kept(met: dict[str, bool], failed: bool, max_gap_s: float, reason: str | None) -> None:
    assert keep_reason(met, failed=failed, max_gap_s=max_gap_s, stall_s=2.0) == reason
    assert keep_reason(met, failed=failed, max_gap_s=0.0, stall_s=None) == (None if reason == "stalled" else reason)
