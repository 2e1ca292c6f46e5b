"""Several generations as one: order, bounds, and one end whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from gateway.fan_out import FanOut, Source
from gateway.openai.content import ContractError
from headrace.v1 import generation_pb2 as gen
from headrace.v1 import usage_pb2
from tests.support.fake_service import completed, delta, finished, started

WAIT_S = 10.0
Step = gen.GenerateResponse | asyncio.Event | Exception


class Played:
    """A generation that plays steps; an event is waited for, an exception raised."""

    def __init__(self, *steps: Step, choices: int = 1) -> None:
        self.steps = steps
        self.choices = choices
        self.sent = 0
        self.is_open = False
        self.was_opened = False
        self.entered = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncIterator[gen.GenerateResponse]]:
        self.is_open = self.was_opened = True
        self.entered.set()
        try:
            yield self._events()
        finally:
            self.is_open = False

    async def _events(self) -> AsyncIterator[gen.GenerateResponse]:
        for step in self.steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                yield step
                self.sent += 1


def fan_out(*played: Played, running: int = 4) -> FanOut:
    return FanOut([Source(one.open, one.choices) for one in played], running=running)


async def read(*played: Played, running: int = 4) -> list[gen.GenerateResponse]:
    async with asyncio.timeout(WAIT_S), fan_out(*played, running=running) as events:
        return [event async for event in events]


def whole(text: str, **fields: int) -> Sequence[gen.GenerateResponse]:
    return (started(generation_id=text), delta(text), finished(), completed(**fields))


async def until(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), WAIT_S)


async def test_choices_are_numbered_through_and_events_too() -> None:
    events = await read(
        Played(started(), delta("a1", 1), delta("a0"), finished(), finished(index=1), completed(), choices=2),
        Played(started(), delta("b0"), delta("b1", 1), finished(index=1), finished(), completed(), choices=2),
        running=1,
    )
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    kinds = [event.WhichOneof("event") for event in events]
    assert (kinds.count("started"), kinds.count("completed")) == (1, 1)
    assert (kinds[0], kinds[-1]) == ("started", "completed")
    assert {event.delta.text: event.delta.index for event in events if event.HasField("delta")} == {
        "a0": 0, "a1": 1, "b0": 2, "b1": 3,
    }  # fmt: skip
    ended = sorted(event.choice_finished.index for event in events if event.HasField("choice_finished"))
    assert ended == [0, 1, 2, 3]


async def test_usage_is_the_sum_and_what_one_does_not_know_is_unknown() -> None:
    first, second = completed(3, 2), completed(5, 7)
    first.completed.usage.cached_prompt_token_count = 1
    events = await read(Played(started(), finished(), first), Played(started(), finished(), second))
    assert events[-1].completed.usage == usage_pb2.Usage(prompt_token_count=8, output_token_count=9)
    assert not events[-1].completed.HasField("timing"), "times of several do not add up"
    (alone,) = [event for event in await read(Played(*whole("a"))) if event.HasField("completed")]
    assert alone.completed.HasField("timing")


async def test_the_first_that_starts_gives_the_started() -> None:
    go = asyncio.Event()
    late, early = Played(go, *whole("late")), Played(*whole("early"))
    async with asyncio.timeout(WAIT_S), fan_out(late, early) as events:
        first = await anext(events)
        assert first.started.generation_id == "early"
        assert not first.started.HasField("prompt_token_count")
        go.set()
        rest = [event async for event in events]
    assert not any(event.HasField("started") for event in rest)
    assert {event.delta.text: event.delta.index for event in rest if event.HasField("delta")} == {"late": 0, "early": 1}


async def test_only_a_few_run_at_once_and_they_begin_in_order() -> None:
    gates = [asyncio.Event() for _ in range(5)]
    played = [Played(started(), gate, finished(), completed()) for gate in gates]
    async with asyncio.timeout(WAIT_S), fan_out(*played, running=2) as events:
        await until(played[1].entered)
        assert [one.was_opened for one in played] == [True, True, False, False, False]
        gates[1].set()
        await until(played[2].entered)
        assert [one.is_open for one in played] == [True, False, True, False, False]
        for gate in gates:
            gate.set()
        assert [event.WhichOneof("event") async for event in events][-1] == "completed"


async def test_a_failure_ends_the_whole_and_cancels_the_others() -> None:
    never = asyncio.Event()
    others = [Played(started(), never), Played(started(), never), Played(*whole("unreached"))]
    failing = Played(started(), delta("x"), ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await read(others[0], failing, others[1], others[2], running=3)
    assert not any(one.is_open for one in (*others, failing))
    assert not others[2].was_opened


async def test_two_failures_are_one() -> None:
    with pytest.raises(ValueError, match="no"):
        await read(Played(ValueError("no")), Played(ValueError("no")))


async def test_leaving_cancels_every_generation() -> None:
    never = asyncio.Event()
    played = [Played(started(), never) for _ in range(3)]
    async with asyncio.timeout(WAIT_S), fan_out(*played) as events:
        await anext(events)
        assert all(one.is_open for one in played)
    assert not any(one.is_open for one in played)


async def test_cancel_of_the_reader_cancels_every_generation_before_it_is_over() -> None:
    never = asyncio.Event()
    played = [Played(started(), never) for _ in range(3)]
    reading = asyncio.create_task(read(*played))
    await until(played[2].entered)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not any(one.is_open for one in played)


async def test_a_reader_that_does_not_read_holds_the_generations_up() -> None:
    many = Played(started(), *(delta(str(number)) for number in range(1000)), finished(), completed())
    async with asyncio.timeout(WAIT_S), fan_out(many) as events:
        await until(many.entered)
        for _ in range(200):
            await asyncio.sleep(0)
        assert many.sent < 100
        rest = [event async for event in events]
    assert len(rest) == 1003


@pytest.mark.parametrize(
    "steps",
    [
        (started(), delta("x", 1)),
        (started(), finished(index=-1)),
        (started(), finished()),
    ],
)
async def test_what_breaks_the_contract_is_not_taken_for_another_generation(steps: Sequence[Step]) -> None:
    with pytest.raises(ContractError):
        await read(Played(*steps), Played(*whole("b")))


async def test_a_generation_that_is_cancelled_from_elsewhere_is_a_failure_and_no_hang() -> None:
    class Cut(Played):
        async def _events(self) -> AsyncIterator[gen.GenerateResponse]:
            yield started()
            raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="elsewhere"):
        await read(Cut(), Played(*whole("b")))
