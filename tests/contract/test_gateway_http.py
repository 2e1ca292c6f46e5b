"""Bodies, methods, paths and headers around the endpoints."""

import json
import re
from typing import Any

import pytest

from tests.support.fake_service import FakeService, fake_service
from tests.support.gateway_harness import CHAT, RawClient, RawResponse, chat_body, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


VALID = json.dumps(chat_body()).encode()


def is_refusal(response: RawResponse, status: int = 400) -> bool:
    error = response.json()["error"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-should-retry"] == "false"
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return response.status == status


DEEP = [
    b'{"model":"m","messages":[{"role":"user","content":"q"}],"%s":%s%s}' % (name, b"[" * depth, b"]" * depth)
    for name in (b"metadata", b"tools")
    for depth in (3000, 20_000)
]


@pytest.mark.report("E01", "E03")
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"q"}],"stream":true, x}',
        b"",
        b'{"model":"m"',
        b'{"model":"\xff"}',
        b'{"model":"\\ud800","messages":[{"role":"user","content":"q"}]}',
        b"[]",
        b"null",
        *DEEP,
    ],
)
async def test_a_body_that_is_no_json_object_is_400_and_the_next_request_works(
    body: bytes, fake: FakeService, client: RawClient
) -> None:
    assert is_refusal(await client.post(body))
    assert fake.calls == []
    assert (await client.post(chat_body())).status == 200


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "userr", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": 2.0001}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"n": True}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["END", ""]}, "stop[1]"),
        ({"stop": list("abcde")}, "stop"),
        ({"logit_bias": {"abc": 1}}, "logit_bias.abc"),
        ({"logit_bias": {"1": 1000}}, "logit_bias.1"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)
async def test_a_wrong_member_is_named(
    members: dict[str, Any], param: str, fake: FakeService, client: RawClient
) -> None:
    response = await client.post(chat_body(**members))
    assert is_refusal(response)
    assert response.json()["error"]["param"] == param
    assert fake.calls == []


async def test_members_of_other_servers_and_newer_sdks_are_ignored(client: RawClient) -> None:
    members = {
        "store": False, "metadata": {"a": "b"}, "parallel_tool_calls": True, "service_tier": "auto",
        "reasoning_effort": "low", "foo": 1, "messages": [{"role": "user", "content": "", "x": 1}],
    }  # fmt: skip
    assert (await client.post(chat_body(**members))).status == 200


@pytest.mark.report("T02")
async def test_of_two_members_with_one_name_the_last_counts(fake: FakeService, client: RawClient) -> None:
    body = VALID[:-1] + b',"stream":true,"temperature":0,"stream":false,"temperature":1}'
    response = await client.post(body)
    assert response.headers["content-type"] == "application/json"
    assert (await fake.next_call()).request.sampling.temperature == 1


@pytest.mark.report("E04")
@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        (None, 200),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
    ],
)
async def test_content_types(content_type: str | None, status: int, client: RawClient) -> None:
    response = await client.post(VALID, headers={"content-type": content_type})  # type: ignore[dict-item]
    assert response.status == status
    assert status == 200 or is_refusal(response, 415)


async def test_a_page_cannot_skip_the_preflight_by_leaving_out_the_content_type(client: RawClient) -> None:
    headers = {"content-type": None, "origin": "https://elsewhere.example"}
    assert is_refusal(await client.post(VALID, headers=headers), 415)  # type: ignore[arg-type]


@pytest.mark.report("J01")
async def test_bodies_over_the_limit_are_413_announced_or_not() -> None:
    limit = 100_000
    settings = {"body_limit_bytes": limit}
    async with fake_service() as fake, running_gateway(fake.address, **settings) as gateway:
        async with gateway.connect() as client:
            fitting = json.dumps(chat_body(x="")).encode()[:-2] + b"a" * limit
            fitting = fitting[: limit - 2] + b'"}'
            assert (await client.post(fitting)).status == 200
            assert is_refusal(await client.post(fitting + b" "), 413)
        async with gateway.connect() as client:
            await client.send(
                "POST", CHAT, headers={"content-length": "99999999999", "content-type": "application/json"}
            )
            assert is_refusal(await client.response(), 413)
        async with gateway.connect() as client:
            await client.send(
                "POST", CHAT, headers={"transfer-encoding": "chunked", "content-type": "application/json"}
            )
            client.writer.write(b"%x\r\n%s\r\n" % (limit + 1, b"a" * (limit + 1)))
            assert is_refusal(await client.response(), 413)


