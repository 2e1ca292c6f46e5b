"""Replays of public bug reports: compression, pages of other origins, credentials, idle connections, odd paths."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import pytest

from gateway.config import GatewaySettings
from tests.support.fake_service import Fail, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import CHAT, RawClient, RunningGateway, chat_body, read_events, running_gateway
from tests.support.service import GenerateRequest, RunningService, script

PAGE = "https://chat.example"
ENCODINGS = [None, "gzip, deflate, br", "*"]


@pytest.fixture
async def fake() -> AsyncIterator[FakeService]:
    async with fake_service() as service:
        yield service


@pytest.fixture
async def gateway(fake: FakeService) -> AsyncIterator[RunningGateway]:
    async with running_gateway(fake.address, cors_origins=[PAGE]) as running:
        yield running


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[RawClient]:
    async with gateway.connect() as connection:
        yield connection


def accepting(encoding: str | None) -> dict[str, str]:
    return {} if encoding is None else {"accept-encoding": encoding}


@pytest.mark.report("K01", "K02")
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_every_event_arrives_before_the_next_one_is_made_and_as_it_is(
    version: str, encoding: str | None, fake: FakeService, client: RawClient
) -> None:
    go = asyncio.Event()
    fake.will(started(), delta("one"), go, delta("two"), finished(), completed())
    body = json.dumps(chat_body(stream=True)).encode()
    lines = [f"POST {CHAT} HTTP/{version}", "host: x", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in accepting(encoding).items()]
    client.writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    head = await client.head()
    assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert not {"content-encoding", "content-length"} & head.headers.keys()
    async with asyncio.timeout(5):
        first = await client.reader.readuntil(b'"content":"one"')
    assert b"data: " in first
    go.set()
    async with asyncio.timeout(5):
        assert b'"content":"two"' in await client.reader.readuntil(b"[DONE]")


@pytest.mark.report("K02")
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_whole_answer_is_sent_as_it_is_too(encoding: str | None, fake: FakeService, client: RawClient) -> None:
    fake.will(started(), delta("x" * 50_000), finished(), completed())
    response = await client.post(chat_body(), headers=accepting(encoding))
    assert "content-encoding" not in response.headers
    assert len(response.json()["choices"][0]["message"]["content"]) == 50_000


@pytest.mark.report("K03")
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_the_status_waits_for_the_engine_and_not_for_the_first_token_whatever_is_accepted(
    encoding: str | None, fake: FakeService, client: RawClient
) -> None:
    admitted, token = asyncio.Event(), asyncio.Event()
    fake.will(admitted, started(), token, delta("x"), finished(), completed())
    await client.send("POST", CHAT, chat_body(stream=True), accepting(encoding))
    head = asyncio.create_task(client.head())
    await fake.next_call()
    await asyncio.sleep(0.05)
    assert not head.done()
    admitted.set()
    assert (await head).status == 200
    token.set()
    pieces = b""
    while piece := await client.piece():
        pieces += piece
    assert read_events(pieces)[-1] == "[DONE]"


@pytest.mark.report("K03")
async def test_the_hold_of_the_status_is_the_same_whatever_is_accepted(fake: FakeService) -> None:
    loop, took_s = asyncio.get_running_loop(), []
    async with running_gateway(fake.address, status_hold_s=0.4, heartbeat_s=5) as gateway:
        for encoding in ENCODINGS:
            wait = asyncio.Event()
            fake.will(wait, started(), delta("x"), finished(), completed())
            async with gateway.connect() as client:
                await client.send("POST", CHAT, chat_body(stream=True), accepting(encoding))
                begun_s = loop.time()
                assert (await client.head()).status == 200
                took_s.append(loop.time() - begun_s)
                wait.set()
    assert 0.3 < min(took_s) <= max(took_s) < min(took_s) + 0.3


ASKED = "authorization,content-type,idempotency-key,openai-organization,openai-project,traceparent,x-stainless-os"


@pytest.mark.report("K04")
@pytest.mark.parametrize(("path", "method"), [(CHAT, "POST"), ("/v1/completions", "POST"), ("/v1/models", "GET")])
async def test_a_preflight_needs_no_key_and_names_what_was_asked_for(
    path: str, method: str, client: RawClient, fake: FakeService
) -> None:
    asks = {"access-control-request-method": method, "access-control-request-headers": ASKED}
    good = await client.get(path, "OPTIONS", {"origin": PAGE, **asks})
    assert good.status in {200, 204}
    assert good.headers["access-control-allow-origin"] == PAGE
    allowed = {name.strip().lower() for name in good.headers["access-control-allow-headers"].split(",")}
    assert set(ASKED.split(",")) <= allowed
    assert method in good.headers["access-control-allow-methods"]
    assert "origin" in good.headers["vary"].lower()
    assert "access-control-allow-credentials" not in good.headers
    assert 0 < int(good.headers["access-control-max-age"]) <= 7200
    for stranger in ("https://evil.example", "https://chat.example.evil.example", "null"):
        refused = await client.get(path, "OPTIONS", {"origin": stranger, **asks})
        assert "access-control-allow-origin" not in refused.headers
    assert fake.calls == []


@pytest.mark.report("K04")
async def test_the_request_behind_a_preflight_still_needs_its_key_and_the_page_may_read_why_it_failed(
    fake: FakeService, client: RawClient
) -> None:
    for stream in (True, False):
        fake.will(Fail(code=grpc.StatusCode.UNAUTHENTICATED))
        refused = await client.post(chat_body(stream=stream), headers={"origin": PAGE})
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.headers["access-control-allow-origin"] == PAGE
        exposed = {name.strip() for name in refused.headers["access-control-expose-headers"].split(",")}
        assert {"x-request-id", "retry-after", "retry-after-ms", "x-should-retry", "openai-processing-ms"} <= exposed
    for path in ("/nowhere", "/v1/models/none", CHAT):
        missing = await client.get(path, headers={"origin": PAGE})
        assert missing.status in {404, 405}
        assert missing.headers["access-control-allow-origin"] == PAGE
    stranger = await client.post(chat_body(), headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in stranger.headers


@pytest.mark.report("K04")
async def test_any_page_may_call_if_the_configuration_says_so(fake: FakeService) -> None:
    async with running_gateway(fake.address, cors_origins=["*"]) as gateway, gateway.connect() as client:
        asks = {"access-control-request-method": "POST", "access-control-request-headers": ASKED}
        preflight = await client.get(CHAT, "OPTIONS", {"origin": "https://any.example", **asks})
        assert preflight.headers["access-control-allow-origin"] == "*"
        # A star would not stand for Authorization.
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        response = await client.post(chat_body(), headers={"origin": "https://any.example"})
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers


CREDENTIALS = [
    b"bearer k", b"BEARER k", b"Bearer  k", b"Bearer k ", b"Bearer", b"Bearer None", b"Basic eDp5", b"Bearer caf\xe9",
    b"Bearer k\r\nauthorization: Bearer other", b"Bearer " + b"k" * 5_000, b"",
]  # fmt: skip


@pytest.mark.report("K06")
@pytest.mark.parametrize("value", CREDENTIALS, ids=lambda value: value[:20].decode("latin-1").strip())
async def test_without_keys_to_check_any_authorization_is_accepted(value: bytes, client: RawClient) -> None:
    body = json.dumps(chat_body()).encode()
    head = b"POST %s HTTP/1.1\r\nhost: x\r\nauthorization: %s\r\ncontent-length: %d\r\n\r\n"
    client.writer.write(head % (CHAT.encode(), value, len(body)) + body)
    assert (await client.response()).status == 200
    assert (await client.get("/v1/models")).status == 200


@pytest.mark.report("K06")
@pytest.mark.parametrize(
    "values", [["bearer k"], ["Bearer"], ["Bearer None"], ["Basic eDp5"], ["Bearer k", "Bearer o"]]
)
async def test_without_keys_to_check_any_authorization_is_accepted_over_grpc(
    values: list[str], service: RunningService
) -> None:
    metadata = tuple(("authorization", value) for value in values)
    request = GenerateRequest(model="sim", prompt=script(output_tokens=1))
    assert len(await service.events(request, metadata=metadata)) == 4


@pytest.mark.report("K08")
async def test_connections_that_were_idle_for_five_seconds_serve_again(fake: FakeService) -> None:
    assert GatewaySettings().keep_alive_s > 60  # what proxies in front keep their own idle connections for
    async with running_gateway(fake.address) as gateway:

        async def twice(idle_s: float) -> list[int]:
            async with gateway.connect() as client:
                first = (await client.post(chat_body(stream=True))).status
                await asyncio.sleep(idle_s)
                return [first, (await client.post(chat_body(stream=True))).status]

        cycles = [twice((4.9, 5.0, 5.1)[number % 3]) for number in range(100)]
        assert await asyncio.gather(*cycles) == [[200, 200]] * 100


@pytest.mark.report("K08")
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_takes_longer_than_idle_connections_are_kept_comes_whole(
    *, stream: bool, fake: FakeService
) -> None:
    async with running_gateway(fake.address, keep_alive_s=1) as gateway, gateway.connect() as client:
        first, second = asyncio.Event(), asyncio.Event()
        fake.will(started(), first, delta("a"), finished(), completed())
        fake.will(started(), second, delta("b"), finished(), completed())
        for _ in range(2):
            await client.send("POST", CHAT, chat_body(stream=stream))
        first.set()
        assert (await client.response()).is_whole
        await asyncio.sleep(1.4)  # longer than keep_alive_s: the timer that must not fire
        second.set()
        assert b'"b"' in (await client.response()).body


@pytest.mark.report("K09")
@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("HEAD", CHAT, 405, "OPTIONS, POST"),
        ("DELETE", CHAT, 405, "OPTIONS, POST"),
        ("TRACE", CHAT, 405, "OPTIONS, POST"),
        ("POST", "/v1/models", 405, "GET, HEAD, OPTIONS"),
        ("PUT", "/healthz", 405, "GET, HEAD, OPTIONS"),
        ("HEAD", "/nowhere", 404, None),
        ("POST", "/v1/chat/completions/", 404, None),
        ("POST", "/chat/completions", 404, None),
        ("POST", "//v1/chat/completions", 404, None),
        ("POST", "/v1/v1/chat/completions", 404, None),
        ("OPTIONS", "/nowhere", 404, None),
    ],
)
async def test_what_is_not_served_is_a_json_error_and_never_a_redirect(
    method: str, path: str, status: int, allow: str | None, client: RawClient
) -> None:
    await client.send(method, path, {} if method in {"POST", "PUT"} else None)
    response = await client.response(has_body=method != "HEAD")
    assert (response.status, response.headers.get("allow")) == (status, allow)
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["content-length"]) > 0
    if method != "HEAD":
        served = "POST" if allow == "OPTIONS, POST" else "GET and HEAD"
        is_path_known = status == 405
        assert response.json()["error"] == {
            "message": f"Only {served} requests are accepted." if is_path_known else f"Invalid URL ({method} {path})",
            "type": "invalid_request_error",
            "param": None,
            "code": "method_not_supported" if is_path_known else None,
        }
    # Nothing of the answer to HEAD is left on the connection.
    assert (await client.get("/healthz")).json() == {"status": "ok"}


@pytest.mark.report("K09")
@pytest.mark.parametrize(
    ("path", "allow"),
    [
        (CHAT, "OPTIONS, POST"),
        ("/v1/completions", "OPTIONS, POST"),
        ("/v1/models", "GET, HEAD, OPTIONS"),
        ("/v1/models/some/model", "GET, HEAD, OPTIONS"),
        ("/healthz", "GET, HEAD, OPTIONS"),
        ("/readyz", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS"),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"origin": PAGE}, {"origin": "https://evil.example"}])
async def test_options_says_which_methods_a_path_has(
    path: str, allow: str, headers: dict[str, str], client: RawClient
) -> None:
    await client.send("OPTIONS", path, headers=headers)
    response = await client.response(has_body=False)
    assert (response.status, response.headers["allow"]) == (204, allow)
    assert response.headers["x-request-id"].startswith("req_")
    assert (await client.get("/healthz")).status == 200


@pytest.mark.report("K09")
async def test_an_absolute_target_is_served_and_one_that_is_no_path_is_not_found(client: RawClient) -> None:
    await client.send("GET", "http://gateway.example/v1/models")
    assert (await client.response()).status == 200
    await client.send("OPTIONS", "*")
    response = await client.response()
    assert (response.status, response.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
