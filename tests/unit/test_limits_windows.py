"""Counters that forget, against the same rules written down plainly; and what holds of them whatever happens."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given

from service.tenancy.limits.windows import DAY, MINUTE, UNKNOWN_MS, Ask, Correction, Limit, Windows

DAY_MS = 86_400_000
START_MS = 1_900_000_000_000


def ask(limit: Limit = Limit.TOKENS, most: int = 10, cost: int = 1, key: str = "") -> Ask:
    return Ask(key or limit.value, limit, most, cost)


def test_a_request_takes_until_the_limit_and_is_told_when_there_is_room() -> None:
    windows = Windows()
    first = windows.take([ask(most=10, cost=6)], "a", START_MS)
    assert first.is_taken
    assert first.states[0] == (6, 60_000, 0)
    later = windows.take([ask(most=10, cost=4)], "b", START_MS + 30_000)
    assert later.is_taken
    assert later.states[0] == (10, 60_000, 0)
    refused = windows.take([ask(most=10, cost=5)], "c", START_MS + 40_000)
    assert not refused.is_taken
    assert refused.states[0] == (10, 50_000, 20_000)
    assert not windows.take([ask(most=10, cost=5)], "c", START_MS + 59_999).is_taken
    assert windows.take([ask(most=10, cost=5)], "c", START_MS + 60_000).is_taken


def test_a_request_takes_of_all_its_limits_or_of_none() -> None:
    windows = Windows()
    asks = [ask(Limit.REQUESTS, 5), ask(Limit.TOKENS, 10, 11), ask(Limit.STREAMS, 5)]
    refused = windows.take(asks, "a", START_MS)
    assert not refused.is_taken
    assert [state.wait_ms for state in refused.states] == [0, UNKNOWN_MS, 0]
    assert windows.used("requests_per_minute", START_MS) == 0
    assert not windows.held


def test_a_day_begins_anew_at_midnight() -> None:
    windows = Windows()
    day_ms = START_MS // DAY_MS * DAY_MS
    taken = windows.take([ask(Limit.DAY_TOKENS, 10, 10)], "a", day_ms + DAY_MS - 1000)
    assert taken.states[0].reset_ms == 1000
    refused = windows.take([ask(Limit.DAY_TOKENS, 10, 1)], "b", day_ms + DAY_MS - 400)
    assert refused.states[0].wait_ms == 400
    assert windows.take([ask(Limit.DAY_TOKENS, 10, 10)], "b", day_ms + DAY_MS).is_taken


def test_what_is_settled_frees_the_rest_in_its_own_second() -> None:
    windows = Windows()
    taken = windows.take([ask(most=100, cost=80)], "a", START_MS)
    windows.settle([Correction(Limit.TOKENS.value, MINUTE, taken.at_ms, -70)], START_MS + 5_000)
    assert windows.used(Limit.TOKENS.value, START_MS + 5_000) == 10
    assert windows.used(Limit.TOKENS.value, START_MS + 60_000) == 0


def test_of_a_window_that_is_over_nothing_is_given_back_and_an_excess_counts_now() -> None:
    windows = Windows()
    taken = windows.take([ask(most=100, cost=80)], "a", START_MS)
    late_ms = START_MS + 61_000
    windows.settle([Correction(Limit.TOKENS.value, MINUTE, taken.at_ms, -70)], late_ms)
    assert windows.used(Limit.TOKENS.value, late_ms) == 0
    windows.settle([Correction(Limit.TOKENS.value, MINUTE, taken.at_ms, 15)], late_ms)
    assert windows.used(Limit.TOKENS.value, late_ms) == 15


def test_counters_that_began_anew_owe_nobody_anything() -> None:
    windows = Windows()
    at_ms = START_MS // DAY_MS * DAY_MS
    windows.take([ask(Limit.DAY_TOKENS, 100, 5)], "a", at_ms)
    windows.settle([Correction(Limit.DAY_TOKENS.value, DAY, at_ms, -50)], at_ms)
    assert windows.used(Limit.DAY_TOKENS.value, at_ms) == 0


def test_streams_are_held_until_they_are_let_go_or_their_lease_ends() -> None:
    windows = Windows()
    streams = [ask(Limit.STREAMS, 2)]
    assert windows.take(streams, "a", START_MS, lease_ms=15_000).is_taken
    assert windows.take(streams, "b", START_MS + 10_000, lease_ms=15_000).is_taken
    assert windows.take(streams, "c", START_MS + 14_999, lease_ms=15_000).states[0] == (2, 0, UNKNOWN_MS)
    assert windows.take(streams, "c", START_MS + 15_000, lease_ms=15_000).is_taken
    windows.let_go([Limit.STREAMS.value], "c")
    assert windows.take(streams, "d", START_MS + 15_001, lease_ms=15_000).is_taken


def test_those_who_do_not_come_any_more_are_forgotten() -> None:
    windows = Windows()
    for number in range(100):
        windows.take([ask(key=f"tenant {number}")], "a", START_MS)
    windows.take([ask(key="another")], "a", START_MS + 120_000)
    assert set(windows._windows) == {"another"}


@dataclass
class Run:
    """A generation that was let in, as whoever pays for it would write it down."""

    at_ms: int
    reserved: int
    used: int | None = None


STEPS = st.lists(
    st.tuples(st.integers(0, 25_000), st.integers(1, 40), st.one_of(st.none(), st.integers(0, 60))), max_size=60
)


@given(most=st.integers(20, 200), steps=STEPS)
def test_no_minute_takes_more_than_the_limit_and_settling_adds_up(
    most: int, steps: list[tuple[int, int, int | None]]
) -> None:
    """Each step waits, asks for tokens, and may settle the oldest open one by no more than it had reserved."""
    windows, now_ms, runs = Windows(), START_MS + 123, []
    for wait_ms, cost, used in steps:
        now_ms += wait_ms
        answer = windows.take([ask(most=most, cost=cost)], "x", now_ms)
        if answer.is_taken:
            runs.append(Run(now_ms, cost))
        still_open = [run for run in runs if run.used is None]
        if used is not None and still_open:
            run = still_open[0]
            run.used = min(used, run.reserved)
            windows.settle([Correction(Limit.TOKENS.value, MINUTE, run.at_ms, run.used - run.reserved)], now_ms)
        counted = windows.used(Limit.TOKENS.value, now_ms)
        within = [run.reserved if run.used is None else run.used for run in runs if run.at_ms > now_ms - 60_000]
        a_second_more = [run.reserved if run.used is None else run.used for run in runs if run.at_ms > now_ms - 61_000]
        assert sum(within) <= counted <= sum(a_second_more)
        assert counted <= most
        if not answer.is_taken and answer.states[0].wait_ms > 0:
            assert answer.states[0].wait_ms <= 60_000


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 1000)), max_size=40))
def test_the_sum_of_what_is_settled_is_the_sum_of_what_was_used(runs: list[tuple[int, int]]) -> None:
    """In any order, also where more was used than reserved."""
    windows = Windows()
    day_ms = START_MS // DAY_MS * DAY_MS
    for number, (reserved, _) in enumerate(runs):
        assert windows.take([ask(Limit.DAY_TOKENS, 10**9, reserved)], "x", day_ms + number).is_taken
    for number, (reserved, used) in sorted(enumerate(runs), key=lambda run: run[1][1]):
        windows.settle([Correction(Limit.DAY_TOKENS.value, DAY, day_ms + number, used - reserved)], day_ms + 5000)
    assert windows.used(Limit.DAY_TOKENS.value, day_ms + 5000) == sum(used for _, used in runs)
