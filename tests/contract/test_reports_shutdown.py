"""Replays of public bug reports: what health and readiness say while the engine, or the way to it, is dead."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.gateway_harness import RawClient, RunningGateway, running_gateway
from tests.support.processes import refusing_port
from tests.support.report_replay import Replay, replays, script

# The promises are a second and at once, and this machine may be busy. What waited for the service would wait for good.
ANSWERED_WITHIN_S = 5.0


async def status_of(gateway: RunningGateway, path: str) -> int:
    begun_s = time.monotonic()
    async with gateway.connect() as client:
        status = (await client.get(path)).status
    assert time.monotonic() - begun_s < ANSWERED_WITHIN_S
    return status


async def agrees(replay: Replay, *, is_serving: bool) -> None:
    """Wait until /readyz and grpc.health.v1 both say so; liveness stays true."""
    stub = health_pb2_grpc.HealthStub(replay.service.channel)
    wanted = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
    async with asyncio.timeout(10):
        while await status_of(replay.gateway, "/readyz") != (200 if is_serving else 503):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for name in ("", "headrace.v1.GenerationService", "model/m"):
            request = health_pb2.HealthCheckRequest(service=name)
            while (await stub.Check(request, timeout=5)).status != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert await status_of(replay.gateway, "/healthz") == 200


@pytest.mark.report("L04")
@pytest.mark.parametrize("failing", ['ERR("engine broke")', "HANG"])
async def test_readiness_follows_what_triton_does_and_not_what_it_says_of_itself(failing: str) -> None:
    async with replays(health_interval_s=0.3, options={"canary_interval_s": 0.5}) as replay:
        await agrees(replay, is_serving=True)
        replay.will(failing)
        well, replay.fake.canary_script = replay.fake.canary_script, None
        # Triton's own word stays: the server is live, and the model ready.
        assert replay.fake.is_live
        assert replay.fake.is_model_ready
        await agrees(replay, is_serving=False)
        assert (await replay.call(failing)).code == "MODEL_NOT_READY"
        replay.fake.script, replay.fake.canary_script = script('"ok",FIN(eos)').steps, well
        await agrees(replay, is_serving=True)
        assert (await replay.whole('"ok",FIN(eos)')).text == "ok"


@contextmanager
def silent() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that takes no connection and refuses none: its line is full."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.report("L06")
@pytest.mark.parametrize("service", [refusing_port, silent, black_hole])
async def test_health_is_told_at_once_where_the_service_does_not_answer(service: object) -> None:
    with service() as port:  # type: ignore[operator]
        async with running_gateway(f"127.0.0.1:{port}") as gateway:
            for _ in range(3):
                alive, ready = await asyncio.gather(status_of(gateway, "/healthz"), status_of(gateway, "/readyz"))
                assert (alive, ready) == (200, 503)


@pytest.mark.report("L06")
async def test_health_is_told_at_once_where_triton_does_not_answer() -> None:
    async with replays(health_interval_s=0.3, options={"canary_interval_s": 0.5}) as replay:
        await replay.fake.close()
        await agrees(replay, is_serving=False)
        async with RawClient(replay.gateway.port) as client:
            assert (await client.get("/readyz")).json()["status"] == "not ready"
