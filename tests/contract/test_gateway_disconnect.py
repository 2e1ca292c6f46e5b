"""A client that leaves or stops reading: the service's work ends at once, and nothing is left behind."""

import asyncio
import gc
import json

import pytest

from headrace.v1 import generation_pb2 as gen
from tests.support.fake_service import HANG, completed, delta, fake_service, finished, started
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


async def test_leaving_while_the_body_is_sent_ends_the_request() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway:
        async with gateway.connect() as client:
            await client.send("POST", CHAT, headers={"content-length": "100", "content-type": "application/json"})
            client.reset()
        async with gateway.connect() as other:
            assert (await other.post(chat_body())).status == 200


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
async def test_a_client_that_stops_reading_is_dropped_and_others_go_on() -> None:
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
