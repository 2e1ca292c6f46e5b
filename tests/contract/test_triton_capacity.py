"""How many generations the servers of a model run at once, by what they say about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from service.backends.base import BackendInfo, Health
from service.backends.triton.backend import TritonBackend
from service.backends.triton.facts import model_facts
from service.backends.triton.options import TritonOptions
from service.catalog.file import ModelDeclaration
from service.composition import DEFAULT_RUNNING, open_models
from service.rpc.drain import Drain
from service.rpc.health import HealthMonitor
from tests.support.processes import free_ports
from tests.support.service import eventually
from tests.support.triton_fake import FakeTriton, model_config


@pytest.fixture
async def fakes() -> AsyncIterator[list[FakeTriton]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeTriton()) for _ in range(3)]


@asynccontextmanager
async def started(*urls: str, **options: Any) -> AsyncIterator[TritonBackend]:
    backend = TritonBackend(TritonOptions(url=",".join(urls), metadata_timeout_s=1, **options))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


async def info(*urls: str, **options: Any) -> BackendInfo:
    async with started(*urls, **options) as backend:
        return backend.info


def nobody() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


async def test_an_ensemble_runs_as_many_as_its_engine_takes(fakes: list[FakeTriton]) -> None:
    fakes[0].configs["tensorrt_llm"].max_batch_size = 32
    # Those of the steps that only turn text into ids and back bound nothing.
    fakes[0].configs["ensemble"].max_batch_size = 7
    fakes[0].configs["postprocessing"].max_batch_size = 9
    assert (await info(fakes[0].url)).max_running == 32


async def test_instances_of_the_engine_run_side_by_side(fakes: list[FakeTriton]) -> None:
    engine = fakes[0].configs["tensorrt_llm"]
    engine.max_batch_size = 8
    engine.instance_group[0].count = 2
    assert (await info(fakes[0].url)).max_running == 16


async def test_a_bls_model_runs_one_request_in_each_of_its_instances(fakes: list[FakeTriton]) -> None:
    bls = fakes[0].configs["tensorrt_llm_bls"] = model_config("tensorrt_llm_bls")
    fakes[0].configs["tensorrt_llm"].max_batch_size = 32
    bls.instance_group[0].count = 6
    assert (await info(fakes[0].url, model="tensorrt_llm_bls")).max_running == 6
    bls.instance_group[0].count = 64
    assert (await info(fakes[0].url, model="tensorrt_llm_bls")).max_running == 32


async def test_a_model_that_does_not_batch_says_nothing_about_it(fakes: list[FakeTriton]) -> None:
    fakes[0].configs["vllm_model"] = model_config("vllm_model", "vllm")
    assert (await info(fakes[0].url, model="vllm_model")).max_running is None


async def test_several_servers_run_what_they_run_together(fakes: list[FakeTriton]) -> None:
    for fake, size in zip(fakes, (4, 8, 16), strict=True):
        fake.configs["tensorrt_llm"].max_batch_size = size
    assert (await info(*(fake.url for fake in fakes))).max_running == 28


async def test_a_server_that_is_not_there_yet_counts_like_the_smallest_that_is(fakes: list[FakeTriton]) -> None:
    for fake, size in zip(fakes, (4, 8, 16), strict=True):
        fake.configs["tensorrt_llm"].max_batch_size = size
    assert (await info(fakes[1].url, nobody(), fakes[2].url)).max_running == 32


async def test_nothing_is_known_where_no_server_answers_and_where_one_does_not_say(fakes: list[FakeTriton]) -> None:
    assert (await info(nobody())).max_running is None
    fakes[0].configs["tensorrt_llm"].max_batch_size = 0
    assert (await info(fakes[0].url, fakes[1].url)).max_running is None


@pytest.mark.parametrize(("declared", "slots"), [(None, 40), (3, 3)])
async def test_there_are_as_many_slots_as_a_server_says_that_comes_after_the_service(
    declared: int | None, slots: int
) -> None:
    port, fake = free_ports(1)[0], FakeTriton()
    fake.configs["tensorrt_llm"].max_batch_size = 40
    options = {"url": f"127.0.0.1:{port}", "metadata_timeout_s": 1}
    declaration = ModelDeclaration(
        id="m", backend="triton", template="none", options=options, max_running=declared, reserved_slots=2
    )
    registry = await open_models([declaration])
    model, monitor = registry.get("m"), HealthMonitor(registry, Drain(), interval_s=0.2)
    try:
        await monitor.start()
        assert model.slots.running_limit == (declared or DEFAULT_RUNNING)
        await fake.start(port)
        await eventually(lambda: model.health is Health.READY)
        assert (model.slots.running_limit, model.slots.limits.reserved) == (slots, 2)
    finally:
        await monitor.stop()
        await model.backend.close()
        await fake.close()


def test_a_group_has_its_instances_on_every_device_that_it_names() -> None:
    config = model_config_pb2.ModelConfig(
        instance_group=[
            model_config_pb2.ModelInstanceGroup(count=2, gpus=[0, 1, 2]),
            model_config_pb2.ModelInstanceGroup(count=1),
        ]
    )
    assert model_facts("model", config).instances == 7
    assert model_facts("model", model_config_pb2.ModelConfig()).instances == 1
