"""What the backend reads about a model, when it reads it again, and what it makes of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest
from tritonclient.grpc import model_config_pb2

from service.backends.base import EngineItem, EngineOutput, EngineRequest, Feature, Health
from service.backends.triton.backend import TritonBackend
from service.backends.triton.options import TritonOptions
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Sampling
from tests.support.triton_fake import Error, FakeTriton, Final, Says, model_config


@pytest.fixture
async def fake() -> AsyncIterator[FakeTriton]:
    async with FakeTriton(script=[Says(b"Hello"), Final()]) as server:
        yield server


async def opened(fake: FakeTriton, **options: object) -> TritonBackend:
    backend = TritonBackend(TritonOptions(url=fake.url, **options))  # type: ignore[arg-type]
    await backend.start()
    return backend


def request(timeout_s: float = 10) -> EngineRequest:
    return EngineRequest(
        request_id="r", prompt="Hi", sampling=Sampling(max_output_tokens=8, seed=1), deadline=Deadline.after(timeout_s)
    )


async def collect(backend: TritonBackend) -> list[EngineItem]:
    return [item async for item in backend.generate(request())]


def text_of(items: list[EngineItem]) -> bytes:
    return b"".join(item.data for item in items if isinstance(item, EngineOutput))


def sent(fake: FakeTriton) -> set[str]:
    return {tensor.name for tensor in fake.requests[-1].inputs}


async def test_a_model_that_was_loaded_with_other_tensors_is_asked_with_those(fake: FakeTriton) -> None:
    backend = await opened(fake, metadata_max_age_s=1e-9)
    await collect(backend)
    assert {"text_input", "max_tokens", "seed"} <= sent(fake)
    assert Feature.MIN_P not in backend.info.features
    before = backend.info.fingerprint
    # The same name, another contract: an ensemble becomes a vLLM model.
    fake.configs["ensemble"] = model_config("vllm_model", "vllm")
    assert await backend.health(2) is Health.READY
    assert text_of(await collect(backend)) == b"Hello"
    await backend.close()
    assert "sampling_parameters" in sent(fake)
    assert "max_tokens" not in sent(fake)
    assert Feature.MIN_P in backend.info.features
    assert backend.info.fingerprint != before


async def test_a_young_description_is_not_read_again(fake: FakeTriton) -> None:
    backend = await opened(fake)
    fake.configs["ensemble"] = model_config("vllm_model", "vllm")
    assert await backend.health(2) is Health.READY
    await collect(backend)
    await backend.close()
    assert "max_tokens" in sent(fake)


async def test_a_reload_to_something_that_fits_nothing_fails_requests_and_health_and_says_why(
    fake: FakeTriton, caplog: pytest.LogCaptureFixture
) -> None:
    backend = await opened(fake, metadata_max_age_s=1e-9, canary_interval_s=0)
    fake.configs["ensemble"] = model_config("postprocessing")
    assert await backend.health(2) is Health.UNAVAILABLE
    with pytest.raises(ServiceError) as caught:
        await collect(backend)
    await backend.close()
    assert caught.value.reason is Reason.BACKEND_ERROR
    assert "fits no contract: inputs [SEQUENCE_LENGTH, TOKENS_BATCH]" in (caught.value.detail or "")
    assert "fits no contract" in caplog.text


async def test_a_model_that_is_not_decoupled_is_refused_with_the_setting_to_change(fake: FakeTriton) -> None:
    fake.configs["tensorrt_llm"].model_transaction_policy.decoupled = False
    backend = TritonBackend(TritonOptions(url=fake.url))
    with pytest.raises(ServiceError) as caught:
        await backend.start()
    await backend.close()
    assert "model_transaction_policy { decoupled: true }" in (caught.value.detail or "")


async def test_the_configured_contract_overrules_the_recognised_one(fake: FakeTriton) -> None:
    backend = TritonBackend(TritonOptions(url=fake.url, contract="vllm"))
    with pytest.raises(ServiceError) as caught:
        await backend.start()
    await backend.close()
    assert "as vllm: input sampling_parameters is missing" in (caught.value.detail or "")


async def test_a_raw_model_without_a_tokenizer_says_what_to_configure(fake: FakeTriton) -> None:
    backend = TritonBackend(TritonOptions(url=fake.url, model="tensorrt_llm"))
    with pytest.raises(ServiceError) as caught:
        await backend.start()
    await backend.close()
    assert "tokenizer.json" in (caught.value.detail or "")


async def test_the_engine_and_the_tokenizer_are_found_whatever_their_names(fake: FakeTriton) -> None:
    renamed = {"preprocessing": "words-in", "tensorrt_llm": "the-engine", "postprocessing": "words-out"}
    for old, new in renamed.items():
        fake.configs[new] = fake.configs.pop(old)
    for step in fake.configs["ensemble"].ensemble_scheduling.step:
        step.model_name = renamed[step.model_name]
    backend = await opened(fake)
    assert await backend.count_tokens("Hi", add_special_tokens=True) == fake.prompt_tokens
    run = backend.generate(request())
    await anext(run)
    await run.aclose()
    await asyncio.wait_for(fake.stopped.wait(), 5)
    await backend.close()
    assert [stop.model_name for stop in fake.stops] == ["the-engine"]


async def test_the_deadline_is_the_batcher_s_timeout_where_it_honours_one(fake: FakeTriton) -> None:
    backend = await opened(fake)
    await collect(backend)
    assert "timeout" not in fake.requests[-1].parameters
    await backend.close()
    policy = fake.configs["tensorrt_llm"].dynamic_batching.default_queue_policy
    policy.allow_timeout_override, policy.default_timeout_microseconds = True, 60_000_000
    backend = await opened(fake)
    await collect(backend)
    await backend.close()
    assert 5_000_000 < fake.requests[-1].parameters["timeout"].int64_param <= 10_000_000
    assert 5 < (fake.timeouts_s[-1] or 0) <= 10


async def test_a_description_that_is_not_answered_any_more_takes_no_request_with_it(fake: FakeTriton) -> None:
    backend = await opened(fake, metadata_max_age_s=1e-9, metadata_timeout_s=0.2)
    fake.is_description_stuck = True
    for _ in range(3):
        assert text_of(await collect(backend)) == b"Hello"
        assert await backend.health(3) is Health.READY
    fake.script = [Says(b"a"), Error("unexpected inference input 'seed' for model 'ensemble'")]
    with pytest.raises(ServiceError):
        await collect(backend)
    fake.script = [Says(b"Hello"), Final()]
    assert text_of(await collect(backend)) == b"Hello"
    await backend.close()


async def test_one_server_with_another_model_does_not_keep_the_others_from_serving(fake: FakeTriton) -> None:
    async with FakeTriton(script=[Says(b"Hello"), Final()]) as odd:
        odd.configs["ensemble"] = model_config("postprocessing")
        backend = TritonBackend(TritonOptions(url=f"{odd.url},{fake.url}"))
        await backend.start()
        for _ in range(4):
            assert text_of(await collect(backend)) == b"Hello"
        assert await backend.health(2) is Health.READY
        await backend.close()
    assert not odd.requests


async def test_a_datatype_that_no_value_fits_is_told_at_the_start(fake: FakeTriton) -> None:
    for tensor in fake.configs["ensemble"].input:
        if tensor.name == "max_tokens":
            tensor.data_type = model_config_pb2.TYPE_BF16
    backend = TritonBackend(TritonOptions(url=fake.url))
    with pytest.raises(ServiceError) as caught:
        await backend.start()
    await backend.close()
    assert "a request cannot be written" in (caught.value.detail or "")
    assert "BF16" in (caught.value.detail or "")


async def test_a_datatype_that_only_some_requests_meet_fails_those_alone(fake: FakeTriton) -> None:
    for tensor in fake.configs["ensemble"].input:
        if tensor.name == "temperature":
            tensor.data_type = model_config_pb2.TYPE_STRING
    backend = await opened(fake)
    assert text_of(await collect(backend)) == b"Hello"
    sampling = Sampling(max_output_tokens=8, seed=1, temperature=0.5, top_k=3)
    with pytest.raises(ServiceError) as caught:
        async for _ in backend.generate(dataclasses.replace(request(), sampling=sampling)):
            pass
    await backend.close()
    assert caught.value.reason is Reason.BACKEND_ERROR
