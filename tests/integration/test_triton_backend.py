"""The Triton backend on a real Triton: with a real model, and with an engine whose delays are exact."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from service.backends.base import (
    EngineFinish,
    EngineFinished,
    EngineItem,
    EngineOutput,
    EngineRequest,
    EngineStarted,
    Health,
)
from service.backends.triton.backend import TritonBackend
from service.backends.triton.channel import open_channel
from service.backends.triton.options import TritonOptions
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind, Sampling
from tests.support.triton_parts import LIB
from tests.support.triton_server import SCRIPTED_SLOTS, RealTriton

pytestmark = [pytest.mark.triton, pytest.mark.timeout(120)]

assert LIB
from headrace_triton.scripted import SCRIPT  # noqa: E402

QUESTION = "Q: What is the capital of France?\nA:"


@pytest.fixture
async def model(llama_triton: RealTriton) -> AsyncIterator[TritonBackend]:
    backend = TritonBackend(TritonOptions(url=llama_triton.url))
    await backend.start()
    yield backend
    await backend.close()


@pytest.fixture
async def script(scripted_triton: RealTriton) -> AsyncIterator[TritonBackend]:
    backend = TritonBackend(TritonOptions(url=scripted_triton.url, canary_interval_s=0))
    await backend.start()
    yield backend
    await backend.close()


def request(prompt: str = QUESTION, *, tokens: int = 12, timeout_s: float = 60, **fields: Any) -> EngineRequest:
    sampling = Sampling(max_output_tokens=tokens, **{"seed": 7, "temperature": 0.0, **fields.pop("sampling", {})})
    return EngineRequest(
        request_id=str(uuid.uuid4()), prompt=prompt, sampling=sampling, deadline=Deadline.after(timeout_s), **fields
    )


async def collect(backend: TritonBackend, wanted: EngineRequest) -> list[EngineItem]:
    return [item async for item in backend.generate(wanted)]


def data_of(items: list[EngineItem]) -> bytes:
    return b"".join(item.data for item in items if isinstance(item, EngineOutput))


def end_of(items: list[EngineItem]) -> EngineFinished:
    assert isinstance(items[-1], EngineFinished)
    return items[-1]


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"waited 10 s for {what}")


async def ended(server: RealTriton, request_id: str) -> dict[str, Any]:
    """Return the engine's own "end" of a request."""
    await until(lambda: any(e["event"] == "end" for e in server.events(request_id)), "the engine to end")
    return next(e for e in server.events(request_id) if e["event"] == "end")


async def test_a_model_streams_text_with_counts_and_its_own_times(model: TritonBackend) -> None:
    items = await collect(model, request(tokens=12))
    started, finished = items[0], end_of(items)
    assert data_of(items).startswith(b" Paris")
    assert isinstance(started, EngineStarted)
    assert started.prompt_tokens == finished.prompt_tokens == 13
    assert finished.reason is EngineFinish.LENGTH
    assert finished.output_tokens == 12 == sum(item.tokens or 0 for item in items if isinstance(item, EngineOutput))
    assert finished.engine_prefill_s is not None
    assert finished.engine_decode_s is not None
    assert finished.engine_decode_s > 0


async def test_a_prompt_is_counted_as_the_engine_counts_it(model: TritonBackend) -> None:
    assert await model.count_tokens(QUESTION, add_special_tokens=True) == 13


async def test_an_end_before_the_limit_is_a_stop(model: TritonBackend) -> None:
    end = Constraint(kind=ConstraintKind.GRAMMAR, source='root ::= " Paris"')
    items = await collect(model, request(tokens=30, constraint=end))
    assert data_of(items) == b" Paris"
    assert end_of(items).reason is EngineFinish.STOP


async def test_a_stop_word_ends_the_generation_in_the_engine(model: TritonBackend) -> None:
    items = await collect(model, request(tokens=40, stop_sequences=("\nQ:",)))
    assert data_of(items).endswith(b"\nQ:")
    assert end_of(items).reason is EngineFinish.STOP
    assert (end_of(items).output_tokens or 0) < 40


