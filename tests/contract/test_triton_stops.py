"""What becomes of a generation that is left, and how it is accounted for, by contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.backends.base import EngineRequest, EngineStop, StopOutcome
from service.backends.triton.backend import TritonBackend
from service.backends.triton.options import TritonOptions
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Sampling
from tests.support.triton_fake import Error, FakeTriton, Final, Hang, Says, model_config

LIMIT = 100


@pytest.fixture
async def fake() -> AsyncIterator[FakeTriton]:
    async with FakeTriton(script=[Says(b"a"), Says(b"b"), Says(b"c"), Hang()]) as server:
        server.configs["tensorrt_llm_bls"] = model_config("tensorrt_llm_bls")
        server.configs["vllm_model"] = model_config("vllm_model", "vllm")
        server.configs["llmapi"] = model_config("tensorrt_llm", "llmapi")
        yield server


class Stops:
    """What the backend reports."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[EngineStop] = asyncio.Queue()

    async def next(self) -> EngineStop:
        return await asyncio.wait_for(self.seen.get(), 5)


async def opened(fake: FakeTriton, stops: Stops, **options: object) -> TritonBackend:
    backend = TritonBackend(TritonOptions(url=fake.url, **options), on_stop=stops.seen.put_nowait)  # type: ignore[arg-type]
    await backend.start()
    return backend


def wanted(request_id: str) -> EngineRequest:
    sampling = Sampling(max_output_tokens=LIMIT, seed=1)
    return EngineRequest(request_id=request_id, prompt="Hi", sampling=sampling, deadline=Deadline.after(60))


async def left(backend: TritonBackend, outputs: int = 3) -> None:
    """Begin a generation, read some of it, and leave."""
    run = backend.generate(wanted("left"))
    text = b""
    while len(text) < outputs:
        item = await anext(run)
        text += getattr(item, "data", b"")
    await run.aclose()


async def test_an_engine_that_takes_a_stop_acknowledges_it(fake: FakeTriton) -> None:
    stops = Stops()
    backend = await opened(fake, stops)
    await left(backend)
    stop = await stops.next()
    await backend.close()
    assert stop.contract == "ensemble"
    assert stop.outcome is StopOutcome.ACKNOWLEDGED
    assert stop.stop_s is not None
    assert 0 < stop.stop_s < 5
    assert 1 <= stop.wasted_tokens <= LIMIT - 3
    assert [request.id for request in fake.stops] == ["left"]
    assert fake.order == ["cancel", "stop"] or sorted(fake.order) == ["cancel", "stop"]


async def test_the_llm_api_is_left_to_look_for_the_closed_stream(fake: FakeTriton) -> None:
    """A stop beside the cancel is not worth its risk there: servers of 2.51 were seen to die of the two together."""
    fake.script = [Says(b"a"), Says(b"ab"), Says(b"abc"), Hang()]
    stops = Stops()
    backend = await opened(fake, stops, model="llmapi")
    await left(backend)
    stop = await stops.next()
    await asyncio.wait_for(fake.cancelled.wait(), 5)
    await backend.close()
    assert (stop.contract, stop.outcome, stop.stop_s) == ("llmapi", StopOutcome.LEFT_TO_ENGINE, None)
    assert 1 <= stop.wasted_tokens <= LIMIT - 3
    assert not fake.stops


async def test_vllm_is_left_to_look_for_the_closed_stream(fake: FakeTriton) -> None:
    stops = Stops()
    backend = await opened(fake, stops, model="vllm_model")
    await left(backend)
    assert await stops.next() == EngineStop("vllm", StopOutcome.LEFT_TO_ENGINE, None, 1)
    await asyncio.wait_for(fake.cancelled.wait(), 5)
    await backend.close()
    assert not fake.stops


async def test_below_bls_nothing_is_reached_and_the_rest_is_counted_as_wasted(fake: FakeTriton) -> None:
    stops = Stops()
    backend = await opened(fake, stops, model="tensorrt_llm_bls")
    await left(backend)
    assert await stops.next() == EngineStop("bls", StopOutcome.UNREACHABLE, None, LIMIT - 3)
    await asyncio.wait_for(fake.cancelled.wait(), 5)
    await backend.close()
    assert not fake.stops


async def test_a_bls_model_that_passes_its_id_on_is_reached(fake: FakeTriton) -> None:
    fake.configs["tensorrt_llm_bls"].parameters["forward_request_id"].string_value = "true"
    stops = Stops()
    backend = await opened(fake, stops, model="tensorrt_llm_bls")
    await left(backend)
    assert (await stops.next()).outcome is StopOutcome.ACKNOWLEDGED
    await backend.close()
    assert [(request.model_name, request.id) for request in fake.stops] == [("tensorrt_llm", "left")]


async def test_an_ensemble_without_an_engine_that_stops_is_unreachable(fake: FakeTriton) -> None:
    del fake.configs["tensorrt_llm"]
    stops = Stops()
    backend = await opened(fake, stops)
    await left(backend)
    assert (await stops.next()).outcome is StopOutcome.UNREACHABLE
    await backend.close()


async def test_a_generation_that_ended_or_was_refused_is_no_stop(fake: FakeTriton) -> None:
    stops = Stops()
    backend = await opened(fake, stops)
    fake.script = [Says(b"abc"), Final()]
    await rest(backend.generate(wanted("whole")))
    fake.script = [Error("Prompt length (9) exceeds maximum input length (8).", is_final=True)]
    with pytest.raises(ServiceError) as caught:
        await rest(backend.generate(wanted("refused")))
    await backend.close()
    assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert stops.seen.empty()


async def test_closing_the_backend_stops_what_runs(fake: FakeTriton) -> None:
    stops = Stops()
    backend = await opened(fake, stops)
    run = backend.generate(wanted("r"))
    await anext(run)
    await backend.close()
    assert (await stops.next()).outcome is StopOutcome.ACKNOWLEDGED
    with pytest.raises(ServiceError, match="shutting down"):
        async for _ in run:
            pass


async def test_silent_streams_end_once_the_server_is_known_to_be_dead(fake: FakeTriton) -> None:
    stops = Stops()
    backend = await opened(fake, stops, canary_interval_s=0)
    runs = [backend.generate(wanted(f"r{number}")) for number in range(4)]
    for run in runs:
        await anext(run)
        await anext(run)
    # From now on the model's process is dead: new requests are told so, running ones nothing.
    fake.script = [Error("in ensemble 'ensemble', Stub process 'engine_0_0' is not healthy.", is_final=True)]
    waiting = [asyncio.create_task(rest(run)) for run in runs]
    async with asyncio.timeout(10):
        while not all(task.done() for task in waiting):
            await backend.health(1)
            await asyncio.sleep(0.1)
    await backend.close()
    for task in waiting:
        error = task.exception()
        assert isinstance(error, ServiceError)
        assert error.reason is Reason.BACKEND_UNAVAILABLE


async def rest(run: AsyncIterator[object]) -> None:
    async for _ in run:
        pass
