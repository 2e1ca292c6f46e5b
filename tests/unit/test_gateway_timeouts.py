"""The time of one request: what it is made of, and what is left of it. Times are seconds of one clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.errors import ApiError
from gateway.timeouts import Budget, time_limit_s

seconds = st.floats(min_value=0.001, max_value=86_400, allow_nan=False)


def test_a_call_gets_what_is_left_less_a_margin() -> None:
    budget = Budget.of(100.0, 10.0, 0.025)
    assert budget.left_s(100.0) == pytest.approx(9.975)
    assert budget.left_s(104.0) == pytest.approx(5.975)


def test_of_a_short_deadline_the_margin_is_a_twentieth() -> None:
    assert Budget.of(0.0, 0.1, 0.025).left_s(0.0) == pytest.approx(0.095)


@given(seconds, seconds, st.floats(0, 10), seconds)
def test_a_call_never_gets_more_than_the_caller_waits_for(
    began_s: float, timeout_s: float, margin_s: float, spent_s: float
) -> None:
    budget = Budget.of(began_s, timeout_s, margin_s)
    assert 0 <= budget.margin_s <= timeout_s * 0.05
    try:
        left_s = budget.left_s(began_s + spent_s)
    except ApiError:
        assert spent_s >= timeout_s * 0.94
    else:
        assert 0 < left_s <= timeout_s + 1e-9 * began_s
        assert left_s <= timeout_s - spent_s + 1e-6


def test_a_budget_that_is_used_up_is_a_deadline_error_that_is_not_to_be_repeated() -> None:
    with pytest.raises(ApiError) as caught:
        Budget.of(0.0, 0.25, 0.025).left_s(0.25)
    error = caught.value
    assert (error.http_status, error.code, error.should_retry) == (504, "deadline_exceeded", False)
    assert "250 ms" in error.message


def test_what_is_left_of_a_time_limit_is_never_nothing() -> None:
    budget = Budget.of(10.0, 60.0, 0.025, 2.0)
    assert budget.time_limit_left_s(10.5) == pytest.approx(1.5)
    assert budget.time_limit_left_s(13.0) == pytest.approx(0.001)
    assert Budget.of(10.0, 60.0, 0.025).time_limit_left_s(11.0) is None


@pytest.mark.parametrize(("text", "expected_s"), [("1", 0.001), (" 2500 ", 2.5), ("999999999999", 999_999_999.999)])
def test_a_time_limit_is_a_whole_number_of_milliseconds(text: str, expected_s: float) -> None:
    assert time_limit_s({"time-limit-ms": text}) == pytest.approx(expected_s)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e3", "soon", "1" * 13, "٣"])
def test_other_time_limits_are_refused_by_the_name_of_their_header(text: str) -> None:
    with pytest.raises(ApiError, match="'Time-Limit-Ms'") as caught:
        time_limit_s({"time-limit-ms": text})
    error = caught.value
    assert (error.http_status, error.param, error.code) == (400, "Time-Limit-Ms", "invalid_value")


def test_without_the_header_there_is_no_time_limit() -> None:
    assert time_limit_s({}) is None
