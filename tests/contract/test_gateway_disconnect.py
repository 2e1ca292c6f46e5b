"""A client that leaves or stops reading: the service's work ends at once, and nothing is left behind."""

import asyncio
import gc
import json
import logging
from typing import Any

import grpc
import pytest

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import model_pb2_grpc
from tests.support.fake_service import (
    HANG,
    FakeCall,
    FakeService,
    completed,
    delta,
    fake_service,
    finished,
    started,
)
from tests.support.gateway_harness import CHAT, RawClient, chat_body, running_gateway

LEAVE = {"FIN": RawClient.leave, "RST": RawClient.reset}


@pytest.mark.report("H03")
@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_first_token_cancels_the_call(how: str, *, stream: bool) -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        fake.will(HANG)
        await client.send("POST", CHAT, chat_body(stream=stream))
        call = await fake.next_call()
        LEAVE[how](client)
        await call.wait_cancelled()
        await gateway.wait_idle()


@pytest.mark.report("H01")
@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_within_a_stream_cancels_the_call(how: str) -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        fake.will(started(), delta("a"), HANG)
        await client.send("POST", CHAT, chat_body(stream=True))
        call = await fake.next_call()
        await client.head()
        assert b'"content":"a"' in await client.piece()
        LEAVE[how](client)
        await call.wait_cancelled()
        await gateway.wait_idle()


@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_while_a_whole_answer_grows_cancels_the_call(how: str) -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        sent = asyncio.Event()
        fake.will(started(), delta("a"), sent, HANG)
        await client.send("POST", CHAT, chat_body())
        call = await fake.next_call()
        sent.set()
        LEAVE[how](client)
        await call.wait_cancelled()
        await gateway.wait_idle()


BODY_HEADERS = {"whole": {"content-length": "100"}, "chunked": {"transfer-encoding": "chunked"}}


@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("part", [b"", b"{", b"40\r\n{"])
@pytest.mark.parametrize("headers", BODY_HEADERS)
async def test_leaving_while_the_body_is_sent_ends_the_request_and_asks_for_nothing(
    headers: str, part: bytes, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.requests")
    async with fake_service() as fake, running_gateway(fake.address) as gateway:
        async with gateway.connect() as client:
            own = {"content-type": "application/json", "expect": "100-continue", **BODY_HEADERS[headers]}
            await client.send("POST", CHAT, headers=own)
            assert (await client.head()).status == 100  # it waits for the body
            client.writer.write(b"4" if headers == "chunked" and part == b"{" else part)
            await client.writer.drain()
            LEAVE[how](client)
        async with gateway.connect() as other:
            assert (await other.post(chat_body())).status == 200
        assert len(fake.calls) == 1
    assert sorted(outcomes(caplog)) == ["client_cancelled", "completed"]


def outcomes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["outcome"] for record in caplog.records if record.name == "gateway.requests"]


@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_among_heartbeats_before_the_engine_answers_cancels_the_call(how: str) -> None:
    settings = {"status_hold_s": 0.05, "heartbeat_s": 0.05}
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        gateway.connect() as client,
    ):
        fake.will(HANG)
        await client.send("POST", CHAT, chat_body(stream=True))
        call = await fake.next_call()
        assert (await client.head()).status == 200
        await client.piece()
        LEAVE[how](client)
        await call.wait_cancelled()
        await gateway.wait_idle()


@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_in_prefill_cancels_the_call(how: str, *, stream: bool) -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        fake.will(started(), HANG)
        await client.send("POST", CHAT, chat_body(stream=stream))
        call = await fake.next_call()
        if stream:
            await client.head()
        LEAVE[how](client)
        await call.wait_cancelled()
        await gateway.wait_idle()