async def test_characters_that_span_tokens_arrive_whole(model: TritonBackend) -> None:
    grammar = Constraint(kind=ConstraintKind.GRAMMAR, source='root ::= "🧿𓀀é東"')
    items = await collect(model, request(tokens=40, constraint=grammar))
    assert data_of(items).decode() == "🧿𓀀é東"


async def test_a_schema_is_obeyed_and_a_bad_one_refused(model: TritonBackend) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    }
    good = Constraint(kind=ConstraintKind.JSON_SCHEMA, source=json.dumps(schema))
    assert json.loads(data_of(await collect(model, request(tokens=40, constraint=good)))).keys() == {"city"}
    bad = Constraint(kind=ConstraintKind.JSON_SCHEMA, source='{"type": "nonsense"}')
    with pytest.raises(ServiceError) as caught:
        await collect(model, request(constraint=bad))
    assert caught.value.reason is Reason.INVALID_FIELD
    assert "nonsense" in caught.value.message


async def test_a_minimum_of_tokens_holds_back_the_end(model: TritonBackend) -> None:
    items = await collect(model, request("A", tokens=10, sampling={"min_output_tokens": 10, "temperature": 1.0}))
    assert end_of(items).output_tokens == 10


async def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(model: TritonBackend) -> None:
    with pytest.raises(ServiceError) as caught:
        await collect(model, request("word " * 2500))
    assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.metadata["maxContextTokens"] == "2047"


async def test_leaving_stops_the_real_model_within_two_tokens(model: TritonBackend, llama_triton: RealTriton) -> None:
    wanted = request("Once upon a time", tokens=400, sampling={"temperature": 1.0})
    run = model.generate(wanted)
    for _ in range(6):
        await anext(run)
    left_s = time.monotonic()
    await run.aclose()
    end = await ended(llama_triton, wanted.request_id)
    late = [e for e in llama_triton.events(wanted.request_id) if e["event"] == "tokens" and e["t"] > left_s]
    assert len(late) <= 2
    assert end["tokens"] < 50


async def test_many_streams_at_once_are_each_whole_and_in_order(script: TritonBackend) -> None:
    runs = [collect(script, request("token_ms=1", tokens=150)) for _ in range(12)]
    for items in await asyncio.gather(*runs):
        assert data_of(items) == (SCRIPT * 3)[:150]
        assert end_of(items).output_tokens == 150


async def test_leaving_stops_the_engine_in_150_ms(
    script: TritonBackend, scripted_triton: RealTriton, record_property: Callable[[str, object], None]
) -> None:
    async def cancel(after: int) -> float:
        wanted = request("token_ms=20", tokens=1000)
        run = script.generate(wanted)
        for _ in range(after):
            await anext(run)
        left_s = time.monotonic()
        await run.aclose()
        end = await ended(scripted_triton, wanted.request_id)
        assert end["reason"] == "stop_seen"
        return float(end["t"]) - left_s

    times_s = sorted([await cancel(2 + number % 5) for number in range(24)])
    p50_ms, p99_ms = times_s[12] * 1000, times_s[-1] * 1000
    record_property("cancel_to_stop_p50_ms", round(p50_ms, 1))
    record_property("cancel_to_stop_p99_ms", round(p99_ms, 1))
    print(f"cancel to engine stop: p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms, of an engine that looks every 2 ms")  # noqa: T201
    assert p99_ms <= 150


async def test_cancelling_before_the_first_token_stops_the_prefill(
    script: TritonBackend, scripted_triton: RealTriton
) -> None:
    wanted = request("prefill_ms=5000", tokens=10)
    task = asyncio.create_task(collect(script, wanted))
    await until(lambda: bool(scripted_triton.events(wanted.request_id)), "the engine to start")
    left_s = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    end = await ended(scripted_triton, wanted.request_id)
    assert end["t"] - left_s < 1
    assert end["tokens"] == 0


