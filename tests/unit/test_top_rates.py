"""What `headrace top` computes of counters: quantiles, increments over restarts, a moving window."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.cli._rates import Histogram, Key, Window, has_restarted, increments

EDGES = st.lists(
    st.floats(0.001, 100, allow_subnormal=False).map(lambda edge: round(edge, 3)), min_size=1, max_size=8, unique=True
).map(sorted)
VALUES = st.lists(st.floats(0.0001, 200, allow_subnormal=False), max_size=60)
RANKS = st.floats(0.01, 1.0)
COUNT: Key = ("requests_total", (("model", "m"),))
SUM: Key = ("seconds_sum", ())


def counted(edges: Sequence[float], values: Sequence[float]) -> dict[float, float]:
    """Return counts by upper edge, as a process writes them."""
    return {edge: float(sum(value <= edge for value in values)) for edge in [*edges, math.inf]}


def histogram(edges: Sequence[float], values: Sequence[float]) -> Histogram:
    return Histogram.merged([(counted(edges, values), math.fsum(values))])


def bucket_quantile(q: float, buckets: list[tuple[float, float]]) -> float:
    """Prometheus' `BucketQuantile` (promql/quantile.go), line by line."""
    if not math.isinf(buckets[-1][0]) or len(buckets) < 2:
        return math.nan
    observations = buckets[-1][1]
    if observations == 0:
        return math.nan
    rank = q * observations
    b = next((i for i, (_, count) in enumerate(buckets[:-1]) if count >= rank), len(buckets) - 1)
    if b == len(buckets) - 1:
        return buckets[-2][0]
    if b == 0 and buckets[0][0] <= 0:
        return buckets[0][0]
    bucket_start, bucket_end, count = 0.0, buckets[b][0], buckets[b][1]
    if b > 0:
        bucket_start = buckets[b - 1][0]
        count -= buckets[b - 1][1]
        rank -= buckets[b - 1][1]
    return bucket_start + (bucket_end - bucket_start) * (rank / count)


@given(EDGES, VALUES, RANKS)
def test_a_quantile_is_that_of_prometheus(edges: list[float], values: list[float], rank: float) -> None:
    found = histogram(edges, values).quantile(rank)
    expected = bucket_quantile(rank, sorted(counted(edges, values).items()))
    if math.isnan(expected):
        assert found is None
    else:
        assert found is not None
        assert found.value == pytest.approx(expected)


@given(EDGES, VALUES, RANKS)
def test_a_quantile_lies_in_the_bucket_of_the_value_that_it_stands_for(
    edges: list[float], values: list[float], rank: float
) -> None:
    assume(values)
    found = histogram(edges, values).quantile(rank)
    assert found is not None
    true = sorted(values)[max(0, math.ceil(rank * len(values) - 1e-9) - 1)]
    bucket = bisect_left(edges, true)
    if bucket == len(edges):
        assert (found.is_beyond, found.value, found.edge) == (True, edges[-1], edges[-1])
    else:
        below = edges[bucket - 1] if bucket else 0.0
        assert not found.is_beyond
        assert below <= found.value <= edges[bucket] * (1 + 1e-9)
        assert found.is_below == (bucket == 0)


@given(EDGES, VALUES, RANKS, RANKS)
def test_a_higher_rank_is_no_smaller_value(edges: list[float], values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    whole = histogram(edges, values)
    first, second = whole.quantile(low), whole.quantile(high)
    if first is not None and second is not None:
        assert first.value <= second.value * (1 + 1e-9)


@pytest.mark.parametrize("buckets", [(), ((math.inf, 3.0),), ((0.1, 0.0), (math.inf, 0.0))])
def test_without_values_or_edges_there_is_no_quantile(buckets: tuple[tuple[float, float], ...]) -> None:
    assert Histogram(buckets=buckets).quantile(0.95) is None


def test_counts_that_fall_from_edge_to_edge_are_taken_as_level() -> None:
    whole = Histogram(buckets=((1.0, 5.0), (2.0, 4.0), (3.0, 10.0), (math.inf, 10.0)))
    found = whole.quantile(0.6)
    assert found is not None
    assert found.value == pytest.approx(2.2)


@given(st.lists(st.tuples(EDGES, VALUES), min_size=1, max_size=4))
def test_histograms_with_different_edges_are_added_over_those_they_share(
    parts: list[tuple[list[float], list[float]]],
) -> None:
    merged = Histogram.merged((counted(edges, values), math.fsum(values)) for edges, values in parts)
    shared = sorted(set.intersection(*(set(edges) for edges, _ in parts)))
    together = [value for _, values in parts for value in values]
    assert dict(merged.buckets) == counted(shared, together)
    assert merged.count == len(together)
    assert merged.sum == pytest.approx(math.fsum(together))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1))
