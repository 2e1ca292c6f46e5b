"""Processes that start, refuse to start, end and die: what a person at the terminal and an orchestrator see."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from tests.support.gateway_harness import RawClient
from tests.support.http_stream import open_stream
from tests.support.processes import (
    ROOT,
    Process,
    Stack,
    clean_environment,
    clean_log,
    free_ports,
    gateway,
    process,
    service,
    stack,
    state_of,
    wait_until,
)
from tests.support.service import script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

GRACE_S = 1
SLACK_S = 3


def chat(prompt: str, **members: Any) -> dict[str, Any]:
    return {"model": "default", "messages": [{"role": "user", "content": f"{prompt}\n"}], **members}


ENDLESS = chat(script(token_ms=20), max_tokens=4000)
# About a second.
SHORT = chat(script(token_ms=20), max_tokens=50)


def ran(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that has to end by itself within 20 s."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=clean_environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )


@contextmanager
def both_by_script(folder: Path, **variables: str) -> Iterator[tuple[Process, int]]:
    """Run `scripts/serve.py` and yield it, with the gateway's port, when its banner is there."""
    grpc_port, http_port = free_ports(2)
    ports = {"HEADRACE_GRPC_PORT": str(grpc_port), "HEADRACE_GATEWAY_PORT": str(http_port)}
    environment = clean_environment(HEADRACE_BACKEND="simulator", **ports, **variables)
    with process("serve", [sys.executable, "scripts/serve.py"], folder, environment) as running:
        banner = running.wait_for(re.compile(r"ready: gRPC on (\S+), OpenAI-shaped HTTP on (\S+)"), 30)
        assert banner.groups() == (f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}")
        yield running, http_port
    clean_log(running)


async def test_the_script_starts_both_and_a_signal_lets_a_stream_finish(tmp_path: Path) -> None:
    with both_by_script(tmp_path) as (running, port):
        async with open_stream(port, SHORT) as stream:
            await stream.until_text()
            running.send(signal.SIGTERM)
            events = await stream.rest()
        assert events[-1] == "[DONE]"
        assert await running.ended() == 0
        assert await state_of(f"http://127.0.0.1:{port}/healthz") is None


async def test_the_grace_of_the_service_is_enough_to_end_both_by_script(tmp_path: Path) -> None:
    with both_by_script(tmp_path, HEADRACE_SHUTDOWN_GRACE_S=str(GRACE_S)) as (running, port):
        async with open_stream(port, ENDLESS) as stream:
            await stream.until_text()
            asked_s = time.monotonic()
            running.send(signal.SIGINT)
            events = await stream.rest()
        assert events[-1] != "[DONE]"
        assert "error" in json.loads(events[-1])
        assert await running.ended() == 0
        assert time.monotonic() - asked_s < GRACE_S + 2 * SLACK_S  # one process after the other


async def test_a_second_signal_ends_both_at_once(tmp_path: Path) -> None:
    with both_by_script(tmp_path) as (running, port):
        async with open_stream(port, ENDLESS) as stream:
            await stream.until_text()
            running.send(signal.SIGINT)
            await wait_until(f"http://127.0.0.1:{port}/readyz", 503)
            asked_s = time.monotonic()
            running.send(signal.SIGINT)
            assert json.loads((await stream.rest())[-1])["error"]["code"] == "draining", "told, and not cut"
            assert await running.ended() != 0
            assert time.monotonic() - asked_s < SLACK_S


async def test_two_listeners_on_one_port_are_named_before_anything_starts() -> None:
    port = str(free_ports(1)[0])
    settings = {"HEADRACE_BACKEND": "simulator", "HEADRACE_GATEWAY_PORT": port, "HEADRACE_ADMIN_PORT": port}
    done = await asyncio.to_thread(ran, "scripts/serve.py", **settings)
    assert (done.returncode, done.stderr) == (2, f"headrace: port {port} is set for two of the listeners\n")


async def test_when_one_of_both_dies_the_script_ends_the_other(tmp_path: Path) -> None:
    done = await asyncio.to_thread(ran, "scripts/serve.py", HEADRACE_BACKEND="simulator", HEADRACE_MAX_WAITING="-1")
    assert done.returncode == 2
    assert "HEADRACE_MAX_WAITING" in done.stderr


@pytest.mark.report("L01")
async def test_a_stream_beyond_the_grace_of_the_gateway_ends_with_an_error_event(tmp_path: Path) -> None:
    with stack(tmp_path, backend="simulator", front={"drain_grace_s": GRACE_S}) as running:
        async with open_stream(running.gateway.port, ENDLESS) as stream:
            await stream.until_text()
            asked_s = time.monotonic()
            running.gateway.send(signal.SIGTERM)
            events = await stream.rest()
        assert "[DONE]" not in events
        assert json.loads(events[-1])["error"]["code"] == "draining"
        assert await running.gateway.ended() == 0
        assert time.monotonic() - asked_s < GRACE_S + SLACK_S
        line = await running.service.line(logger="headrace.request")
        assert line["outcome"] == "client_cancelled"