async def test_leaving_the_engine_s_own_line_is_seen_while_every_slot_is_busy(
    script: TritonBackend, scripted_triton: RealTriton
) -> None:
    stuck = [asyncio.create_task(collect(script, request("prefill_ms=60000"))) for _ in range(SCRIPTED_SLOTS)]
    await until(lambda: scripted_triton.running() >= SCRIPTED_SLOTS, "the slots to fill")
    wanted = request("token_ms=1")
    task = asyncio.create_task(collect(script, wanted))
    await asyncio.sleep(0)
    # The engine takes them in their order, and refuses the one with an adapter at once.
    adapted = TritonBackend(TritonOptions(url=scripted_triton.url, lora_task_id=7))
    await adapted.start()
    with pytest.raises(ServiceError):
        await collect(adapted, request())
    await adapted.close()
    left_s = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    end = await ended(scripted_triton, wanted.request_id)
    assert end["t"] - left_s < 1
    assert (end["reason"], end["tokens"]) == ("stop_seen", 0)
    for other in stuck:
        other.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


async def test_cancelling_at_any_moment_leaves_nothing_running(
    script: TritonBackend, scripted_triton: RealTriton
) -> None:
    wanted = [request("token_ms=20", tokens=1000) for _ in range(30)]
    for number, one in enumerate(wanted):
        task = asyncio.create_task(collect(script, one))
        # From before the request is sent until after the first token.
        await asyncio.sleep(number / 2000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: scripted_triton.running() == 0, "the engine to be idle")
    ends = [event for one in wanted for event in scripted_triton.events(one.request_id) if event["event"] == "end"]
    assert all(end["tokens"] < 20 for end in ends)


async def test_a_deadline_stops_the_engine(script: TritonBackend, scripted_triton: RealTriton) -> None:
    wanted = request("token_ms=20", tokens=1000, timeout_s=0.5)
    with pytest.raises(ServiceError) as caught:
        await collect(script, wanted)
    assert caught.value.reason is Reason.DEADLINE_IN_DECODE
    end = await ended(scripted_triton, wanted.request_id)
    assert end["reason"] == "stop_seen"
    assert end["tokens"] < 100


async def test_stopping_one_stream_leaves_the_others_whole(script: TritonBackend, scripted_triton: RealTriton) -> None:
    others = [asyncio.create_task(collect(script, request("token_ms=5", tokens=80))) for _ in range(3)]
    run = script.generate(request("token_ms=5", tokens=1000))
    for _ in range(5):
        await anext(run)
    await run.aclose()
    for task in others:
        assert data_of(await task) == (SCRIPT * 2)[:80]


async def test_health_finds_a_dead_engine_and_its_return(script: TritonBackend, scripted_triton: RealTriton) -> None:
    assert await script.health(5) is Health.READY
    scripted_triton.stub_of("tensorrt_llm").send_signal(signal.SIGKILL)
    try:
        assert await script.health(3) is Health.UNAVAILABLE
    finally:
        await _load_again(scripted_triton)
    assert await script.health(5) is Health.READY
    assert data_of(await collect(script, request("token_ms=1", tokens=10))) == SCRIPT[:10]


async def test_health_finds_an_engine_that_takes_requests_and_generates_nothing(
    script: TritonBackend, scripted_triton: RealTriton
) -> None:
    stuck = [asyncio.create_task(collect(script, request("prefill_ms=60000"))) for _ in range(SCRIPTED_SLOTS)]
    await until(lambda: scripted_triton.running() >= SCRIPTED_SLOTS, "the slots to fill")
    assert await script.health(1) is Health.UNAVAILABLE
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    assert await script.health(5) is Health.READY


async def _load_again(server: RealTriton) -> None:
    channel = open_channel(TritonOptions(url=server.url))
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    unload = service_pb2.RepositoryModelUnloadRequest(model_name="tensorrt_llm")
    await stub.RepositoryModelUnload(unload, timeout=20)
    for name in ("tensorrt_llm", "ensemble"):
        await stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=name), timeout=20)
    await channel.close()
