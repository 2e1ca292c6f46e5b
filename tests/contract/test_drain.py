"""How a service leaves: in order, for a while or for good, and at once when it is asked twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace import AsyncClient, HeadraceError
from headrace._aio import Transport
from headrace.v1 import generation_pb2 as gen
from headrace.v1 import tokenize_pb2, tokenize_pb2_grpc
from service.backends.simulator import SimulatorBackend
from service.backends.tokenizer import EncodedText
from tests.support.service import (
    GenerateRequest,
    RunningService,
    eventually,
    running_service,
    script,
    simulated_model,
    text_of,
)

Health = health_pb2.HealthCheckResponse

ENDLESS = GenerateRequest(model="sim", prompt=script(tokens=["e"], token_ms=10))
SHORT = GenerateRequest(model="sim", prompt=script(tokens=["s"], token_ms=1, output_tokens=2))


async def status_of(service: RunningService, name: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(service.channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)).status)


@asynccontextmanager
async def endless_stream(service: RunningService) -> AsyncIterator[Any]:
    """A stream that has begun and does not end by itself."""
    call = service.generation.Generate(ENDLESS, timeout=60)
    await call.read()
    yield call
    call.cancel()


async def end_of(call: Any) -> tuple[str, str | None]:
    """Read to the end and return status and reason."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details()
    return "OK", None


# Lame duck


async def test_a_lame_duck_says_not_serving_and_serves_until_its_connections_are_told_to_go() -> None:
    go = gen.GenerateRequest(model="sim", prompt=script(tokens=["g"], token_ms=20, output_tokens=60))
    async with running_service() as service:
        long = service.generation.Generate(go, timeout=60)
        await long.read()
        stopping = asyncio.create_task(service.server.stop(30, delay_s=0.5))
        await eventually(lambda: service.server.drain.is_shutting_down)
        for name, expected in (("", Health.NOT_SERVING), ("headrace.v1.ModelService", Health.NOT_SERVING),
                               ("model/sim", Health.NOT_SERVING), ("healthy", Health.NOT_SERVING),
                               ("live", Health.SERVING)):  # fmt: skip
            assert await status_of(service, name) == expected
        assert text_of(await service.events(SHORT)) == "ss"
        async with asyncio.timeout(5):
            while service.channel.get_state() is grpc.ChannelConnectivity.READY:
                await service.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        await eventually(lambda: service.server.drain.is_draining)
        # Not refused by the server: there is no connection to it any more, so that a balancer's other one is taken.
        refused = await service.failure(SHORT)
        assert (refused.code, refused.details) == (grpc.StatusCode.UNAVAILABLE, [])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", service.port)
        assert await end_of(long) == ("OK", None)
        await asyncio.wait_for(stopping, 5)


@pytest.mark.parametrize("transport", ["grpcio", "asyncio"])
async def test_a_client_of_two_servers_loses_nothing_while_one_leaves(transport: Transport) -> None:
    """Calls that have come are served, the others go to the other; the client tries the few between once more."""
    ended: list[str] = []
    async with (
        running_service() as first,
        running_service() as second,
        AsyncClient(f"ipv4:127.0.0.1:{first.port},127.0.0.1:{second.port}", transport=transport) as client,
    ):
        is_over = False

        async def lane() -> None:
            while not is_over:
                try:
                    async with client.generate(SHORT, timeout_s=10) as events:
                        async for _ in events:
                            pass
                    ended.append("ok")
                except HeadraceError as error:
                    ended.append(repr(error))

        lanes = [asyncio.create_task(lane()) for _ in range(8)]
        await eventually(lambda: len(ended) > 50)
        await first.server.stop(10, delay_s=0.2)
        so_far = len(ended)
        await eventually(lambda: len(ended) > so_far + 50)
        is_over = True
        await asyncio.gather(*lanes)
        assert second.server.outcomes.counts["completed"] > 50
    assert set(ended) == {"ok"}


# At once