async def test_a_body_that_does_not_come_is_408_and_not_to_be_repeated() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, body_timeout_s=0.1) as gateway,
        gateway.connect() as client,
    ):
        await client.send("POST", CHAT, headers={"content-length": "10", "content-type": "application/json"})
        assert is_refusal(await client.response(), 408)


@pytest.mark.report("T03")
@pytest.mark.parametrize("value", ["0", "-1", "abc", "1.5", "1e9", "", "99999999999999999999"])
async def test_bad_deadlines_are_400(value: str, client: RawClient) -> None:
    response = await client.post(chat_body(), headers={"request-timeout-ms": value})
    assert is_refusal(response)
    assert response.json()["error"]["param"] == "Request-Timeout-Ms"


async def test_the_root_says_where_to_go(client: RawClient) -> None:
    await client.send("GET", "/", None)
    response = await client.response()
    assert response.status == 200
    assert response.json()["docs"] == "/docs"


@pytest.mark.report("K09")
@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", CHAT, 405, "OPTIONS, POST"),
        ("PUT", CHAT, 405, "OPTIONS, POST"),
        ("FOO", CHAT, 400, None),  # unknown to the HTTP parser
        ("DELETE", "/v1/models", 405, "GET, HEAD, OPTIONS"),
        ("POST", "/v1/chat/completions/", 404, None),
        ("POST", "//chat/completions", 404, None),
        ("POST", "/v1/v1/chat/completions", 404, None),
        ("GET", "/v1/models/", 404, None),
        ("GET", "/nope", 404, None),
    ],
)
async def test_other_methods_and_paths(
    method: str, path: str, status: int, allow: str | None, client: RawClient
) -> None:
    await client.send(method, path, None if method == "GET" else {})
    response = await client.response()
    assert response.status == status
    assert response.headers.get("allow") == allow
    assert is_refusal(response, status)


@pytest.mark.report("K09")
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/models", "/v1/models/fake", "/openapi.json", "/docs"])
async def test_head_is_get_without_a_body(path: str, client: RawClient) -> None:
    get, head, again = await client.get(path), await client.get(path, "HEAD"), await client.get(path)
    assert (head.status, head.body) == (200, b"")
    # /readyz may pass from "degraded" to "ready" in between, as an earlier test's failures grow old.
    assert head.headers["content-length"] in {get.headers["content-length"], again.headers["content-length"]}
    assert (await client.get("/healthz")).json() == {"status": "ok"}


@pytest.mark.report("I06")
@pytest.mark.parametrize("given", ["a" * 129, "with space", "caf\xe9", "a" * 100_00])
async def test_strange_request_ids_are_replaced(given: str, client: RawClient) -> None:
    response = await client.get("/healthz", headers={"x-request-id": given})
    assert re.fullmatch(r"req_[0-9a-f]{24}", response.headers["x-request-id"])


async def test_every_response_has_one_request_id(client: RawClient) -> None:
    for path in ("/healthz", "/nowhere", "/v1/models", "/docs"):
        assert (await client.get(path, headers={"x-request-id": "one"})).headers["x-request-id"] == "one"
    for body in (b"{", VALID, json.dumps(chat_body(stream=True)).encode()):
        assert (await client.post(body, headers={"x-request-id": "one"})).headers["x-request-id"] == "one"


PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,traceparent,x-stainless-os",
}