def test_increments_over_restarts_add_up_to_what_was_read_of_each_process(steps: list[tuple[bool, int]]) -> None:
    """Against Prometheus' `increase`: a value that falls is taken as counted from 0."""
    readings = [0.0]
    for restarts, events in steps:
        readings.append(float(events) if restarts else readings[-1] + events)
    ours = [increments({COUNT: before}, {COUNT: after}).get(COUNT, 0.0) for before, after in pairwise(readings)]
    theirs = [after if after < before else after - before for before, after in pairwise(readings)]
    assert ours == theirs


@given(st.lists(st.integers(0, 9), min_size=2, max_size=9))
def test_what_is_new_on_a_page_was_counted_since_the_last_one(events: list[int]) -> None:
    before: dict[Key, float] = {}
    total = 0.0
    for reading in accumulate(events):
        after = {COUNT: float(reading)} if reading else {}  # a counter is written from its first event on
        total += increments(before, after).get(COUNT, 0.0)
        before = after
    assert total == sum(events)


def test_a_restart_makes_every_count_of_the_page_a_new_one() -> None:
    other: Key = ("tokens_total", ())
    before, after = {COUNT: 10.0, other: 3.0}, {COUNT: 2.0, other: 8.0}  # the second has overtaken
    assert has_restarted(before, after)
    assert increments(before, after) == after
    assert has_restarted(before, {other: 3.0})  # one that is gone
    assert not has_restarted(before, before | {other: 4.0})
    assert not has_restarted({SUM: 1.0}, {SUM: -1.0})  # sums may fall


def test_a_process_that_is_known_to_be_new_has_counted_all_of_it() -> None:
    assert increments({COUNT: 1.0}, {COUNT: 5.0}, is_new=True) == {COUNT: 5.0}


@given(
    st.floats(2, 60),
    st.lists(st.tuples(st.floats(0.3, 4), st.integers(0, 20)), min_size=1, max_size=80),
)
def test_the_window_has_what_was_counted_since_its_beginning(length_s: float, rounds: list[tuple[float, int]]) -> None:
    window = Window(length_s)
    window.advance(100.0)
    assert window.span_s is None
    now_s, seen = 100.0, list[tuple[float, float, int]]()
    for pause_s, events in rounds:
        before_s, now_s = now_s, now_s + pause_s
        window.advance(now_s)
        window.add(before_s, {COUNT: float(events)})
        seen.append((before_s, now_s, events))
        assert window.span_s is not None
        began_s = now_s - window.span_s
        inside = [events for before, _, events in seen if before >= began_s - 1e-6]
        assert window.counts()[COUNT] == pytest.approx(sum(inside))
        longest_s = max(4.0, length_s / 60 + 4)
        assert window.span_s <= length_s + longest_s
        if now_s - 100 >= length_s:
            assert window.span_s >= length_s - longest_s / 2 - 1e-6


def test_a_window_of_even_rounds_is_as_long_as_it_should_be() -> None:
    window = Window(30)
    for number in range(100):
        window.advance(2.0 * number + (0.05 if number % 2 else 0))
    assert window.span_s == pytest.approx(30, abs=0.1)


def test_a_long_window_that_is_read_often_is_kept_in_few_parts() -> None:
    window = Window(3600)
    for number in range(20_000):
        window.advance(number * 0.2)
        window.add((number - 1) * 0.2, {COUNT: 1.0})
    assert len(window._parts) <= 65
    assert window.counts()[COUNT] == pytest.approx(3600 / 0.2, rel=0.02)


@given(st.integers(1, 40))
def test_what_was_counted_while_nobody_could_read_is_spread_over_that_time(rounds_missed: int) -> None:
    window = Window(30)
    window.advance(0.0)
    for number in range(1, rounds_missed + 1):
        window.advance(2.0 * number)
    window.add(0.0, {COUNT: 100.0})
    gap_s = 2.0 * rounds_missed
    assert window.span_s == pytest.approx(min(30.0, gap_s))
    assert window.counts()[COUNT] == pytest.approx(100 * min(1.0, 30 / gap_s))
