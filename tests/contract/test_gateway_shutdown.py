"""The end of the process: new work looks elsewhere, running streams finish, the others are told."""

import asyncio
import json
import os
import signal
import sys

import pytest

from service.backends.simulator import SimulatorOptions
from tests.support.fake_service import HANG, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import CHAT, RawResponse, chat_body, read_events, running_gateway
from tests.support.service import running_service, simulated_model


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


@pytest.mark.parametrize("delay_s", [0, 60])
async def test_a_second_signal_ends_everything_at_once_in_every_phase(delay_s: float) -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, drain_delay_s=delay_s, drain_grace_s=60) as gateway,
        gateway.connect() as stream,
        gateway.connect() as idle,
        asyncio.timeout(5),
    ):
        await idle.get("/healthz")
        fake.will(started(), delta("a"), HANG)
        await stream.send("POST", CHAT, chat_body(stream=True))
        call = await fake.next_call()
        await stream.head()
        await stream.piece()
        gateway.server.stop()
        await asyncio.sleep(0)
        assert not gateway.task.done()
        gateway.server.stop()
        events = b""
        while piece := await stream.piece():
            events += piece
        assert json.loads(read_events(events)[-1])["error"]["code"] == "draining"
        await call.wait_cancelled()
        await gateway.task
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", gateway.port)


async def test_a_second_signal_does_not_wait_for_a_client_that_reads_nothing() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, drain_grace_s=60) as gateway,
        gateway.connect() as frozen,
        asyncio.timeout(10),
    ):
        fake.will(started(), *[delta("x" * 60_000) for _ in range(200)], HANG)
        await frozen.send("POST", CHAT, chat_body(stream=True))
        call = await fake.next_call()
        gateway.server.stop()
        await asyncio.sleep(0)
        gateway.server.stop()
        await asyncio.wait_for(gateway.task, 3)
        await call.wait_cancelled()


async def test_new_work_behind_the_delay_is_refused_and_told_to_come_back() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        await client.get("/healthz")
        gateway.gateway.is_leaving = gateway.gateway.is_refusing = True
        refused = await client.post(chat_body(stream=True))
        assert (refused.status, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["x-should-retry"] == "true"
        assert refused.headers["connection"] == "close"
        assert not fake.calls


async def test_a_draining_service_is_503_and_worth_a_retry() -> None:
    async with running_service() as service, running_gateway(f"127.0.0.1:{service.port}") as gateway:
        service.server.drain.begin(None)

        async def refused(*, stream: bool) -> RawResponse:
            async with gateway.connect() as client:
                return await client.post(chat_body(model="sim", stream=stream))

        # Each behind the tries of the gateway itself, which comes back when it is told to, a second later.
        for answer in await asyncio.gather(refused(stream=True), refused(stream=False)):
            assert (answer.status, answer.json()["error"]["code"]) == (503, "draining")
            assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("1", "true")
        async with gateway.connect() as client:
            ready = await client.get("/readyz")
            assert (ready.status, ready.json()["status"]) == (503, "not ready")
            service.server.drain.resume()
            assert (await client.get("/readyz")).status == 200
            assert (await client.post(chat_body(model="sim", stream=True))).status == 200


# Readiness


async def test_a_degraded_service_is_ready_and_the_body_says_so() -> None:
    dead = simulated_model("dead", SimulatorOptions(is_down=True))
    async with (
        running_service(dead, simulated_model()) as service,
        running_gateway(f"127.0.0.1:{service.port}") as gateway,
        gateway.connect() as client,
    ):
        ready = await client.get("/readyz")
        assert (ready.status, ready.json()["status"]) == (200, "degraded")
        assert "not ready" in ready.json()["reason"]


async def test_one_of_two_replicas_that_leaves_degrades_the_gateway_and_no_more() -> None:
    async with (
        running_service() as first,
        running_service() as second,
        running_gateway(f"ipv4:127.0.0.1:{first.port},127.0.0.1:{second.port}") as gateway,
        gateway.connect() as client,
    ):
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        first.server.drain.begin(None)
        answers = [await client.get("/readyz") for _ in range(4)]
        assert {answer.status for answer in answers} == {200}
        assert answers[-1].json()["status"] == "degraded"
        second.server.drain.begin(None)
        assert (await client.get("/readyz")).status == 503


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
