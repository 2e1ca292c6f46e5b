"""Generations of the real embedded model that are left: wherever they are, the engine lets go, and says so."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from service.backends.base import EngineFinished, EngineOutput, EngineStarted, EngineStop, Health, StopOutcome
from service.backends.llamacpp.backend import LlamaCppBackend
from service.backends.llamacpp.handover import MAX_WAITING_ITEMS
from service.core.deadline import Deadline
from service.core.errors import Reason
from service.core.request import Constraint, ConstraintKind
from tests.support.embedded_engine import (
    CONTEXT_TOKENS,
    SLOTS,
    Embedded,
    end,
    outputs,
    refusal,
    request,
    run,
    text,
    until_free,
)

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(120)]

ENDLESS: dict[str, Any] = {"ignore_eos": True}
# The chunk that tells the thread of the cancel, and the step that llama.cpp is at when it hears of it.
MOST_WASTED = 2


@pytest.fixture(autouse=True)
async def nothing_is_left_behind(backend: LlamaCppBackend, embedded: Embedded) -> Any:
    yield
    await until_free(backend)
    while not await asyncio.to_thread(embedded.is_idle):
        pass  # its loop answers between two steps
    assert text(await run(backend, request(tokens=1))) == " Paris"
    assert not embedded.stops, "reported twice, or what was not left"


def long_prompt(first: int) -> tuple[int, ...]:
    """Return a prompt that the cache does not know, of eight steps."""
    return tuple([2] + [first + n for n in range(CONTEXT_TOKENS // 2)])


def assert_let_go(stop: EngineStop) -> None:
    assert (stop.contract, stop.outcome) == ("llamacpp", StopOutcome.ACKNOWLEDGED)
    assert stop.stop_s is not None
    assert stop.stop_s >= 0


async def test_in_the_line_for_a_slot_it_never_reaches_the_engine(backend: LlamaCppBackend, embedded: Embedded) -> None:
    busy = [backend.generate(request(f"{n}", 200, sampling=ENDLESS)) for n in range(SLOTS)]
    for items in busy:
        await anext(items)
    task = asyncio.ensure_future(anext(backend.generate(request())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(backend._runs) == SLOTS
    stop = await embedded.stop()
    assert_let_go(stop)
    assert stop.wasted_tokens == 0
    for items in busy:
        await items.aclose()
    for _ in busy:
        assert_let_go(await embedded.stop())


async def test_in_a_long_prefill_the_engine_stops_after_a_step_and_not_at_its_end(
    backend: LlamaCppBackend, embedded: Embedded
) -> None:
    whole_s = end(await run(backend, request(long_prompt(3000), 1))).engine_prefill_s
    assert whole_s is not None
    async with aclosing(backend.generate(request(long_prompt(8000)))) as items:
        assert isinstance(await anext(items), EngineStarted)
    stop = await embedded.stop()
    assert_let_go(stop)
    assert stop.stop_s is not None
    assert stop.stop_s < whole_s / 2
    assert stop.wasted_tokens == 0


async def test_before_the_engine_has_said_anything_it_stops_as_well(
    backend: LlamaCppBackend, embedded: Embedded
) -> None:
    items = backend.generate(request(long_prompt(13_000)))
    task = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stop = await embedded.stop()
    assert_let_go(stop)
    assert stop.wasted_tokens == 0


async def test_in_the_decode_the_engine_makes_no_more_than_a_token_or_two(
    backend: LlamaCppBackend, embedded: Embedded
) -> None:
    async def read() -> None:
        async with aclosing(backend.generate(request(tokens=400, sampling=ENDLESS))) as items:
            async for item in items:
                if isinstance(item, EngineOutput):
                    reading.set()

    reading = asyncio.Event()
    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stop = await embedded.stop()
    assert_let_go(stop)
    assert 1 <= stop.wasted_tokens <= MOST_WASTED


async def test_behind_a_reader_that_does_not_read_the_engine_is_freed(
    backend: LlamaCppBackend, embedded: Embedded
) -> None:
    items = backend.generate(request(tokens=400, sampling=ENDLESS))
    await anext(items)
    (running,) = backend._runs
    while not running._handover.is_full:  # noqa: ASYNC110 - a thread fills it, which sets no event
        await asyncio.sleep(0.01)
    await items.aclose()
    stop = await embedded.stop()
    assert_let_go(stop)
    assert stop.wasted_tokens <= MOST_WASTED


async def test_a_slow_reader_holds_no_more_than_the_bound_and_gets_everything(backend: LlamaCppBackend) -> None:
    items = backend.generate(request(tokens=MAX_WAITING_ITEMS + 30, sampling=ENDLESS))
    await anext(items)
    (running,) = backend._runs
    while not running._handover.is_full:  # noqa: ASYNC110 - a thread fills it, which sets no event
        await asyncio.sleep(0.01)
    assert not running.is_waiting_for_engine
    assert await backend.health(5) is Health.READY
    rest = [item async for item in items]
    assert sum(item.tokens or 0 for item in outputs(rest)) == MAX_WAITING_ITEMS + 30


async def test_a_deadline_stops_the_engine(backend: LlamaCppBackend, embedded: Embedded) -> None:
    error = await refusal(backend, request(tokens=400, deadline=Deadline.after(0.2), sampling=ENDLESS))
    assert error.reason is Reason.DEADLINE_IN_DECODE
    stop = await embedded.stop()
    assert_let_go(stop)
    assert stop.wasted_tokens <= MOST_WASTED


async def test_what_ends_by_itself_or_is_refused_is_no_stop(backend: LlamaCppBackend, embedded: Embedded) -> None:
    await run(backend, request(tokens=1))
    async with aclosing(backend.generate(request(tokens=1))) as items:
        while not isinstance(await anext(items), EngineFinished):
            pass  # and nobody looks behind it
    broken = Constraint(kind=ConstraintKind.GRAMMAR, source="root ::= nope")
    assert (await refusal(backend, request(constraint=broken))).reason is Reason.INVALID_FIELD
    await until_free(backend)
    await asyncio.sleep(0)
    assert not embedded.stops
