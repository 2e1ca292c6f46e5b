"""The gateway behind a real nginx that buffers, as it does by default: events pass one by one, and leaving is seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from tests.support.fake_service import HANG, Fail, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import CHAT, WAIT_S, RawClient, chat_body, read_events, running_gateway
from tests.support.nginx import bare, example, nginx
from tests.support.processes import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

PING = b": ping\n"
HTTP_1_1 = "proxy_http_version 1.1;"
SITES: dict[str, Callable[[int, int], str]] = {
    "the example": example,
    "HTTP/1.1": lambda port, gateway: bare(port, gateway, HTTP_1_1),
    # What nginx speaks to the gateway unless told otherwise. Chunks it passes on as they come; what has none it holds
    # back until a buffer is full, unless the response says no.
    "HTTP/1.0": bare,
}


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest) -> Callable[[int, int], str]:
    return SITES[request.param]


@asynccontextmanager
async def behind_nginx(
    folder: Path, site: Callable[[int, int], str] = example, **settings: Any
) -> AsyncIterator[tuple[FakeService, RawClient]]:
    """Yield the service behind the gateway, and a connection to nginx in front of it."""
    (port,) = free_ports(1)
    options = [("grpc.max_receive_message_length", -1)]
    async with fake_service(options=options) as fake, running_gateway(fake.address, **settings) as gateway:
        with nginx(folder, site(port, gateway.port), port):
            async with RawClient(port) as client:
                yield fake, client


class Arriving:
    """The body of one response, as far as it has come."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self.body = b""

    async def until(self, text: bytes) -> bytes:
        """Return everything that has come by the time `text` is in it."""
        async with asyncio.timeout(WAIT_S):
            while text not in self.body:
                self.body += await self._client.piece()
        return self.body


@pytest.mark.report("K01")
async def test_every_event_passes_before_the_next_one_is_made(tmp_path: Path, site: Callable[[int, int], str]) -> None:
    async with behind_nginx(tmp_path, site) as (fake, client):
        gates = [asyncio.Event() for _ in range(3)]
        fake.will(
            started(), delta("a0;"), gates[0], delta("a1;"), gates[1], delta("a2;"), gates[2], finished(), completed()
        )
        await client.send("POST", CHAT, chat_body(stream=True), {"accept-encoding": "gzip"})
        head = await client.head()
        assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "content-encoding" not in head.headers
        arriving = Arriving(client)
        for number, gate in enumerate(gates):
            assert b"a%d;" % (number + 1) not in await arriving.until(b"a%d;" % number)
            gate.set()
        assert (await arriving.until(b"[DONE]")).endswith(b"data: [DONE]\n\n")


async def test_heartbeats_pass_before_the_first_token_and_between_tokens(
    tmp_path: Path, site: Callable[[int, int], str]
) -> None:
    async with behind_nginx(tmp_path, site, status_hold_s=0.2, heartbeat_s=0.2) as (fake, client):
        first, second = asyncio.Event(), asyncio.Event()
        fake.will(first, started(), delta("a"), second, delta("b"), finished(), completed())
        await client.send("POST", CHAT, chat_body(stream=True))
        assert (await client.head()).status == 200
        arriving = Arriving(client)
        assert b"data:" not in await arriving.until(PING)
        first.set()
        before = await arriving.until(b'"a"')
        assert b'"b"' not in await arriving.until(before + PING)
        second.set()
        await arriving.until(b"[DONE]")


@pytest.mark.parametrize("how", [RawClient.leave, RawClient.reset])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_the_call(
    how: Callable[[RawClient], None], tmp_path: Path, *, stream: bool
) -> None:
    for script in ((HANG,), (started(), delta("a"), HANG)):
        async with behind_nginx(tmp_path) as (fake, client):
            fake.will(*script)
            await client.send("POST", CHAT, chat_body(stream=stream))
            call = await fake.next_call()
            if stream and len(script) > 1:
                await client.head()
                await Arriving(client).until(b'"a"')
            how(client)
            await call.wait_cancelled()


async def test_statuses_and_error_documents_are_the_gateways_own(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path, body_limit_bytes=1024 * 1024) as (fake, client):
        fake.will(Fail(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_after_s=1.5))
        full = await client.post(chat_body(stream=True))
        assert (full.status, full.json()["error"]["code"]) == (503, "server_is_overloaded")
        assert (full.headers["retry-after-ms"], full.headers["x-should-retry"]) == ("1500", "true")
        large = await client.post(chat_body(messages=[{"role": "user", "content": "x" * 2**21}]))
        assert (large.status, large.json()["error"]["code"]) == (413, "request_too_large")
        assert (await client.post({})).status == 400


async def test_a_long_prompt_and_a_long_answer_pass(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path) as (fake, client):
        fake.will(started(), *(delta("x" * 50_000) for _ in range(100)), finished(), completed())
        prompt = "y" * (12 * 2**20)
        answer = await client.post(chat_body(messages=[{"role": "user", "content": prompt}]))
        assert answer.json()["choices"][0]["message"]["content"] == "x" * 5_000_000
        assert (await fake.next_call()).request.chat.messages[0].content[0].text == prompt


async def test_connections_to_the_gateway_are_used_again(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with fake_service() as fake, running_gateway(fake.address) as gateway:
        with nginx(tmp_path, example(port, gateway.port), port):
            for _ in range(5):
                async with RawClient(port) as client:
                    response = await client.post(chat_body(stream=True))
                assert read_events(response.body)[-1] == "[DONE]"
            assert len(gateway.server._server.server_state.connections) == 1
        assert len(fake.calls) == 5


async def test_the_sdk_streams_through_it(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path) as (fake, near):
        fake.will(started(), delta("a"), delta("b"), finished(), completed())
        base = f"http://127.0.0.1:{near._port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="k", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "ab"
        ready = await near.get("/readyz")
        assert json.loads(ready.body)["status"] == "ready"
