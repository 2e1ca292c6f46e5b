"""Statistics and prompts of `headrace ttft`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli._measure import Case, Run, percentile, prompt_words, summarize
from headrace.cli._summary import milliseconds


def test_a_percentile_lies_between_the_two_nearest_values() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([1.0, 2.0], 0.9) == pytest.approx(1.9)
    assert percentile([7.0], 0.9) == 7.0
    assert percentile([], 0.5) is None


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_within_its_values(values: list[float], rank: float) -> None:
    result = percentile(values, rank)
    assert result is not None
    assert min(values) <= result <= max(values) * (1 + 1e-12)


def test_a_prompt_has_the_words_asked_for_and_differs_from_its_start_by_seed() -> None:
    assert len(prompt_words(1000, 1).split()) == 1000
    assert len(prompt_words(1, 1).split()) == 1
    assert prompt_words(50, 1) == prompt_words(50, 1)
    assert prompt_words(50, 1).split()[0] != prompt_words(50, 2).split()[0]


def test_what_nobody_knows_is_null_and_not_zero() -> None:
    unknown = Run(
        ttft_s=None,
        gaps_s=[],
        prompt_tokens=None,
        output_tokens=None,
        server_queue_s=None,
        server_prefill_s=None,
        output_tokens_per_second=None,
    )
    summary = json.loads(json.dumps(summarize(Case(name="short", words=8, runs=[unknown])), allow_nan=False))
    assert summary["runs"] == 1
    assert summary["prompt_tokens"] is None
    assert summary["ttft_s"] == {"p50": None, "p90": None}
    assert summary["output_tokens_per_second"] == {"p50": None, "p90": None}


def test_times_are_shown_in_milliseconds() -> None:
    assert [milliseconds(value) for value in (None, 0.0004, 0.0123, 2.5)] == ["-", "0.4 ms", "12 ms", "2500 ms"]
