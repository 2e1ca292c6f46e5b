"""AdminService on its own port: status, out of service, back into it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace import AsyncClient
from headrace.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, model_pb2
from runtime.settings import load
from service.backends.simulator import SimulatorOptions
from service.catalog.model import Model
from service.config import ServiceSettings
from service.rpc.server import ServerOptions, TlsFiles
from tests.contract.test_server import make_certificates
from tests.support.service import (
    Failure,
    GenerateRequest,
    RunningService,
    eventually,
    running_service,
    script,
    simulated_model,
)

Health = health_pb2.HealthCheckResponse
Status = admin_pb2.GetServerStatusResponse

ENDLESS = GenerateRequest(model="sim", prompt=script(tokens=["e"], token_ms=10))
SHORT = GenerateRequest(model="sim", prompt=script(tokens=["s"], output_tokens=1))


@dataclass(slots=True)
class Operated:
    """A service and a stub for its other port."""

    service: RunningService
    channel: Any
    stub: Any

    async def status(self) -> Status:
        return await self.stub.GetServerStatus(admin_pb2.GetServerStatusRequest(), timeout=5)

    async def drain(self, grace_s: float | None = None) -> int:
        grace = None
        if grace_s is not None:
            grace = Duration()
            grace.FromMilliseconds(round(grace_s * 1000))
        return int((await self.stub.Drain(admin_pb2.DrainRequest(grace=grace), timeout=5)).active_count)

    async def resume(self) -> None:
        await self.stub.ResumeServing(admin_pb2.ResumeServingRequest(), timeout=5)

    async def health(self, name: str = "") -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)).status)


@asynccontextmanager
async def operated(*models: Model) -> AsyncIterator[Operated]:
    options = ServerOptions(port=0, admin_port=0, health_interval_s=0.2)
    async with (
        running_service(*models, options=options) as service,
        grpc.aio.insecure_channel(f"127.0.0.1:{service.server.admin_port}") as channel,
    ):
        yield Operated(service, channel, admin_pb2_grpc.AdminServiceStub(channel))


async def begun(service: RunningService, request: GenerateRequest = ENDLESS) -> Any:
    """Return a stream that has begun."""
    call = service.generation.Generate(request, timeout=30)
    await call.read()
    return call


async def failure_of(call: Any) -> Failure:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return Failure(error, 0)
    raise AssertionError("the call did not fail")


async def text_of(client: AsyncClient) -> str:
    async with client.generate(model="sim", prompt="hi", timeout_s=20) as stream:
        return await stream.text()


# Status


async def test_status_tells_load_per_class_and_every_outcome_once() -> None:
    batch = GenerateRequest(model="sim", prompt=ENDLESS.prompt, priority=generation_pb2.PRIORITY_BATCH)
    async with operated(simulated_model(running=1, waiting=5)) as server:
        service = server.service
        assert len(await service.events(SHORT)) > 2
        await service.failure(GenerateRequest(model="nope", prompt="x"))
        await service.failure(GenerateRequest())
        running = await begun(service)
        waiting = [service.generation.Generate(one, timeout=30) for one in (ENDLESS, batch, batch)]
        await eventually(lambda: service.server.drain.running == 4)
        status = await server.status()
        assert (status.state, list(status.problems)) == (admin_pb2.SERVING_STATE_READY, [])
        assert (status.active_count, dict(status.outcome_counts)) == (4, {"completed": 1, "rejected": 2})
        assert status.version
        assert status.uptime.ToTimedelta().total_seconds() > 0
        (load,) = status.models
        assert (load.model, load.state) == ("sim", model_pb2.MODEL_STATE_READY)
        assert (load.running_count, load.running_limit) == (1, 1)
        assert [(one.priority, one.running_count, one.waiting_count) for one in load.classes] == [
            (generation_pb2.PRIORITY_INTERACTIVE, 1, 1),
            (generation_pb2.PRIORITY_BATCH, 0, 2),
        ]
        assert load.classes[0].waiting_limit == 5
        for call in (running, *waiting):
            call.cancel()
        await eventually(lambda: service.server.drain.running == 0)
        await eventually(lambda: service.server.outcomes.counts["client_cancelled"] == 4)
        assert sum((await server.status()).outcome_counts.values()) == 7


async def test_a_server_is_degraded_while_one_of_its_models_is_not_ready() -> None:
    dead = simulated_model("dead", SimulatorOptions(is_down=True))
    async with operated(dead, simulated_model()) as server:
        status = await server.status()
        assert status.state == admin_pb2.SERVING_STATE_DEGRADED
        assert list(status.problems) == ["model dead is unavailable"]
        assert await server.health("") == Health.SERVING
        assert await server.health("healthy") == Health.NOT_SERVING
        assert await server.health("live") == Health.SERVING


async def test_a_server_is_degraded_while_a_line_was_full_and_healthy_before() -> None:
    async with operated(simulated_model(running=1, waiting=0)) as server:
        assert await server.health("healthy") == Health.SERVING
        running = await begun(server.service)
        refused = await server.service.failure(SHORT)
        assert refused.info.reason == "QUEUE_FULL"
        assert await server.health("healthy") == Health.NOT_SERVING
        assert await server.health("") == Health.SERVING
        status = await server.status()
        assert status.state == admin_pb2.SERVING_STATE_DEGRADED
        assert "waiting line of model sim was full" in status.problems[0]
        running.cancel()


async def test_a_server_without_a_ready_model_is_not_ready() -> None:
    async with operated(simulated_model(options=SimulatorOptions(is_down=True))) as server:
        assert (await server.status()).state == admin_pb2.SERVING_STATE_NOT_READY
        assert await server.health("healthy") == Health.NOT_SERVING


# Out of service, and back


async def test_a_drained_server_refuses_new_work_finishes_what_runs_and_serves_again() -> None:
    async with operated() as server:
        service = server.service
        stream = await begun(service, GenerateRequest(model="sim", prompt=script(token_ms=10, output_tokens=30)))
        assert await server.drain() == 1
        status = await server.status()
        assert (status.state, status.models[0].state) == (
            admin_pb2.SERVING_STATE_DRAINING,
            model_pb2.MODEL_STATE_DRAINING,
        )
        assert await server.health("") == Health.NOT_SERVING
        assert await server.health("live") == Health.SERVING
        refused = await service.failure(SHORT)
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert refused.trailer("grpc-retry-pushback-ms") == "1000"
        while await stream.read() is not grpc.aio.EOF:
            pass
        assert (await server.status()).active_count == 0
        await server.resume()
        assert await server.health("") == Health.SERVING
        assert (await server.status()).state == admin_pb2.SERVING_STATE_READY
        assert await service.events(SHORT)


async def test_the_grace_of_a_drain_ends_what_still_runs() -> None:
    async with operated() as server:
        stream = await begun(server.service)
        await server.drain(0.2)
        ended = await failure_of(stream)
        assert (ended.code, ended.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert ended.info.metadata["lastSequence"]
        await eventually(lambda: server.service.server.outcomes.counts["drained"] == 1)


async def test_what_a_drain_ends_in_the_line_is_to_come_again_and_does() -> None:
    async with operated(simulated_model(running=1)) as server:
        stream = await begun(server.service)
        waiting = asyncio.create_task(server.service.failure(SHORT))
        async with AsyncClient(f"127.0.0.1:{server.service.port}") as client:
            repeated = asyncio.create_task(text_of(client))
            await eventually(lambda: server.service.models["sim"].slots.waiting == 2)
            await server.drain(0.1)
            ended = await waiting
            assert (ended.code, ended.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            assert (ended.received, ended.trailer("grpc-retry-pushback-ms")) == (0, "1000")
            assert (await failure_of(stream)).info.reason == "DRAINING"
            await server.resume()
            assert await repeated


async def test_a_later_drain_changes_the_grace_and_a_resume_forgets_it() -> None:
    async with operated() as server:
        stream = await begun(server.service)
        await server.drain(0.3)
        await server.drain(30)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await failure_of(stream)
        await server.resume()
        again = await begun(server.service)
        await server.drain(0.1)
        assert (await failure_of(again)).info.reason == "DRAINING"


async def test_resuming_a_server_that_serves_changes_nothing() -> None:
    async with operated() as server:
        await server.resume()
        assert await server.service.events(SHORT)


@pytest.mark.parametrize("delay_s", [0, 60])
async def test_a_process_that_shuts_down_cannot_serve_again_and_can_be_told_to_hurry(delay_s: float) -> None:
    async with operated() as server, asyncio.timeout(10):
        stream = await begun(server.service)
        stopping = asyncio.create_task(server.service.server.stop(60, delay_s=delay_s))
        await eventually(lambda: server.service.server.drain.is_shutting_down)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.resume()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert Failure(refused.value, 0).info.reason == "DRAINING"
        assert "shutting down" in (await server.status()).problems[0]
        await server.drain(0.1)
        assert (await failure_of(stream)).info.reason == "DRAINING"
        server.service.server.hurry()
        await stopping


async def test_a_negative_grace_is_refused() -> None:
    async with operated() as server:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.stub.Drain(admin_pb2.DrainRequest(grace=Duration(seconds=-1)), timeout=5)
        assert Failure(refused.value, 0).fields == ["grace"]
        assert await server.service.events(SHORT)


# The port


async def listed(channel: Any) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=5)
    (answer,) = [answer async for answer in call]
    return {one.name for one in answer.list_services_response.service}


async def test_callers_do_not_find_it_on_their_port_nor_operators_the_rest_on_theirs() -> None:
    async with operated() as server:
        assert "headrace.v1.AdminService" in await listed(server.channel)
        assert "headrace.v1.GenerationService" not in await listed(server.channel)
        assert "headrace.v1.AdminService" not in await listed(server.service.channel)
        stub = admin_pb2_grpc.AdminServiceStub(server.service.channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetServerStatus(admin_pb2.GetServerStatusRequest(), timeout=5)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_without_an_admin_port_there_is_none(service: RunningService) -> None:
    assert service.server.admin_port is None


async def test_a_taken_admin_port_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        admin_port = taken.getsockname()[1]
        with pytest.raises(OSError, match=str(admin_port)):
            async with running_service(options=ServerOptions(port=0, admin_port=admin_port)):
                pass


async def test_the_admin_port_asks_for_the_same_certificates(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    tls = TlsFiles(certificate=files["server.pem"], key=files["server.key"], client_ca=files["ca.pem"])
    ca = files["ca.pem"].read_bytes()
    known = grpc.ssl_channel_credentials(ca, files["client.key"].read_bytes(), files["client.pem"].read_bytes())
    async with running_service(options=ServerOptions(port=0, admin_port=0, tls=tls)) as service:
        address = f"127.0.0.1:{service.server.admin_port}"
        async with grpc.aio.secure_channel(address, known) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            assert (await stub.GetServerStatus(admin_pb2.GetServerStatusRequest(), timeout=5)).version
        async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca)) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetServerStatus(admin_pb2.GetServerStatusRequest(), timeout=5)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_one_port_for_callers_and_operators_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for hosts in ([], ["--host", "0.0.0.0"], ["--host", "10.0.0.1", "--admin-host", "[::]"]):
        with pytest.raises(SystemExit):
            load(ServiceSettings, ["--admin-port", "50051", *hosts], prog="service")
        assert "--admin-port" in capsys.readouterr().err
    load(ServiceSettings, ["--admin-port", "50051", "--host", "10.0.0.1", "--allow-insecure"], prog="service")
    load(ServiceSettings, ["--admin-port", "0", "--grpc-port", "0"], prog="service")


# The command


async def headrace(server: Operated, *arguments: str) -> tuple[int, str, str]:
    environment = {**os.environ, "HEADRACE_ADMIN_TARGET": f"127.0.0.1:{server.service.server.admin_port}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.cli", "admin", *arguments, stdout=PIPE, stderr=PIPE, env=environment
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_command_shows_drains_and_resumes() -> None:
    async with operated() as server:
        await server.service.events(SHORT)
        code, out, _ = await headrace(server, "status")
        assert (code, out.startswith("ready; 0 active; version ")) == (0, True)
        assert re.search(r"sim +│ ready +│ 0 of 64 │ interactive +│ 0 +│ 0 of 64", out)
        assert "ended: 1 completed" in out

        stream = await begun(server.service)
        code, out, err = await headrace(server, "drain", "--grace", "0.1", "--wait")
        assert (code, out) == (0, "drained: nothing runs\n")
        assert err.startswith("draining: 1 active\n")
        assert (await failure_of(stream)).info.reason == "DRAINING"
        code, out, _ = await headrace(server, "status", "--json")
        shown = json.loads(out)
        assert (shown["state"], shown["active_count"]) == ("SERVING_STATE_DRAINING", 0)
        assert shown["outcome_counts"] == {"completed": 1, "drained": 1}
        assert shown["problems"] == ["the server was taken out of service"]

        assert await headrace(server, "resume") == (0, "serving\n", "")
        assert await headrace(server, "drain", "--json") == (0, '{"active_count": 0}\n', "")


async def test_the_command_fails_in_one_line_where_nobody_listens() -> None:
    async with operated() as server:
        code, out, err = await headrace(server, "status", "--admin-target", "127.0.0.1:1", "--timeout", "5")
        assert (code, out, err.count("\n")) == (1, "", 1)