@pytest.mark.report("L01")
async def test_a_call_beyond_the_grace_of_the_service_ends_with_a_status(tmp_path: Path) -> None:
    with service(tmp_path, backend="simulator", shutdown_grace_s=GRACE_S) as running:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            request = gen.GenerateRequest(
                model="default", prompt=script(token_ms=20), sampling={"max_output_tokens": 4000}
            )
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=60)
            events = aiter(call)
            await anext(events)
            asked_s = time.monotonic()
            running.send(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                async for _ in events:
                    pass
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await running.ended() == 0
        assert GRACE_S <= time.monotonic() - asked_s < GRACE_S + SLACK_S
        assert running.lines(logger="headrace.request")[0]["reason"] == "DRAINING"


@pytest.mark.parametrize("module", ["service", "gateway"])
async def test_a_second_server_on_a_port_says_so_and_leaves(module: str, simulated: Stack) -> None:
    taken = simulated.service.port if module == "service" else simulated.gateway.port
    flags = ["--grpc-port", str(taken), "--backend=simulator"] if module == "service" else ["--port", str(taken)]
    done = await asyncio.to_thread(ran, "-m", module, *flags)
    assert done.returncode != 0
    problems = [line for line in done.stderr.splitlines() if '"ERROR"' in line]
    assert len(problems) == 1
    assert str(taken) in json.loads(problems[0])["message"]
    assert "Traceback" not in done.stderr
    assert await state_of(f"{simulated.url}/readyz") == 200


def test_the_script_starts_nothing_where_a_port_is_taken(simulated: Stack) -> None:
    ports = {"HEADRACE_GRPC_PORT": str(free_ports(1)[0]), "HEADRACE_GATEWAY_PORT": str(simulated.gateway.port)}
    done = ran("scripts/serve.py", HEADRACE_BACKEND="simulator", **ports)
    assert done.returncode == 1
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
    assert str(simulated.gateway.port) in done.stderr


@pytest.mark.parametrize(
    ("module", "variables"),
    [
        ("service", {"HEADRACE_GRPC_PORT": "70000", "HEADRACE_BACKEND": "vllm", "HEADRACE_MAX_WAITING": "-1"}),
        ("gateway", {"HEADRACE_GATEWAY_PORT": "x", "HEADRACE_GATEWAY_HEARTBEAT_S": "0"}),
    ],
)
def test_wrong_settings_are_all_told_at_once(module: str, variables: dict[str, str]) -> None:
    done = ran("-m", module, **variables)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == len(variables)
    for name, value in variables.items():
        (line,) = [line for line in lines if name in line]
        assert value in line


def test_a_broken_models_file_is_told_with_every_line(tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text(
        '[[models]]\nid = "a"\nbackend = "simulator"\nmax_choices = 0\n\n[models.options]\nqueue = 5\n\n'
        '[[models]]\nid = "a"\nbackend = "unknown"\n'
    )
    done = ran("-m", "service", f"--models-file={models}")
    assert done.returncode == 2
    told = re.findall(r"models\.toml:(\d+): ", done.stderr)
    assert set(told) == {"4", "7", "10", "11"}
    assert len(done.stderr.splitlines()) == len(told)


async def test_a_gateway_outlives_its_service_and_finds_the_next_one(tmp_path: Path) -> None:
    with service(tmp_path, backend="simulator") as first, gateway(tmp_path, first.port) as front:
        url = f"http://127.0.0.1:{front.port}"
        await wait_until(f"{url}/readyz", 200)
        first.send(signal.SIGKILL)
        await first.ended()
        assert await wait_until(f"{url}/readyz", 503) < SLACK_S
        assert await state_of(f"{url}/healthz") == 200
        for stream in (False, True):
            async with RawClient(front.port) as client:
                answer = await client.post(chat("x", stream=stream))
            assert (answer.status, answer.headers["x-should-retry"]) == (503, "true")
            assert answer.json()["error"]["type"] == "service_unavailable_error"
        with service(tmp_path, backend="simulator", port=first.port):
            assert await wait_until(f"{url}/readyz", 200) < 2 * SLACK_S
            async with open_stream(front.port, chat("x", max_tokens=2)) as stream_of_two:
                assert (await stream_of_two.rest())[-1] == "[DONE]"


async def test_a_killed_gateway_frees_the_slot_in_the_service(tmp_path: Path) -> None:
    with service(tmp_path, backend="simulator", simulator_max_running=1) as running:
        with gateway(tmp_path, running.port) as front:
            async with open_stream(front.port, ENDLESS, headers={"x-request-id": "orphan"}) as stream:
                await stream.until_text()
                killed_s = time.monotonic()
                front.send(signal.SIGKILL)
                line = await running.line(request_id="orphan")
                assert time.monotonic() - killed_s < SLACK_S
                await front.ended()
        assert (line["outcome"], line["status"]) == ("client_cancelled", "CANCELLED")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            request = gen.GenerateRequest(model="default", prompt="x", sampling={"max_output_tokens": 2})
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            events = [event async for event in stub.Generate(request, timeout=5)]
        assert events[-1].completed.timing.queue_duration.ToSeconds() == 0
