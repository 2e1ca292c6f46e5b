"""Replays of public bug reports: message sizes, pings, stream limits, idle connections, the moment of the status."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import grpc
import openai
import pytest

from gateway.upstream import _KEEPALIVE as GATEWAY_KEEPALIVE
from headrace._channel import DEFAULT_OPTIONS
from service.backends.triton.backend import TritonBackend
from service.backends.triton.options import TritonOptions
from service.rpc.server import _KEEPALIVE as SERVICE_KEEPALIVE
from service.rpc.server import ServerOptions
from tests.support.fake_service import HANG, delta, fake_service, started
from tests.support.gateway_harness import CHAT, RawClient, chat_body, read_events, running_gateway
from tests.support.relay import relay
from tests.support.report_replay import R0, replays, twin
from tests.support.service import GenerateRequest, eventually, running_service, script, simulated_model
from tests.support.triton_fake import FakeTriton, Final, Hang, Says

MIB = 1024 * 1024
PING = b": ping\n"


@pytest.mark.report("J01")
@pytest.mark.parametrize(
    "text", ["x" * (5 * MIB), "\u8aac" * MIB], ids=["5 MiB of ASCII", "3 MiB of 3-byte characters"]
)
async def test_a_large_prompt_reaches_triton_over_every_hop(text: str) -> None:
    async with replays() as replay:
        body = replay.will('"ok",FIN(eos)', {"messages": [{"role": "user", "content": text}]})
        response = await replay.post(body)
        assert response.status == 200, response.body
        assert response.json()["choices"][0]["message"]["content"] == "ok"
        assert [event async for event in replay.service.generation.Generate(twin(body), timeout=20)]
        for request in replay.fake.requests:
            assert any(text.encode() in raw for raw in request.raw_input_contents)


@pytest.mark.report("J01")
async def test_a_prompt_over_the_limit_is_refused_with_the_limit_and_not_as_a_rate_limit() -> None:
    async with replays() as replay:
        body = replay.will('"ok",FIN(eos)', {"messages": [{"role": "user", "content": "x" * (33 * MIB)}]})
        response = await replay.post(body)
        assert (response.status, response.headers["x-should-retry"]) == (413, "false")
        assert response.json()["error"]["code"] == "request_too_large"
        assert str(16 * MIB) in response.json()["error"]["message"]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await replay.service.generation.Generate(twin(body), timeout=20).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(32 * MIB) in (refused.value.details() or "")
        assert replay.fake.requests == []
        assert (await replay.whole('"ok",FIN(eos)')).text == "ok"


@pytest.mark.report("J01")
async def test_an_answer_of_five_megabytes_comes_whole() -> None:
    async with replays() as replay:
        replay.fake.script = (*(Says(b"x" * 50_000) for _ in range(105)), Final())
        response = await replay.post(R0)
        assert response.json()["choices"][0]["message"]["content"] == "x" * 5_250_000


@pytest.mark.report("J01")
async def test_one_message_of_triton_over_the_limit_is_an_error_in_words() -> None:
    async with replays() as replay:
        replay.fake.script = (Says(b"x" * (5 * MIB)), Final())
        response = await replay.post(R0)
        assert (response.status, response.headers["x-should-retry"]) == (500, "false")
        assert "too large" in response.json()["error"]["message"]


@pytest.mark.report("J02")
def test_nobody_pings_more_often_than_the_other_side_permits() -> None:
    """What a gRPC server with default settings permits in silence is a ping every 300 s."""
    assert TritonOptions().keepalive_time_s > 300
    assert int(DEFAULT_OPTIONS["grpc.keepalive_time_ms"]) > 300_000
    permitted_ms = dict(SERVICE_KEEPALIVE)["grpc.http2.min_ping_interval_without_data_ms"]
    assert GATEWAY_KEEPALIVE["grpc.keepalive_time_ms"] > permitted_ms


@pytest.mark.report("J05")
async def test_the_stream_over_a_tritons_limit_is_served_at_once_or_ends_in_time() -> None:
    well = (Says(b"Hello"), Final())
    limit = [("grpc.max_concurrent_streams", 4)]
    async with FakeTriton(script=(Says(b"a"), Hang()), canary_script=well, options=limit) as fake:
        backend = TritonBackend(TritonOptions(url=fake.url))
        await backend.start()
        options = ServerOptions(port=0, health_interval_s=30)
        async with running_service(simulated_model("m", backend=backend), options=options) as service:

            async def hold() -> grpc.aio.UnaryStreamCall:
                call = service.generation.Generate(twin(R0), timeout=30)
                for _ in range(2):
                    await call.read()
                return call

            held = list(await asyncio.gather(*(hold() for _ in range(4))))
            async with asyncio.timeout(5):
                held.append(await hold())  # the fifth
            # More than all connections together may carry: what waits ends with its own deadline, or is refused where
            # it came too close behind one that had ended.
            late = [service.generation.Generate(twin(R0), timeout=1.0) for _ in range(20)]
            for call in late:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    while True:
                        await call.read()
                assert failed.value.code() in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
            for call in held:
                call.cancel()
            await eventually(lambda: service.models["m"].slots.running == 0)
        await backend.close()


@pytest.mark.report("J05")
async def test_the_stream_over_a_services_limit_is_served_at_once_or_ends_in_time() -> None:
    async with (
        fake_service(options=[("grpc.max_concurrent_streams", 4)]) as fake,
        running_gateway(fake.address) as gateway,
    ):
        fake.default = (started(), delta("a"), HANG)
        clients = [gateway.connect() for _ in range(5)]
        for client in clients:
            await client.__aenter__()
            await client.send("POST", CHAT, chat_body(stream=True))
        async with asyncio.timeout(5):
            for client in clients:
                await client.head()

        async def late() -> bytes:
            async with gateway.connect() as client:
                await client.send("POST", CHAT, chat_body(stream=True), {"request-timeout-ms": "1000"})
                return (await client.response()).body

        for body in await asyncio.gather(*(late() for _ in range(20))):
            assert b'"code": "deadline_exceeded"' in body or b'"type": "service_unavailable_error"' in body
        for client in clients:
            await client.__aexit__()


@pytest.mark.report("J09")
@pytest.mark.parametrize("reader", ["raw", "SDK"])
async def test_a_slow_stream_survives_a_hop_that_cuts_idle_connections(reader: str) -> None:
    settings = {"status_hold_s": 0.3, "heartbeat_s": 0.2}
    async with replays(settings=settings) as replay, relay(f"127.0.0.1:{replay.gateway.port}", 0.7) as hop:
        body = replay.will('"x"@1.1,"y"@1.1,FIN(eos)', {"stream": True})
        if reader == "SDK":
            client = openai.AsyncOpenAI(base_url=f"http://{hop.address}/v1", api_key="k", max_retries=0)
            async with client, await client.chat.completions.create(**body) as stream:
                assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "xy"
            return
        async with RawClient(int(hop.address.rpartition(":")[2])) as connection:
            response = await connection.post(body)
        events = read_events(response.body)
        assert "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1]) == "xy"
        assert events[-1] == "[DONE]"
        # Each comment stands between events, and none comes behind the end.
        assert response.pieces.count(PING) >= 4
        assert all(piece == PING or piece.endswith(b"\n\n") for piece in response.pieces)
        assert not response.pieces[-1].endswith(PING)


@pytest.mark.report("J09")
async def test_a_request_that_waits_for_its_turn_survives_that_hop_as_well() -> None:
    settings = {"status_hold_s": 0.3, "heartbeat_s": 0.2}
    async with (
        running_service(simulated_model(running=1)) as service,
        running_gateway(f"127.0.0.1:{service.port}", **settings) as gateway,
        relay(f"127.0.0.1:{gateway.port}", 0.8) as hop,
    ):
        blocker = service.generation.Generate(
            GenerateRequest(model="sim", prompt=script(token_ms=30, output_tokens=50)), timeout=30
        )
        await blocker.read()
        async with RawClient(int(hop.address.rpartition(":")[2])) as connection:
            response = await connection.post(chat_body(model="sim", stream=True, max_tokens=3))
        assert (response.status, read_events(response.body)[-1]) == (200, "[DONE]")
        assert response.pieces[0] == PING
        blocker.cancel()


@pytest.mark.report("J10")
async def test_an_error_of_a_silent_engine_keeps_its_status_within_the_hold_and_is_an_event_behind_it() -> None:
    async with replays(settings={"status_hold_s": 0.5, "heartbeat_s": 0.2}) as replay:
        early = await replay.post(replay.will('@0.1,ERR(INTERNAL,"full")', {"stream": True}))
        assert (early.status, early.json()["error"]["code"]) == (500, "backend_error")
        late = await replay.post(replay.will('@1.2,ERR(INTERNAL,"full")', {"stream": True}))
        assert (late.status, late.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert late.pieces[0] == PING
        (event,) = read_events(late.body)
        assert json.loads(event)["error"]["code"] == "backend_error"


@pytest.mark.report("J06")
@pytest.mark.parametrize("module", ["gateway", "service"])
def test_a_process_that_is_forked_before_it_serves_takes_no_channel_and_no_thread_of_grpc_along(module: str) -> None:
    """Neither forks workers itself; a launcher may import one and fork."""
    program = (
        f"import {module}.__main__, gc, os, grpc\n"
        "print(sum(isinstance(one, (grpc.aio.Channel, grpc.Channel)) for one in gc.get_objects()))\n"
        "print(len(os.listdir('/proc/self/task')))\n"
    )
    # numpy, behind Triton's client, would start threads of its own.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["0", "1"]
