"""What waits for a reader: in order, joined where it may be, bounded."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.events import (
    ChoiceFinished,
    Completed,
    Delta,
    Event,
    FinishReason,
    Queued,
    Started,
    Timing,
    TokenLogprob,
    ToolCallPiece,
    Usage,
)
from service.generation.limits import Limits
from service.generation.outbox import Outbox

STARTED = Started(prompt_tokens=3, seed=0)
END = ChoiceFinished(choice=0, reason=FinishReason.STOP)
COMPLETED = Completed(
    usage=Usage(),
    timing=Timing(queue_s=0, prefill_s=None, ttft_s=None, decode_s=None, total_s=0, output_tokens_per_s=0),
)


def logprob(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id, -1.0, b"x")


def call(text: str, number: int = 0, name: str = "") -> Delta:
    return Delta(0, "", call=ToolCallPiece(number, f"call_{number}" if name else "", name, text))


async def drained(outbox: Outbox) -> list[Event]:
    events = []
    while (event := await outbox.next()) is not None:
        events.append(event)
    return events


async def passed(*events: Event) -> list[Event]:
    """Return what a reader gets who comes when all of it is there."""
    outbox = Outbox(Limits())
    for event in events:
        outbox.put(event)
    outbox.close()
    return await drained(outbox)


async def test_a_reader_that_keeps_up_gets_every_event_as_it_was_made() -> None:
    outbox, events = Outbox(Limits()), [STARTED, Delta(0, "a"), Delta(0, "b"), END, COMPLETED]
    for event in events:
        reading = asyncio.create_task(outbox.next())
        await asyncio.sleep(0)
        outbox.put(event)
        assert await reading is event
    assert outbox.taken == 5
    assert outbox.waiting_bytes == 0


async def test_deltas_that_wait_are_joined_with_all_that_stands_behind_them() -> None:
    assert await passed(
        STARTED,
        Delta(0, "Hel", (1,), (logprob(1),)),
        Delta(0, "lo", (2, 3), (logprob(2), logprob(3))),
        Delta(0, "", (4,)),
        END,
        COMPLETED,
    ) == [STARTED, Delta(0, "Hello", (1, 2, 3, 4), (logprob(1), logprob(2), logprob(3))), END, COMPLETED]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Delta(0, "a"), Delta(1, "b")),
        (Delta(0, "a"), Delta(0, "", reasoning="b")),
        (Delta(0, "", reasoning="a"), Delta(0, "b")),
        (Delta(0, "a"), call("{}", name="f")),
        (call("{", name="f"), Delta(0, "a")),
        (call("{}", name="f"), call("{}", 1, name="g")),
        (call("{}"), call("{}", 1)),
        (Delta(0, "a"), Delta(0, "", (1,), is_mark=True)),
        (Delta(0, "", (1,), is_mark=True), Delta(0, "a")),
        (Delta(0, "a"), END),
        (STARTED, Delta(0, "a")),
        (Delta(0, "a" * 2048), Delta(0, "b")),
        (Queued(1), STARTED),
    ],
)
async def test_what_says_different_things_stays_apart(first: Event, second: Event) -> None:
    assert await passed(first, second) == [first, second]


async def test_reasoning_is_joined_with_reasoning_and_a_call_with_its_next_piece() -> None:
    assert await passed(Delta(0, "", reasoning="a"), Delta(0, "", (7,), reasoning="b")) == [
        Delta(0, "", (7,), reasoning="ab")
    ]
    assert await passed(call('{"a"', name="f"), call(": 1}")) == [call('{"a": 1}', name="f")]


async def test_only_the_last_place_in_the_line_is_told() -> None:
    assert await passed(Queued(3, 4.0), Queued(2, 2.5), Queued(1)) == [Queued(1)]


async def test_the_bound_in_events_asks_to_wait_and_reading_lets_go_on() -> None:
    outbox = Outbox(Limits(unsent_events=2))
    outbox.put(Delta(0, "a"))
    assert not outbox.is_full
    outbox.put(Delta(1, "b"))
    assert outbox.is_full
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await outbox.next()
    await asyncio.wait_for(waiting, 1)


async def test_the_bound_in_bytes_counts_text_ids_and_log_probabilities() -> None:
    for delta, sizes in ((Delta(0, "x" * 100), 100), (Delta(0, "é" * 50), 100)):
        outbox = Outbox(Limits(unsent_bytes=sizes * 2))
        outbox.put(delta)
        assert outbox.waiting_bytes == sizes
        assert not outbox.is_full
        outbox.put(delta)
        assert outbox.is_full
    outbox = Outbox(Limits(unsent_bytes=1000))
    outbox.put(Delta(0, "x", (1,), (logprob(1),)))
    assert outbox.waiting_bytes > 200


async def test_the_end_is_told_behind_what_waits_unless_that_is_dropped() -> None:
    for drops, expected in ((False, [Delta(0, "a")]), (True, [])):
        outbox, got = Outbox(Limits()), []
        outbox.put(Delta(0, "a"))
        outbox.close(RuntimeError("gone"), drops=drops)
        outbox.close()
        with pytest.raises(RuntimeError, match="gone"):
            while (event := await outbox.next()) is not None:
                got.append(event)
        assert got == expected


async def test_closing_wakes_who_reads_and_who_waits_for_room() -> None:
    outbox = Outbox(Limits(unsent_events=1))
    reading = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    outbox.close()
    assert await asyncio.wait_for(reading, 1) is None
    outbox = Outbox(Limits(unsent_events=1))
    outbox.put(STARTED)
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    outbox.close()
    await asyncio.wait_for(waiting, 1)


async def test_a_read_that_was_cancelled_loses_nothing() -> None:
    outbox = Outbox(Limits())
    reading = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.sleep(0)
    outbox.put(STARTED)
    assert await outbox.next() is STARTED


deltas = st.builds(
    Delta,
    st.integers(0, 1),
    st.text(max_size=5),
    st.lists(st.integers(0, 9), max_size=2).map(tuple),
    st.just(()),
    st.just(""),
    st.none(),
    st.just(False),
)


@given(st.lists(st.one_of(deltas, st.just("read")), max_size=60))
async def test_whatever_the_reader_s_pace_text_and_ids_are_complete_and_the_bytes_return_to_zero(
    steps: list[Delta | str],
) -> None:
    outbox, made, got = Outbox(Limits()), [], []
    for step in steps:
        if isinstance(step, Delta):
            made.append(step)
            outbox.put(step)
        elif outbox.waiting:
            got.append(await outbox.next())
    outbox.close()
    got += await drained(outbox)
    for choice in (0, 1):
        ours, theirs = ([d for d in side if d.choice == choice] for side in (made, got))
        assert "".join(d.text for d in ours) == "".join(d.text for d in theirs)
        assert [i for d in ours for i in d.token_ids] == [i for d in theirs for i in d.token_ids]
    assert outbox.waiting_bytes == 0