@pytest.mark.report("K04")
async def test_preflights_of_configured_origins_pass_without_a_key() -> None:
    settings = {"cors_origins": ["https://chat.example"]}
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        gateway.connect() as client,
    ):
        good = await client.get(CHAT, "OPTIONS", {**PREFLIGHT, "origin": "https://chat.example"})
        assert good.status == 200
        assert good.headers["access-control-allow-origin"] == "https://chat.example"
        assert "authorization" in good.headers["access-control-allow-headers"]
        assert "x-request-id" in good.headers
        bad = await client.get(CHAT, "OPTIONS", {**PREFLIGHT, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in bad.headers
        response = await client.post(chat_body(stream=True), headers={"origin": "https://chat.example"})
        assert response.headers["access-control-allow-origin"] == "https://chat.example"
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        refused = await client.post(b"{", headers={"origin": "https://chat.example"})
        assert refused.headers["access-control-allow-origin"] == "https://chat.example"


@pytest.mark.report("K04")
async def test_without_configured_origins_no_page_may_read(client: RawClient) -> None:
    response = await client.get(CHAT, "OPTIONS", {**PREFLIGHT, "origin": "https://chat.example"})
    assert response.status == 204
    assert not [name for name in response.headers if name.startswith("access-control")]


async def test_a_request_head_is_bounded(client: RawClient) -> None:
    client.writer.write(b"GET /healthz HTTP/1.1\r\n")
    try:
        for _ in range(100):
            client.writer.write(b"x-filler: " + b"a" * 8000 + b"\r\n")
            await client.writer.drain()
    except ConnectionError:
        return
    assert (await client.head()).status == 431


async def test_the_api_document_describes_what_is_served(client: RawClient) -> None:
    document = (await client.get("/openapi.json")).json()
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert chat["responses"]["400"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorDocument")
    assert {"/v1/completions", "/v1/models", "/v1/models/{model}", "/healthz", "/readyz"} < document["paths"].keys()
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= document["components"]["schemas"].keys()
    assert "cdn" not in (await client.get("/docs")).body.decode()


async def test_the_documentation_can_be_switched_off() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, docs=False) as gateway,
        gateway.connect() as client,
    ):
        assert (await client.get("/docs")).status == 404
        assert (await client.get("/openapi.json")).status == 404
        assert (await client.post(chat_body())).status == 200


async def test_media_types_have_no_members_that_their_version_of_openapi_does_not_know(client: RawClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1.")
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    answers = [answer for operation in operations for answer in operation["responses"].values()]
    media = [kind for answer in answers for kind in answer.get("content", {}).values()]
    assert media
    assert {name for kind in media for name in kind} <= {"schema", "example", "examples", "encoding"}


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake"])
async def test_calls_about_models_carry_who_asks_for_what_and_how_long(path: str) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {
        "authorization": "Bearer k", "x-request-id": "mine", "request-timeout-ms": "2000",
        "traceparent": f"00-{trace}-b7ad6b7169203331-01",
    }  # fmt: skip
    async with (
        fake_service() as fake,
        running_gateway(fake.address, trust_inbound_trace="parent") as gateway,
        gateway.connect() as client,
    ):
        await client.send("GET", path, headers=headers)
        assert (await client.response()).status == 200
        await client.send("GET", path, headers={"request-timeout-ms": "soon"})
        assert is_refusal(await client.response())
    ((metadata, left_s),) = fake.model_calls
    assert (metadata["authorization"], metadata["x-request-id"]) == ("Bearer k", "mine")
    assert trace in metadata["traceparent"]
    assert 0 < left_s <= 2 * 1.01  # gRPC rounds a deadline up


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_credentials_that_cannot_be_handed_on_are_431(path: str, client: RawClient) -> None:
    body = VALID if path == CHAT else b""
    head = b"host: x\r\n" + b"authorization: Bearer key\r\n" * 500
    kind = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    method = b"POST" if body else b"GET"
    client.writer.write(b"%s %s HTTP/1.1\r\n%s%s\r\n%s" % (method, path.encode(), head, kind, body))
    response = await client.response()
    assert is_refusal(response, 431)
    assert response.json()["error"]["code"] == "request_header_fields_too_large"
