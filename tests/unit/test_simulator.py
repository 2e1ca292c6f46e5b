"""The simulated engine keeps to its script."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.backends.base import (
    EngineFinish,
    EngineFinished,
    EngineItem,
    EngineOutput,
    EngineRequest,
    EngineStop,
    StopOutcome,
)
from service.backends.simulator import SimulatorBackend, SimulatorOptions
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Sampling
from tests.support.service import script


def request(prompt: str, *, limit: int = 16, seed: int = 0) -> EngineRequest:
    return EngineRequest(
        request_id="r",
        prompt=prompt,
        sampling=Sampling(max_output_tokens=limit, seed=seed),
        deadline=Deadline.after(60),
    )


async def play(prompt: str, options: SimulatorOptions | None = None, **fields: int) -> list[EngineItem]:
    return [item async for item in SimulatorBackend(options).generate(request(prompt, **fields))]


def data(items: list[EngineItem]) -> bytes:
    return b"".join(item.data for item in items if isinstance(item, EngineOutput))


async def test_the_same_request_gives_the_same_tokens() -> None:
    assert data(await play("hi", seed=3)) == data(await play("hi", seed=3)) != data(await play("hi", seed=4))


async def test_bytes_need_not_be_text() -> None:
    assert data(await play(script(tokens=[r"a\xff", r"\xe8\x81"], output_tokens=2))) == b"a\xff\xe8\x81"


async def test_the_end_says_why() -> None:
    for limit, reason in ((2, EngineFinish.LENGTH), (9, EngineFinish.STOP)):
        last = (await play(script(output_tokens=3), limit=limit))[-1]
        assert isinstance(last, EngineFinished)
        assert (last.reason, last.output_tokens) == (reason, min(limit, 3))


async def test_delays_are_what_the_script_says() -> None:
    begin = time.monotonic()
    await play(script(queue_ms=50, prefill_ms=50, token_ms=20, output_tokens=6))
    assert time.monotonic() - begin >= 0.05 + 0.05 + 5 * 0.02


@pytest.mark.parametrize(
    "prompt", ["simulate: {", "simulate: 3", script(nope=1), script(fault="nope"), script(tokens=3)]
)
async def test_a_bad_script_is_refused_by_name(prompt: str) -> None:
    with pytest.raises(ServiceError) as refused:
        await play(prompt)
    assert refused.value.reason is Reason.INVALID_FIELD


async def test_leaving_early_ends_the_run() -> None:
    backend = SimulatorBackend(SimulatorOptions(token_ms=1))
    run = backend.generate(request("hi"))
    await anext(run)
    assert backend.running == 1
    await run.aclose()
    assert backend.running == 0


async def test_a_run_that_is_left_is_reported_once_wherever_it_is() -> None:
    stops: list[EngineStop] = []
    backend = SimulatorBackend(on_stop=stops.append)
    reported = EngineStop("simulator", StopOutcome.ACKNOWLEDGED, 0.0, 0)
    waiting = asyncio.ensure_future(anext(backend.generate(request(script(queue_ms=60_000)))))
    while not backend.running:  # noqa: ASYNC110 - it sets no event when it begins
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert stops == [reported]
    run = backend.generate(request("hi"))
    for _ in range(3):
        await anext(run)
    await run.aclose()
    assert stops == [reported] * 2


@pytest.mark.parametrize("fault", ["none", "error", "cut"])
async def test_a_run_that_ends_by_itself_is_not_reported(fault: str) -> None:
    stops: list[EngineStop] = []
    run = SimulatorBackend(on_stop=stops.append).generate(request(script(output_tokens=2, fault=fault)))
    try:
        async for _ in run:
            pass
    except ServiceError:
        assert fault == "error"
    assert not stops


async def test_leaving_behind_the_last_item_is_no_stop() -> None:
    stops: list[EngineStop] = []
    run = SimulatorBackend(on_stop=stops.append).generate(request(script(output_tokens=1)))
    while not isinstance(await anext(run), EngineFinished):
        pass
    await run.aclose()
    assert not stops
