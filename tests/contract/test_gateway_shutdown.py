"""The end of the process: new work looks elsewhere, running streams finish, the others are told."""

import asyncio
import json
import os
import signal
import sys

import pytest

from tests.support.fake_service import HANG, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import CHAT, chat_body, read_events, running_gateway


@pytest.mark.report("L01")
async def test_running_streams_finish_and_the_others_end_with_an_error_event() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, drain_grace_s=0.5) as gateway,
        gateway.connect() as short,
        gateway.connect() as endless,
        gateway.connect() as whole,
    ):
        go = asyncio.Event()
        fake.will(started(), delta("a"), go, delta("b"), finished(), completed())
        await short.send("POST", CHAT, chat_body(stream=True))
        await fake.next_call()
        fake.will(started(), delta("a"), HANG)
        await endless.send("POST", CHAT, chat_body(stream=True))
        endless_call = await fake.next_call()
        fake.will(HANG)
        await whole.send("POST", CHAT, chat_body())
        whole_call = await fake.next_call()
        gateway.server.stop()
        go.set()
        finished_stream, cut_stream, cut_whole = await asyncio.gather(
            short.response(), endless.response(), whole.response()
        )
        assert read_events(finished_stream.body)[-1] == "[DONE]"
        assert cut_stream.is_whole
        assert json.loads(read_events(cut_stream.body)[-1])["error"]["code"] == "draining"
        assert b"[DONE]" not in cut_stream.body
        assert (cut_whole.status, cut_whole.headers["x-should-retry"]) == (503, "true")
        await endless_call.wait_cancelled()
        await whole_call.wait_cancelled()
        await asyncio.wait_for(gateway.task, 5)


async def test_readiness_says_no_before_the_listener_closes() -> None:
    async with fake_service() as fake, running_gateway(fake.address, drain_delay_s=0.5) as gateway:
        async with gateway.connect() as client:
            assert (await client.get("/readyz")).status == 200
            gateway.server.stop()
            await asyncio.sleep(0)
            ready = await client.get("/readyz")
            assert (ready.status, ready.headers["connection"]) == (503, "close")
        async with gateway.connect() as client:
            late = await client.post(chat_body())
            assert (late.status, late.headers["connection"]) == (200, "close")
        await asyncio.wait_for(gateway.task, 5)


async def test_a_shutdown_without_work_is_quick() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, drain_grace_s=60) as gateway,
        gateway.connect() as idle,
    ):
        await idle.get("/healthz")
        gateway.server.stop()
        await asyncio.wait_for(gateway.task, 3)


async def test_the_process_ends_with_0_after_sigterm_and_names_bad_settings() -> None:
    async with fake_service() as fake:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "--port", "0", "--target", fake.address, "--log-format", "json",
            stderr=asyncio.subprocess.PIPE, env={**os.environ, "HEADRACE_GATEWAY_HEARTBEAT_S": "5"},
        )  # fmt: skip
        assert process.stderr is not None
        try:
            async with asyncio.timeout(20):
                while True:
                    line = json.loads(await process.stderr.readline())
                    if "running on" in line["message"]:
                        break
                process.send_signal(signal.SIGTERM)
                rest = await process.stderr.read()
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
        assert b"Traceback" not in rest
    unreadable = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "--tls-ca-file", "/nowhere/ca.pem", stderr=asyncio.subprocess.PIPE
    )
    _, errors = await unreadable.communicate()
    assert unreadable.returncode == 2
    assert errors.count(b"\n") == 1
    assert b"--tls-ca-file" in errors
    bad = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "--port", "99999", "--heartbeat-s", "no", stderr=asyncio.subprocess.PIPE
    )
    _, errors = await bad.communicate()
    assert bad.returncode == 2
    assert b"--port" in errors
    assert b"--heartbeat-s" in errors
