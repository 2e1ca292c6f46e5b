"""When the status goes out, and what is said while nothing happens."""

import asyncio
import json
import socket

import grpc
import pytest

from tests.support.fake_service import Fail, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import CHAT, chat_body, read_events, running_gateway

PING = b": ping\n"


async def test_the_status_waits_for_the_engine_and_goes_out_before_the_first_token() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        admitted, token = asyncio.Event(), asyncio.Event()
        fake.will(admitted, started(), token, delta("a"), finished(), completed())
        await client.send("POST", CHAT, chat_body(stream=True))
        head = asyncio.create_task(client.head())
        await fake.next_call()
        assert not head.done()
        admitted.set()
        assert (await head).status == 200
        token.set()
        assert b'"content":"a"' in await client.piece()


@pytest.mark.report("J10")
async def test_an_error_within_the_hold_has_its_own_status() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, status_hold_s=5) as gateway,
        gateway.connect() as client,
    ):
        wait = asyncio.Event()
        fake.will(wait, Fail(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL"))
        await client.send("POST", CHAT, chat_body(stream=True))
        await fake.next_call()
        wait.set()
        assert (await client.response()).status == 503


@pytest.mark.report("J10")
async def test_after_the_hold_comes_200_with_heartbeats_and_an_error_is_an_event() -> None:
    settings = {"status_hold_s": 0.1, "heartbeat_s": 0.05}
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        gateway.connect() as client,
    ):
        wait = asyncio.Event()
        fake.will(wait, Fail(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL"))
        await client.send("POST", CHAT, chat_body(stream=True))
        head = await client.head()
        assert head.status == 200
        assert head.headers["content-type"].startswith("text/event-stream")
        assert [await client.piece() for _ in range(3)] == [PING] * 3
        wait.set()
        rest = b""
        while piece := await client.piece():
            rest += piece
        (event,) = read_events(rest)
        assert json.loads(event)["error"]["code"] == "server_is_overloaded"


@pytest.mark.report("J09")
async def test_heartbeats_fill_gaps_between_tokens_and_stop_at_the_end() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, heartbeat_s=0.05) as gateway,
        gateway.connect() as client,
    ):
        wait = asyncio.Event()
        fake.will(started(), delta("a"), wait, delta("b"), finished(), completed())
        await client.send("POST", CHAT, chat_body(stream=True))
        await client.head()
        assert await client.piece() != PING
        assert [await client.piece() for _ in range(2)] == [PING] * 2
        wait.set()
        body = b""
        while piece := await client.piece():
            body += piece
        assert body.endswith(b"data: [DONE]\n\n")
        # A comment before an event does not change it.
        assert read_events(PING + body) == read_events(body)
        await asyncio.sleep(0.15)
        assert (await client.post(chat_body(stream=True))).is_whole


async def test_no_heartbeat_comes_while_tokens_flow() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, heartbeat_s=5) as gateway,
        gateway.connect() as client,
    ):
        fake.will(started(), *(delta("t") for _ in range(300)), finished(), completed())
        response = await client.post(chat_body(stream=True))
        assert PING not in response.body
        assert len(response.pieces) >= 300


async def test_a_whole_answer_may_take_longer_than_the_hold() -> None:
    settings = {"status_hold_s": 0.05, "heartbeat_s": 0.05}
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        gateway.connect() as client,
    ):
        wait = asyncio.Event()
        fake.will(started(), wait, delta("a"), finished(), completed())
        await client.send("POST", CHAT, chat_body())
        await fake.next_call()
        await asyncio.sleep(0.2)  # several holds; nothing may be sent meanwhile
        wait.set()
        response = await client.response()
        assert response.json()["choices"][0]["message"]["content"] == "a"


async def test_no_event_waits_for_the_acknowledgement_of_the_one_before() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        await client.get("/healthz")
        (connection,) = gateway.server._server.server_state.connections
        assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
