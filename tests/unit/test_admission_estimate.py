"""What is expected from what was seen: the honest mean, and the bound that refuses."""

from __future__ import annotations

import random
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from service.admission.estimate import Forecast, LoadEstimate


def seen(holds: Sequence[float] = (), first_tokens: Sequence[float] = (), now_s: float = 100.0) -> LoadEstimate:
    estimate = LoadEstimate()
    for held_s in holds:
        estimate.note_hold(held_s, now_s)
    for took_s in first_tokens:
        estimate.note_first_token(took_s)
    return estimate


@pytest.mark.parametrize(
    ("shortage", "lanes", "expected"),
    [(0.0, 4, 0.0), (1.0, 1, 3.0), (1.0, 4, 0.75), (8.0, 4, 6.0), (2.5, 1, 7.5)],
)
def test_slots_come_free_one_after_the_other_in_the_mean_time_of_a_hold(
    shortage: float, lanes: int, expected: float
) -> None:
    estimate = seen(holds=(1.0, 2.0, 6.0))
    assert estimate.expected_wait_s(shortage, lanes, 100.0) == pytest.approx(expected)


def test_the_last_64_holds_count() -> None:
    estimate = seen(holds=[100.0] * 40 + [1.0] * 64)
    assert estimate.expected_wait_s(1.0, 1, 100.0) == pytest.approx(1.0)


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    estimate = seen(holds=[5.0])
    estimate.note_hold(1.0, 130.0)
    assert estimate.expected_wait_s(1.0, 1, 160.0) == pytest.approx(3.0)
    assert estimate.expected_wait_s(1.0, 1, 160.1) == pytest.approx(1.0)
    assert estimate.expected_wait_s(1.0, 1, 190.1) is None


@pytest.mark.parametrize(
    ("ahead", "count", "lanes", "rounds"),
    [(0, 1, 1, 0), (1, 1, 1, 1), (3, 1, 4, 0), (4, 1, 4, 1), (3, 2, 4, 1), (8, 4, 4, 2), (0, 9, 4, 0), (4, 9, 4, 1)],
)
def test_only_whole_rounds_behind_what_could_end_now_are_certain(
    ahead: int, count: int, lanes: int, rounds: int
) -> None:
    forecast = seen(holds=[2.0] * 16).forecast(ahead, count, lanes, 100.0)
    assert forecast == Forecast(queue_s=2.0 * rounds, first_token_s=0.0)


def test_a_round_takes_the_lower_quartile_of_the_holds() -> None:
    estimate = seen(holds=[float(n) for n in range(16, 0, -1)])
    assert estimate.forecast(1, 1, 1, 100.0).queue_s == 4.0


def test_the_first_token_takes_half_of_the_shortest_ever() -> None:
    estimate = seen(first_tokens=[0.2] + [0.5] * 100)
    assert estimate.forecast(0, 1, 1, 10_000.0) == Forecast(queue_s=0.0, first_token_s=0.1)


@pytest.mark.parametrize("per_s", [10, 1000])
def test_about_two_a_second_have_a_chance_whoever_else_asks(per_s: int) -> None:
    estimate = LoadEstimate(random.Random(1).random)
    # Two who ask in turn, the first always first in a second.
    lucky = [number for number in range(200 * per_s) if estimate.takes_a_chance(0.1, number / per_s)]
    assert 300 <= len(lucky) <= 700, "a little more, as each second begins with few"
    assert sum(number % 2 for number in lucky) >= 40, "one by lot"


def test_who_asks_less_than_once_a_second_always_has_a_chance() -> None:
    estimate = LoadEstimate(lambda: 0.999)
    assert all(estimate.takes_a_chance(0.1, 1.5 * number) for number in range(20))


def test_who_has_the_most_time_has_a_chance_beside_any_number_that_have_less() -> None:
    estimate = LoadEstimate(lambda: 1.0)
    lucky = [
        number
        for number in range(10_000)
        if estimate.takes_a_chance(0.45 if number % 250 == 99 else 0.05, number / 1000)
    ]
    with_time = [number for number in lucky if number % 250 == 99]
    assert len(with_time) == 9, "one in every second but the first, in which nothing is known yet"


@pytest.mark.parametrize(("count", "is_known"), [(15, False), (16, True)])
def test_few_observations_foretell_nothing(count: int, *, is_known: bool) -> None:
    forecast = seen(holds=[1.0] * count, first_tokens=[1.0] * count).forecast(1, 1, 1, 100.0)
    assert (forecast.queue_s > 0, forecast.first_token_s > 0) == (is_known, is_known)
    assert (seen(holds=[1.0] * count).expected_wait_s(1.0, 1, 100.0)) == 1.0


def test_one_kind_of_observations_says_nothing_about_the_other() -> None:
    assert seen(holds=[1.0] * 64).forecast(1, 1, 1, 100.0) == Forecast(queue_s=1.0, first_token_s=0.0)
    assert seen(first_tokens=[1.0] * 64).forecast(1, 1, 1, 100.0) == Forecast(queue_s=0.0, first_token_s=0.5)


def test_a_deadline_is_hopeless_only_below_the_bound() -> None:
    forecast = Forecast(queue_s=1.0, first_token_s=0.5)
    assert [forecast.is_hopeless(remaining_s) for remaining_s in (1.49, 1.5, 2.0)] == [True, False, False]
    assert not Forecast(queue_s=0.0, first_token_s=0.0).is_hopeless(0.0)


def test_a_round_takes_the_mean_where_many_holds_were_cut_short() -> None:
    estimate = seen(holds=[0.0] * 4 + [10.0] * 16)
    assert estimate.forecast(1, 1, 1, 100.0).queue_s == 8.0


@given(
    holds=st.lists(st.floats(0.001, 100), min_size=16, max_size=64),
    ahead=st.integers(0, 100),
    count=st.integers(1, 8),
    lanes=st.integers(1, 16),
)
def test_the_bound_is_never_above_the_mean(holds: list[float], ahead: int, count: int, lanes: int) -> None:
    estimate = seen(holds=holds)
    expected_s = estimate.expected_wait_s(ahead + count, lanes, 100.0)
    assert expected_s is not None
    assert estimate.forecast(ahead, count, lanes, 100.0).queue_s <= expected_s * (1 + 1e-9)