@pytest.mark.parametrize("delay_s", [0, 60])
async def test_a_second_signal_ends_everything_at_once_in_every_phase(delay_s: float) -> None:
    async with running_service() as service, endless_stream(service) as stream, asyncio.timeout(10):
        stopping = asyncio.create_task(service.server.stop(60, delay_s=delay_s))
        await eventually(lambda: service.server.drain.is_shutting_down)
        asked_s = time.monotonic()
        service.server.hurry()
        status, text = await end_of(stream)
        assert status == "UNAVAILABLE"
        assert "out of service" in (text or "")
        await stopping
        assert time.monotonic() - asked_s < 2
        assert service.sim.running == 0


async def test_a_second_signal_does_not_wait_for_a_client_that_reads_nothing() -> None:
    flood = gen.GenerateRequest(model="sim", prompt=script(tokens=["x" * 4000], token_ms=0))
    async with running_service() as service, asyncio.timeout(10):
        frozen = service.generation.Generate(flood, timeout=60)
        await frozen.read()
        stopping = asyncio.create_task(service.server.stop(60))
        await eventually(lambda: service.server.drain.is_draining)
        asked_s = time.monotonic()
        service.server.hurry()
        await stopping
        assert time.monotonic() - asked_s < 2
        frozen.cancel()


# What it waits for


class SlowTokenizer:
    """A tokenizer that takes until it is told."""

    has_pieces = True
    vocab_size = 256
    max_text_bytes = 1000

    def __init__(self) -> None:
        self.has_begun, self.go = asyncio.Event(), asyncio.Event()

    async def encode(self, text: str, *, add_special_tokens: bool, with_pieces: bool) -> EncodedText:
        self.has_begun.set()
        await self.go.wait()
        return EncodedText(token_ids=(1, 2), pieces=())

    async def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        return ""


class SlowSimulator(SimulatorBackend):
    """A simulator with that tokenizer."""

    slow = None

    @property
    def tokenizer(self) -> Any:
        self.slow = self.slow or SlowTokenizer()
        return self.slow


async def test_a_tokenization_that_has_begun_is_waited_for_and_new_ones_are_refused() -> None:
    backend = SlowSimulator()
    async with running_service(simulated_model(backend=backend)) as service:
        stub = tokenize_pb2_grpc.TokenizeServiceStub(service.channel)
        request = tokenize_pb2.TokenizeRequest(model="sim", text="a b")
        call = stub.Tokenize(request, timeout=10)
        await backend.tokenizer.has_begun.wait()
        stopping = asyncio.create_task(service.server.stop(30))
        await eventually(lambda: service.server.drain.is_draining)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Tokenize(request, timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not stopping.done()
        backend.tokenizer.go.set()
        assert list((await call).token_ids) == [1, 2]
        await asyncio.wait_for(stopping, 5)


async def test_what_is_refused_while_draining_says_when_to_come_back() -> None:
    async with running_service() as service, endless_stream(service):
        service.server.drain.begin(None)
        refused = await service.failure(SHORT)
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert refused.trailer("grpc-retry-pushback-ms") == "1000"
        assert any(type(detail).__name__ == "RetryInfo" for detail in refused.details)


async def test_a_server_that_was_stopped_can_be_stopped_again() -> None:
    async with running_service() as service:
        await service.server.stop(1)
        await asyncio.wait_for(service.server.stop(1), 3)


# Watchers of health


async def test_a_watcher_that_leaves_takes_no_news_from_the_others() -> None:
    async with running_service() as service:
        stub = health_pb2_grpc.HealthStub(service.channel)
        stays = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=20)
        leaves = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=20)
        assert (await stays.read()).status == (await leaves.read()).status == Health.SERVING
        leaves.cancel()
        await eventually(lambda: len(service.server.monitor._watchers) == 1)
        service.server.drain.begin(None)
        service.server.monitor.publish()
        assert (await stays.read()).status == Health.NOT_SERVING
        service.server.drain.resume()
        service.server.monitor.publish()
        assert (await stays.read()).status == Health.SERVING
        stays.cancel()


async def test_a_watcher_of_an_unknown_name_is_told_so_and_may_go_on_watching(service: RunningService) -> None:
    stub = health_pb2_grpc.HealthStub(service.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="nope"), timeout=5)
    assert (await watch.read()).status == Health.SERVICE_UNKNOWN
    watch.cancel()
