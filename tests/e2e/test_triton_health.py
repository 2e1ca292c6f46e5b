"""A Triton that dies and comes back: what health, readiness and running streams say."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from tests.support.gateway_harness import RawClient
from tests.support.http_stream import HttpStream, open_stream
from tests.support.processes import Stack, free_ports, stack, wait_until
from tests.support.triton_server import RealTriton, running_triton

pytestmark = [pytest.mark.e2e, pytest.mark.triton, pytest.mark.timeout(120)]

COMPLETIONS = "/v1/completions"
# Health is looked at this often, and right after a request that the engine failed.
INTERVAL_S = 0.3
NOTICED_S = 5.0


class Mortal:
    """A Triton of its own, always on the same ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = free_ports(3)
        self._opened = ExitStack()
        self.now: RealTriton

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        explicit = ("--model-control-mode=explicit", "--load-model=*")
        server = running_triton(self._folder, "scripted", *explicit, ports=self._ports)
        self.now = self._opened.enter_context(server)

    def stop(self) -> None:
        """End it in order, if it still runs."""
        self.now.process.send_signal(signal.SIGTERM)
        self.now.process.wait(15)
        self._opened.close()

    def kill(self) -> None:
        """End server and engine without a word."""
        family = psutil.Process(self.now.process.pid).children(recursive=True)
        for member in family:
            member.kill()
        psutil.wait_procs(family, timeout=5)


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[Mortal]:
    server = Mortal(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def running(triton: Mortal, tmp_path: Path) -> Iterator[Stack]:
    with stack(tmp_path, backend="triton", triton_url=triton.url, health_interval_s=INTERVAL_S) as both:
        yield both


@pytest.fixture
def watchful(triton: Mortal, tmp_path: Path) -> Iterator[Stack]:
    """A service that trusts a token for one second, where the default is ten."""
    models = tmp_path / "models.toml"
    options = f'url = "{triton.url}"\ncanary_interval_s = 1'
    models.write_text(
        f'[[models]]\nid = "ensemble"\naliases = ["default"]\nbackend = "triton"\ntemplate = "none"\n'
        f"[models.options]\n{options}\n"
    )
    with stack(tmp_path, models_file=models, health_interval_s=INTERVAL_S) as both:
        yield both


class Health:
    """What the service says of itself, over grpc.health.v1."""

    def __init__(self, channel: Any) -> None:
        self._stub = health_pb2_grpc.HealthStub(channel)

    async def wait(self, *, is_serving: bool) -> None:
        """Wait until all names that depend on the engine say so."""
        wanted = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        give_up_s = time.monotonic() + NOTICED_S
        for name in ("", "headrace.v1.GenerationService", "model/ensemble"):
            while await self.status(name) != wanted:
                assert time.monotonic() < give_up_s, f"{name!r} does not become {wanted}"
                await asyncio.sleep(0.01)
        # The process takes calls all the time.
        assert await self.status("headrace.v1.ModelService") == health_pb2.HealthCheckResponse.SERVING

    async def status(self, name: str) -> int:
        answer = await self._stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
        return int(answer.status)


async def is_served(port: int) -> bool:
    async with RawClient(port) as client:
        answer = await client.post({"model": "default", "prompt": "token_ms=1", "max_tokens": 3}, COMPLETIONS)
    return answer.status == 200


def endless(number: int = 1000) -> dict[str, Any]:
    return {"model": "default", "prompt": "token_ms=20", "max_tokens": number}


@pytest.mark.report("L04")
async def test_health_follows_the_engine_and_the_server_down_and_up(triton: Mortal, watchful: Stack) -> None:
    ready = f"{watchful.url}/readyz"
    async with grpc.aio.insecure_channel(watchful.target) as channel:
        health = Health(channel)
        await health.wait(is_serving=True)
        assert await wait_until(ready, 200) < NOTICED_S
        # The engine's process alone: the server says of itself that all is well.
        triton.now.stub_of("tensorrt_llm").send_signal(signal.SIGKILL)
        assert not await is_served(watchful.gateway.port)
        await health.wait(is_serving=False)
        assert await wait_until(ready, 503) < NOTICED_S
        assert await wait_until(f"{watchful.url}/healthz", 200) < NOTICED_S
        await load_again(triton.url)
        await health.wait(is_serving=True)
        assert await wait_until(ready, 200) < NOTICED_S
        assert await is_served(watchful.gateway.port)
        # All of it, and a new one on the same port.
        await asyncio.to_thread(triton.stop)
        await health.wait(is_serving=False)
        assert await wait_until(ready, 503) < NOTICED_S
        await asyncio.to_thread(triton.start)
        await health.wait(is_serving=True)
        assert await wait_until(ready, 200) < NOTICED_S
        assert await is_served(watchful.gateway.port)


async def test_streams_of_a_triton_that_is_killed_end_with_an_error_each(triton: Mortal, running: Stack) -> None:
    async with (
        open_stream(running.gateway.port, endless(), COMPLETIONS) as over_http,
        grpc.aio.insecure_channel(running.target) as channel,
    ):
        request = gen.GenerateRequest(model="default", prompt="token_ms=20", sampling={"max_output_tokens": 1000})
        over_grpc = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=60)
        events = aiter(over_grpc)
        assert (await anext(events)).HasField("started")
        await anext(events)
        await over_http.until_text()
        killed_s = time.monotonic()
        triton.kill()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in events:
                pass
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        await ends_with_an_error(over_http)
        assert time.monotonic() - killed_s < NOTICED_S
        # A token was young when it died; that proves nothing now.
        await Health(channel).wait(is_serving=False)
        await wait_until(f"{running.url}/readyz", 503)
        lines = running.service.lines(logger="headrace.request", outcome="backend_error")
        assert [line["reason"] for line in lines] == ["BACKEND_UNAVAILABLE"] * 2


async def ends_with_an_error(stream: HttpStream) -> None:
    events = await stream.rest()
    assert "[DONE]" not in events
    error = json.loads(events[-1])["error"]
    assert (error["code"], error["type"]) == ("backend_unavailable", "service_unavailable_error")
    assert "127.0.0.1" not in error["message"]


async def load_again(url: str) -> None:
    async with grpc.aio.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        await stub.RepositoryModelUnload(
            service_pb2.RepositoryModelUnloadRequest(model_name="tensorrt_llm"), timeout=20
        )
        for name in ("tensorrt_llm", "ensemble"):
            await stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=name), timeout=20)
