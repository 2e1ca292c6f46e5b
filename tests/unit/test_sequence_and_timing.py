"""The event order, and the arithmetic of the report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.events import ChoiceFinished, Completed, Delta, Event, FinishReason, Queued, Started, Usage
from service.core.sequence import EventSequence
from service.core.timing import StreamClock

STARTED = Started(prompt_tokens=1, seed=0)
COMPLETED = Completed(usage=Usage(), timing=StreamClock(0.0).timing(1.0, None, 1))


def end(choice: int = 0) -> ChoiceFinished:
    return ChoiceFinished(choice=choice, reason=FinishReason.STOP)


def test_events_are_numbered_from_one_without_gaps() -> None:
    sequence = EventSequence(1)
    events: list[Event] = [STARTED, Delta(0, "a"), end(), COMPLETED]
    assert [sequence.next(event) for event in events] == [1, 2, 3, 4]


def test_a_request_may_wait_before_it_starts() -> None:
    sequence = EventSequence(1)
    events: list[Event] = [Queued(2), Queued(1, 0.5), STARTED, end(), COMPLETED]
    assert [sequence.next(event) for event in events] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "events",
    [
        [Delta(0, "a")],
        [STARTED, STARTED],
        [STARTED, Queued(1)],
        [Queued(1), COMPLETED],
        [STARTED, Delta(1, "a")],
        [STARTED, end(), Delta(0, "a")],
        [STARTED, end(), end()],
        [STARTED, COMPLETED],
        [COMPLETED],
        [STARTED, end(), COMPLETED, COMPLETED],
    ],
)
def test_a_stream_that_breaks_the_contract_is_stopped(events: list[Event]) -> None:
    sequence = EventSequence(1)
    for event in events[:-1]:
        sequence.next(event)
    with pytest.raises(ValueError, match=r"choice|second|after|open"):
        sequence.next(events[-1])


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20), st.floats(0, 5), st.floats(0, 5))
def test_the_parts_add_up(gaps: list[float], waited: float, engine_queue: float) -> None:
    clock = StreamClock(100.0, engine_queue_s=engine_queue)
    clock.admitted_s = now = 100.0 + waited
    for gap in gaps:
        now += gap
        clock.on_output(now)
    timing = clock.timing(now, len(gaps), 1)
    assert timing.ttft_s is not None
    assert timing.prefill_s is not None
    assert timing.decode_s is not None
    assert timing.queue_s + timing.prefill_s == pytest.approx(timing.ttft_s)
    assert timing.ttft_s + timing.decode_s == pytest.approx(timing.total_s)
    assert timing.prefill_s >= -1e-9
    assert clock.max_gap_s == pytest.approx(max(gaps[1:], default=0.0))
    if timing.decode_s > 1e-6:
        assert timing.output_tokens_per_s == pytest.approx((len(gaps) - 1) / timing.decode_s)


def test_the_gap_in_which_an_engine_was_given_up_counts() -> None:
    clock = StreamClock(0.0)
    clock.on_silence(5.0)
    assert clock.max_gap_s == 0.0, "no token came, so there is no gap between two"
    for now_s in (1.0, 3.0):
        clock.on_output(now_s)
    clock.on_silence(4.0)
    assert clock.max_gap_s == 2.0
    clock.on_silence(6.0)
    assert clock.max_gap_s == 3.0


def test_a_generation_without_a_token_has_no_ttft() -> None:
    timing = StreamClock(0.0, admitted_s=0.5).timing(2.0, 0, 1)
    assert (timing.queue_s, timing.ttft_s, timing.prefill_s, timing.decode_s) == (0.5, None, None, None)
    assert (timing.total_s, timing.output_tokens_per_s) == (2.0, 0.0)


def test_an_unknown_token_count_gives_no_rate() -> None:
    clock = StreamClock(0.0, admitted_s=0.0)
    clock.on_output(1.0)
    clock.on_output(2.0)
    assert clock.timing(2.0, None, 1).output_tokens_per_s == 0.0