@pytest.mark.parametrize("how", [*LEAVE, "half"])
async def test_leaving_while_the_connection_is_full_cancels_the_call_at_once(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.requests")
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        transport = client.reader._transport  # type: ignore[attr-defined]
        transport.pause_reading()
        fake.will(*flood())
        await client.send("POST", CHAT, chat_body(stream=True))
        call = await fake.next_call()
        await held_back(call)
        if how == "half":
            client.writer.write_eof()  # what it still gets is of no use to a client that reads nothing
        else:
            LEAVE[how](client)
        async with asyncio.timeout(5):  # far below send_timeout_s
            await call.cancelled.wait()
        await gateway.wait_idle()
    assert outcomes(caplog) == ["client_cancelled"]


async def test_what_waits_for_a_client_that_does_not_read_is_little() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        fake.will(*flood())
        await client.send("POST", CHAT, chat_body(stream=True))
        await held_back(await fake.next_call())
        (connection,) = gateway.server._server.server_state.connections
        assert 0 < connection.transport.get_write_buffer_size() < 4096  # an event of 1 KB fills it


async def held_back(call: FakeCall) -> None:
    """Return when the service can send no more of a flood."""
    async with asyncio.timeout(10):
        sent = -1
        while call.sent == 0 or call.sent != sent:
            sent = call.sent
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_between_the_last_event_and_the_status_cancels_the_call(how: str) -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        fake.will(started(), delta("a"), finished(), completed(), HANG)
        await client.send("POST", CHAT, chat_body(stream=True))
        call = await fake.next_call()
        await client.head()
        while b'"finish_reason":"stop"' not in await client.piece():
            pass
        LEAVE[how](client)
        await call.wait_cancelled()
        await gateway.wait_idle()


@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_cancels_the_calls_of_all_prompts(how: str, *, stream: bool) -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        fake.default = (started(), delta("a"), HANG)
        body = {"model": "fake", "prompt": ["a", "b", "c", "d", "e"], "stream": stream}
        await client.send("POST", "/v1/completions", body)
        calls = [await fake.next_call() for _ in range(4)]
        LEAVE[how](client)
        for call in calls:
            await call.wait_cancelled()
        await gateway.wait_idle()
        assert len(fake.calls) == 4  # the fifth was not begun


class SlowUnary(FakeService):
    """Never answers what is asked about models."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.left = asyncio.Event()

    async def ListModels(self, request: Any, context: Any) -> Any:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left.set()
            raise

    GetModel = ListModels


@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake"])
async def test_leaving_cancels_a_short_call(path: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.requests")
    server, fake = grpc.aio.server(options=[("grpc.so_reuseport", 0)]), SlowUnary()
    model_pb2_grpc.add_ModelServiceServicer_to_server(fake, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with running_gateway(address) as gateway, gateway.connect() as client:
        await client.send("GET", path)
        async with asyncio.timeout(5):  # below unary_timeout_s
            await fake.asked.wait()
            LEAVE[how](client)
            await fake.left.wait()
    await server.stop(0)
    assert outcomes(caplog) == ["client_cancelled"]


@pytest.mark.report("H06")
async def test_a_client_that_leaves_leaves_no_task_behind() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway:
        async with gateway.connect() as client:
            assert (await client.post(chat_body(stream=True))).status == 200
        before = len(asyncio.all_tasks())
        gc.disable()
        try:
            for _ in range(10):
                async with gateway.connect() as client:
                    fake.will(started(), delta("a"), HANG)
                    await client.send("POST", CHAT, chat_body(stream=True))
                    await client.head()
                    await client.piece()
                    client.reset()
            for call in fake.calls[1:]:
                await call.wait_cancelled()
            await gateway.wait_idle()
            async with asyncio.timeout(5):
                while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - tasks have no event
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()


@pytest.mark.report("H09")
async def test_leaving_around_the_last_event_has_one_outcome(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway:
        for turns in range(40):
            async with gateway.connect() as client:
                go = asyncio.Event()
                fake.will(started(), delta("a"), go, finished(), completed())
                await client.send("POST", CHAT, chat_body(stream=True))
                await client.head()
                await client.piece()
                go.set()
                for _ in range(turns % 20):
                    await asyncio.sleep(0)
                client.reset()
        await gateway.wait_idle()
        async with gateway.connect() as client:
            assert (await client.post(chat_body(stream=True))).is_whole
    assert [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}] == []


def flood() -> list[gen.GenerateResponse]:
    return [started(), *(delta("x" * 1000) for _ in range(20_000)), finished(), completed()]


@pytest.mark.report("J07")
async def test_a_client_that_stops_reading_is_dropped_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.requests")
    settings = {"send_timeout_s": 0.4, "heartbeat_s": 0.2}
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        gateway.connect() as stalled,
        gateway.connect() as other,
    ):
        stalled.reader._transport.pause_reading()  # type: ignore[attr-defined]  # takes nothing from now on
        fake.will(*flood())
        await stalled.send("POST", CHAT, chat_body(stream=True))
        call = await fake.next_call()
        assert (await other.post(chat_body(stream=True))).is_whole
        await call.wait_cancelled()
        await gateway.wait_idle()
        assert (await other.post(chat_body(stream=True))).is_whole
        assert call.sent < 20_000
        assert outcomes(caplog).count("client_stalled") == 1
        stalled.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert not (await stalled.response()).is_whole


@pytest.mark.report("J07")
async def test_a_client_that_stops_reading_heartbeats_is_dropped_as_well() -> None:
    settings = {"send_timeout_s": 0.3, "heartbeat_s": 0.05}
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        gateway.connect() as stalled,
    ):
        stalled.reader._transport.pause_reading()  # type: ignore[attr-defined]  # takes nothing from now on
        full = [delta("x" * 1000) for _ in range(5000)]
        fake.will(started(), *full, HANG)
        await stalled.send("POST", CHAT, chat_body(stream=True))
        await (await fake.next_call()).wait_cancelled()
        await gateway.wait_idle()


async def test_a_slow_reader_gets_everything() -> None:
    settings = {"send_timeout_s": 5.0}
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        gateway.connect() as client,
    ):
        script = [started(), *(delta("x" * 1000) for _ in range(6000)), finished(), completed()]
        fake.will(*script)
        transport = client.reader._transport  # type: ignore[attr-defined]
        transport.pause_reading()
        await client.send("POST", CHAT, chat_body(stream=True))
        await fake.next_call()
        await asyncio.sleep(0.2)  # the connection is full by then; nothing depends on it
        transport.resume_reading()
        response = await client.response()
        assert response.is_whole
        assert response.body.count(b"xxxx" * 250) == 6000


@pytest.mark.report("K08")
async def test_a_second_request_behind_a_running_one_waits_for_it() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        go = asyncio.Event()
        fake.will(started(), delta("first"), go, finished(), completed())
        fake.will(started(), delta("second"), finished(), completed())
        await client.send("POST", CHAT, chat_body())
        await fake.next_call()
        await client.send("POST", CHAT, chat_body())
        go.set()
        contents = [json.loads((await client.response()).body)["choices"][0]["message"]["content"] for _ in range(2)]
        assert contents == ["first", "second"]
