"""The server around Generate: models, health, reflection, TLS, drain."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.v1 import generation_pb2_grpc, model_pb2
from service.backends.simulator import SimulatorBackend, SimulatorOptions
from service.rpc.server import ServerOptions, TlsFiles
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


async def check(service: RunningService, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(service.channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)).status)


# Models


async def test_models_are_listed_by_id_in_pages() -> None:
    models = [simulated_model(f"m{n}", aliases=(f"alias{n}",)) for n in (3, 1, 2)]
    async with running_service(*models) as service:
        first = await service.model.ListModels(model_pb2.ListModelsRequest(page_size=2))
        assert [model.id for model in first.models] == ["m1", "m2"]
        rest = await service.model.ListModels(
            model_pb2.ListModelsRequest(page_size=2, page_token=first.next_page_token)
        )
        assert [model.id for model in rest.models] == ["m3"]
        assert rest.next_page_token == ""


async def test_a_model_says_what_it_is_and_can_do() -> None:
    async with running_service(simulated_model("m", aliases=("other",))) as service:
        model = (await service.model.GetModel(model_pb2.GetModelRequest(model="other"))).model
        assert (model.id, list(model.aliases)) == ("m", ["other"])
        assert model.state == model_pb2.MODEL_STATE_READY
        assert (model.max_context_tokens, model.vocab_size) == (8192, 256)
        assert model_pb2.MODEL_CAPABILITY_CHAT in model.capabilities
        assert model_pb2.MODEL_CAPABILITY_CONSTRAINT not in model.capabilities


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (model_pb2.ListModelsRequest(page_size=-1), ["page_size"]),
        (model_pb2.ListModelsRequest(page_size=201, page_token="zzz"), ["page_size", "page_token"]),
    ],
)
async def test_bad_pages_are_refused(
    service: RunningService, request_: model_pb2.ListModelsRequest, fields: list[str]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await service.model.ListModels(request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert all(field in (refused.value.details() or "") for field in fields)


@pytest.mark.parametrize(
    ("name", "code"), [("", grpc.StatusCode.INVALID_ARGUMENT), ("nope", grpc.StatusCode.NOT_FOUND)]
)
async def test_get_model_refusals(service: RunningService, name: str, code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await service.model.GetModel(model_pb2.GetModelRequest(model=name))
    assert refused.value.code() is code


# Health and reflection


@pytest.mark.report("L04")
async def test_health_flips_when_the_engine_dies_and_comes_back() -> None:
    backend = SimulatorBackend()
    async with running_service(simulated_model(backend=backend)) as service:
        names = ("", "headrace.v1.GenerationService", "model/sim")
        assert [await check(service, name) for name in names] == [Health.SERVING] * 3
        watch = health_pb2_grpc.HealthStub(service.channel).Watch(
            health_pb2.HealthCheckRequest(service="model/sim"), timeout=10
        )
        assert (await watch.read()).status == Health.SERVING
        backend.options = SimulatorOptions(is_down=True)
        assert (await watch.read()).status == Health.NOT_SERVING
        assert await check(service, "headrace.v1.ModelService") == Health.SERVING
        failure = await service.failure(GenerateRequest(model="sim", prompt="hi"))
        assert (failure.code, failure.info.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_NOT_READY")
        assert failure.trailer("grpc-retry-pushback-ms") == "2000"
        backend.options = SimulatorOptions()
        assert (await watch.read()).status == Health.SERVING
        watch.cancel()
        assert await service.events(GenerateRequest(model="sim", prompt="hi"))


async def test_one_living_model_keeps_the_service_serving() -> None:
    dead = simulated_model("dead", SimulatorOptions(is_down=True))
    async with running_service(dead, simulated_model()) as service:
        assert await check(service, "") == Health.SERVING
        assert await check(service, "model/dead") == Health.NOT_SERVING


async def test_an_unknown_health_name_is_not_found(service: RunningService) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await check(service, "nope")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_and_describes_the_services(service: RunningService) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(service.channel)
    request = reflection_pb2.ServerReflectionRequest
    call = stub.ServerReflectionInfo(
        iter([request(list_services=""), request(file_containing_symbol="headrace.v1.GenerationService")]), timeout=5
    )
    answers = [answer async for answer in call]
    listed = {one.name for one in answers[0].list_services_response.service}
    assert {"headrace.v1.GenerationService", "headrace.v1.ModelService", "grpc.health.v1.Health"} <= listed
    described = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in answers[1].file_descriptor_response.file_descriptor_proto
    ]
    assert any(service.name == "GenerationService" for file in described for service in file.service)


@pytest.mark.report("J02")
async def test_a_client_that_pings_often_survives_a_long_prefill(service: RunningService) -> None:
    """A server with gRPC's defaults ends the connection at the third ping, 18 s into this stream."""
    options = [
        ("grpc.keepalive_time_ms", 6_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options=options) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = GenerateRequest(model="sim", prompt=script(prefill_ms=26_000, tokens=["x"], output_tokens=1))
        assert len([event async for event in stub.Generate(request, timeout=50)]) == 4


# TLS


def make_certificates(folder: Path) -> dict[str, Path]:
    """Make an authority, and a server's and a client's certificate that it signed."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
            "-subj", "/CN=test authority")  # fmt: skip
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", f"/CN={name}")  # fmt: skip
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext")  # fmt: skip
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_certificates(tmp_path_factory.mktemp("tls"))


async def generate_over(port: int, credentials: grpc.ChannelCredentials) -> int:
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = GenerateRequest(model="sim", prompt=script(tokens=["a"], output_tokens=1))
        return len([event async for event in stub.Generate(request, timeout=5)])


async def test_tls_and_mutual_tls(certificates: dict[str, Path]) -> None:
    ca = certificates["ca.pem"].read_bytes()
    plain = grpc.ssl_channel_credentials(ca)
    mutual = grpc.ssl_channel_credentials(
        ca, certificates["client.key"].read_bytes(), certificates["client.pem"].read_bytes()
    )
    pair = {"certificate": certificates["server.pem"], "key": certificates["server.key"]}
    async with running_service(options=ServerOptions(port=0, tls=TlsFiles(**pair))) as service:
        assert await generate_over(service.port, plain) == 4
    files = TlsFiles(**pair, client_ca=certificates["ca.pem"])
    async with running_service(options=ServerOptions(port=0, tls=files)) as service:
        assert await generate_over(service.port, mutual) == 4
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await generate_over(service.port, plain)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


# The end


@pytest.mark.report("L01")
async def test_drain_finishes_short_streams_refuses_new_ones_and_ends_the_rest() -> None:
    async with running_service() as service:
        short = service.generation.Generate(
            GenerateRequest(model="sim", prompt=script(tokens=["s"], output_tokens=20, token_ms=10))
        )
        endless = service.generation.Generate(
            GenerateRequest(model="sim", prompt=script(tokens=["e"], token_ms=10)), timeout=60
        )
        await short.read()
        await endless.read()
        stopping = asyncio.create_task(service.server.stop(1.0))
        await eventually(lambda: service.server.drain.is_draining)
        refused = await service.failure(GenerateRequest(model="sim", prompt="hi"))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert await check(service, "") == Health.NOT_SERVING
        model = (await service.model.GetModel(model_pb2.GetModelRequest(model="sim"))).model
        assert model.state == model_pb2.MODEL_STATE_DRAINING
        events = []
        while (event := await short.read()) is not grpc.aio.EOF:
            events.append(event)
        assert text_of(events).endswith("s" * 18)
        assert events[-1].WhichOneof("event") == "completed"
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            while await endless.read() is not grpc.aio.EOF:
                pass
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "out of service" in (ended.value.details() or "")
        await stopping
        assert service.sim.running == 0


async def test_a_hurried_drain_ends_what_runs_at_once() -> None:
    async with running_service() as service, asyncio.timeout(5):
        endless = service.generation.Generate(
            GenerateRequest(model="sim", prompt=script(tokens=["e"], token_ms=10)), timeout=60
        )
        await endless.read()
        stopping = asyncio.create_task(service.server.stop(60))
        await eventually(lambda: service.server.drain.is_draining)
        service.server.drain.hurry()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            while await endless.read() is not grpc.aio.EOF:
                pass
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        await stopping


async def test_an_idle_server_stops_at_once() -> None:
    async with running_service() as service, asyncio.timeout(3):
        await service.server.stop(30)


async def test_a_taken_port_is_a_clear_error() -> None:
    async with running_service() as service:
        with pytest.raises(OSError, match=str(service.port)):
            async with running_service(options=ServerOptions(port=service.port)):
                pass


@pytest.mark.report("J01")
async def test_a_message_over_the_limit_is_refused_and_the_server_lives() -> None:
    async with running_service(options=ServerOptions(port=0, max_message_bytes=100_000)) as service:
        failure = await service.failure(GenerateRequest(model="sim", prompt="x" * 200_000))
        assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await service.events(GenerateRequest(model="sim", prompt=script(output_tokens=1)))
