"""Models, health, metadata, retries and TLS of the client, against a scripted service."""

import shutil
import subprocess
from pathlib import Path

import grpc
import pytest

from headrace import AsyncClient, TlsConfig, errors, generate_text
from headrace.v1 import model_pb2
from tests.support.fake_service import Fail, delta, fake_service, model, started
from tests.support.processes import refusing_port

BUSY = Fail(code=grpc.StatusCode.UNAVAILABLE, reason="MODEL_NOT_READY")


async def test_all_pages_of_models_are_listed() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.models = [model(f"m{n:03}") for n in range(450)]
        assert [m.id for m in await client.list_models()] == [f"m{n:03}" for n in range(450)]


async def test_a_model_is_found_by_alias_and_a_missing_one_is_not_found() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.models = [model("long-name", aliases=["short"])]
        assert (await client.get_model("short")).id == "long-name"
        with pytest.raises(errors.NotFound) as caught:
            await client.get_model("nowhere")
        assert (caught.value.reason, caught.value.status) == ("MODEL_NOT_FOUND", grpc.StatusCode.NOT_FOUND)


async def test_the_default_model_is_the_first_that_is_ready() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.models = [model("a", state=model_pb2.MODEL_STATE_LOADING), model("b"), model("c")]
        assert await client.default_model() == "b"
        del fake.models[1:]
        assert await client.default_model() == "a"
        fake.models = []
        with pytest.raises(errors.NotFound, match="no models"):
            await client.default_model()


async def test_health_is_true_only_for_a_service_that_says_serving() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        assert await client.health()
        assert await client.health("headrace.v1.ModelService")
        await fake.set_serving("headrace.v1.GenerationService", serving=False)
        assert not await client.health()
        assert not await client.health("no.such.Service")
    async with AsyncClient(fake.address) as client:
        assert not await client.health(timeout_s=0.5)  # nobody listens any more


async def test_metadata_of_the_client_and_of_the_call_both_arrive() -> None:
    async with fake_service() as fake, AsyncClient(fake.address, metadata={"Authorization": "Bearer t"}) as client:
        async with client.generate(model="m", prompt="p", metadata=[("X-Request-Id", "r1")]) as stream:
            await stream.text()
        call = await fake.next_call()
        assert (call.header("authorization"), call.header("x-request-id")) == ("Bearer t", "r1")
        assert str(call.header("user-agent")).startswith("headrace-python/")


@pytest.mark.parametrize("prompt_bytes", [1, 1_000_000], ids=["short", "long"])
async def test_unavailable_before_the_first_event_is_tried_three_times(prompt_bytes: int) -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(BUSY)
        fake.will(BUSY)
        async with client.generate(model="m", prompt="x" * prompt_bytes) as stream:
            assert await stream.text() == "Hello world"
        assert [call.header("grpc-previous-rpc-attempts") for call in fake.calls] == [None, "1", "2"]


async def test_after_three_tries_the_error_arrives() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.default = (BUSY,)
        async with client.generate(model="m", prompt="p") as stream:
            with pytest.raises(errors.Unavailable) as caught:
                await stream.text()
        assert (len(fake.calls), caught.value.reason, caught.value.is_retriable) == (3, "MODEL_NOT_READY", True)


async def test_unavailable_after_the_first_event_is_not_tried_again() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.default = (started(), delta("a"), BUSY)
        async with client.generate(model="m", prompt="p") as stream:
            with pytest.raises(errors.Unavailable):
                await stream.text()
        assert len(fake.calls) == 1


async def test_a_full_queue_is_not_tried_again_behind_the_callers_back() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.default = (Fail(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_after_s=1.5),)
        async with client.generate(model="m", prompt="p") as stream:
            with pytest.raises(errors.Overloaded) as caught:
                await stream.text()
        assert (len(fake.calls), caught.value.retry_after_s, caught.value.is_retriable) == (1, 1.5, True)


async def test_a_request_over_the_servers_size_limit_is_the_requests_fault() -> None:
    limit = [("grpc.max_receive_message_length", 1000)]
    async with fake_service(options=limit) as fake, AsyncClient(fake.address) as client:
        stream = client.generate(model="m", prompt="x" * 2000)
        async with stream:
            with pytest.raises(errors.RequestTooLarge):
                await stream.text()


async def test_a_refused_connection_is_unavailable_without_a_reason() -> None:
    with refusing_port() as port:
        address = f"127.0.0.1:{port}"
        async with AsyncClient(address) as client, client.generate(model="m", prompt="p", timeout_s=5) as stream:
            with pytest.raises(errors.Unavailable) as caught:
                await stream.text()
    assert (caught.value.reason, caught.value.is_retriable) == (None, True)


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-days", "2", "-keyout", str(key), "-out", str(cert), "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return key, cert


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls_trusts_the_given_root_and_checks_the_name(tmp_path: Path) -> None:
    key, cert = make_certificate(tmp_path, "llm.test")
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    async with fake_service(credentials=credentials) as fake:
        named = TlsConfig.from_files(ca=cert, server_name="llm.test")
        async with AsyncClient(fake.address, tls=named) as client:
            assert await client.health(timeout_s=5)
        async with AsyncClient(fake.address, tls=TlsConfig.from_files(ca=cert)) as client:
            with pytest.raises(errors.Unavailable):
                await client.list_models(timeout_s=5)


async def test_the_synchronous_call_refuses_a_running_loop_in_words() -> None:
    with pytest.raises(RuntimeError, match="running event loop"):
        generate_text("p", target="127.0.0.1:1")
