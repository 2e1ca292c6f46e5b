"""Who calls over HTTP: the service decides, the gateway hands on, and SDKs see their own errors."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.app import Gateway
from gateway.config import GatewaySettings
from gateway.exposure import serve_guarded
from gateway.server import GatewayServer
from headrace.cli._keys_file import revoke
from service.rpc.server import ServerOptions, TlsFiles
from service.tenancy.authenticator import Authenticator
from service.tenancy.key_file import KeyFile
from tests.contract.test_server import make_certificates
from tests.support.credentials import made_key, serving_issuer, started
from tests.support.gateway_harness import RunningGateway, chat_body, read_events, running_gateway
from tests.support.service import eventually, running_service, script, simulated_model
from tests.support.tracing import install_exporter

SAY = script(tokens=["a"], output_tokens=1)
# Names this machine, and looks like a name that others may know.
ELSEWHERE = "127.1"


@asynccontextmanager
async def site(
    path: Path, *, tokens: object = None, options: ServerOptions | None = None, **settings: object
) -> AsyncIterator[RunningGateway]:
    """Serve one model with the keys of a file, and a gateway in front."""
    authenticator = Authenticator(KeyFile(path, look_s=0.02), tokens)  # type: ignore[arg-type]
    async with (
        started(authenticator),
        running_service(simulated_model(aliases=("fake",)), authenticator=authenticator, options=options) as service,
        running_gateway(f"127.0.0.1:{service.port}", **settings) as gateway,
    ):
        yield gateway


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def sdk(gateway: RunningGateway, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


async def test_the_official_package_sees_a_wrong_key_as_its_own_error(path: Path) -> None:
    key = made_key(path)
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
    async with serving_issuer() as issuer, site(path, tokens=issuer.checker()) as gateway:
        for good in (key.text, issuer.token()):
            async with sdk(gateway, good) as client:
                assert (await client.chat.completions.create(model="sim", messages=messages)).choices
                assert [model.id async for model in client.models.list()] == ["sim"]
        async with sdk(gateway, f"hr_{key.id}_{'x' * 43}") as client:
            with pytest.raises(openai.AuthenticationError) as wrong:
                await client.chat.completions.create(model="sim", messages=messages, stream=True)
            assert (wrong.value.code, wrong.value.type) == ("invalid_api_key", "invalid_request_error")
            assert wrong.value.request_id
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
            with pytest.raises(openai.AuthenticationError):
                await client.responses.create(model="sim", input="hi")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_is_shaped_as_openai_s_and_says_how_to_prove_who_calls(path: Path, *, stream: bool) -> None:
    key = made_key(path)
    async with site(path) as gateway, gateway.connect() as client:
        for sent, code in (
            ({"authorization": "Bearer nonsense"}, "invalid_api_key"),
            ({"authorization": "Basic eDp5"}, "invalid_api_key"),
            ({"authorization": f"Bearer {key.text}, Bearer {key.text}"}, "invalid_api_key"),
            ({}, None),
        ):
            response = await client.post(chat_body(stream=stream), headers=sent)
            assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
            assert response.headers["x-should-retry"] == "false"
            error = response.json()["error"]
            assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, None)
        # Two fields, of which the first alone would do.
        lines = f"authorization: Bearer {key.text}\r\n" * 2
        client.writer.write(f"GET /v1/models HTTP/1.1\r\nhost: test\r\n{lines}\r\n".encode())
        assert (await client.response()).status == 401
        response = await client.post(chat_body(stream=stream), headers={"authorization": f"bearer {key.text}"})
        assert response.status == 200


async def test_a_key_that_is_not_for_a_model_is_not_allowed_to_use_it(path: Path) -> None:
    key = made_key(path, models=["other"])
    headers = {"authorization": f"Bearer {key.text}"}
    async with site(path) as gateway, gateway.connect() as client:
        assert (await client.get("/v1/models", headers=headers)).json()["data"] == []
        assert (await client.get("/v1/models/sim", headers=headers)).status == 404
        denied = await client.post({"model": "sim", "prompt": "a"}, "/v1/tokenize", headers)
        assert denied.status == 403
        assert denied.json()["error"]["type"] == "permission_error"


async def test_a_long_token_is_handed_on_or_refused_and_never_left_out(path: Path) -> None:
    made_key(path)
    async with serving_issuer() as issuer, site(path, tokens=issuer.checker()) as gateway, gateway.connect() as client:
        for size, status in ((4_000, 200), (6_000, 431)):
            headers = {"authorization": f"Bearer {issuer.token(groups='g' * size)}"}
            assert (await client.get("/v1/models", headers=headers)).status == status


async def test_health_needs_no_key(path: Path) -> None:
    made_key(path)
    async with site(path) as gateway, gateway.connect() as client:
        assert (await client.get("/healthz")).status == (await client.get("/readyz")).status == 200


async def test_a_revoked_key_is_refused_and_what_runs_with_it_ends_as_it_would(path: Path) -> None:
    key = made_key(path)
    headers = {"authorization": f"Bearer {key.text}"}
    slow = chat_body(stream=True, messages=[{"role": "user", "content": script(token_ms=100, output_tokens=8)}])
    async with site(path) as gateway, gateway.connect() as running, gateway.connect() as client:
        await running.send("POST", "/v1/chat/completions", slow, headers)
        assert (await running.head()).status == 200
        await running.piece()
        revoke(path, key.id)
        async with asyncio.timeout(5):
            while (await client.get("/v1/models", headers=headers)).status != 401:  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.02)
        body = b""
        while piece := await running.piece():
            body += piece
        assert read_events(body)[-1] == "[DONE]"


async def test_the_gateway_s_own_certificate_lends_its_name_to_nobody(path: Path, tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    key = made_key(path)
    tls = TlsFiles(certificate=files["server.pem"], key=files["server.key"], client_ca=files["ca.pem"])
    own = {
        "tls_ca_file": files["ca.pem"],
        "tls_cert_file": files["client.pem"],
        "tls_key_file": files["client.key"],
    }
    async with site(path, options=ServerOptions(port=0, tls=tls), **own) as gateway, gateway.connect() as client:
        assert (await client.get("/v1/models")).status == 401
        assert (await client.get("/v1/models", headers={"authorization": f"Bearer {key.text}"})).status == 200


async def test_no_key_is_told_on_the_way_through_the_gateway(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    spans: InMemorySpanExporter = install_exporter()
    good = made_key(path)
    told = []
    async with site(path) as gateway, gateway.connect() as client:
        for credentials in (f"Bearer {good.text}", f"Bearer hr_{good.id}_{'canary' * 7}x", "Basic canary", "canary"):
            for body in (chat_body(), chat_body(stream=True), chat_body(model="nope"), {"model": 3}):
                response = await client.post(body, headers={"authorization": credentials})
                told.append(f"{response.headers} {response.body!r}")
    told += [repr(record.__dict__) for record in caplog.records]
    told += [span.to_json() for span in spans.get_finished_spans()]
    assert len(told) > 50
    for text in told:
        assert "canary" not in text
        assert good.text[-24:] not in text


# Listening where others can reach it


async def guarded(target: str, **settings: object) -> tuple[GatewayServer, asyncio.Task[int]]:
    values = {"host": ELSEWHERE, "port": 0, "target": target, "drain_grace_s": 0.2, **settings}
    gateway_settings = GatewaySettings(**values)  # type: ignore[arg-type]
    server = GatewayServer(Gateway(gateway_settings))
    return server, asyncio.create_task(serve_guarded(server, gateway_settings, ask_again_s=0.1))


async def test_a_gateway_in_front_of_an_open_service_refuses_to_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    async with running_service() as service:
        _, task = await guarded(f"127.0.0.1:{service.port}")
        assert await asyncio.wait_for(task, 10) == 1
    assert "HEADRACE_GATEWAY_ALLOW_INSECURE" in caplog.text
    assert "running on" not in caplog.text


async def test_it_serves_if_it_is_told_to_or_the_service_asks_who_calls(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made_key(path)
    authenticator = Authenticator(KeyFile(path))
    async with running_service() as open_to_all, running_service(authenticator=authenticator) as asking:
        for service, settings in ((open_to_all, {"allow_insecure": True}), (asking, {})):
            caplog.clear()
            server, task = await guarded(f"127.0.0.1:{service.port}", **settings)
            await eventually(lambda: "running on" in caplog.text)
            assert "others can reach" in caplog.text
            server.stop()
            assert await asyncio.wait_for(task, 10) == 0


async def test_it_asks_again_while_there_is_no_service_and_ends_if_that_is_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running_service() as service:
        port = service.port
    _, task = await guarded(f"127.0.0.1:{port}")
    await eventually(lambda: "running on" in caplog.text)
    async with running_service(options=ServerOptions(port=port)):
        assert await asyncio.wait_for(task, 20) == 1
