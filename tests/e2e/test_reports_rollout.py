"""Replays of public bug reports: what a shutdown and a rolling update do to running answers."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from tests.support.balancer import balancer
from tests.support.gateway_harness import CHAT, RawClient, read_events
from tests.support.http_stream import open_stream
from tests.support.otlp_sink import OtlpSink, otlp_sink
from tests.support.processes import Process, Stack, free_ports, gateway, service, stack
from tests.support.service import script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

GRACE_S = 2
# Beyond the grace: the last events, what is still to be exported, and a busy machine.
SLACK_S = 4
SHORT = script(token_ms=20, output_tokens=40)
ENDLESS = script(token_ms=20)
HANGS = script(fault="hang", fault_after=1)
PROMPTS = (SHORT, ENDLESS, HANGS)


def chat(prompt: str, **members: Any) -> dict[str, Any]:
    return {"model": "default", "messages": [{"role": "user", "content": f"{prompt}\n"}], "max_tokens": 4000, **members}


def traced() -> tuple[str, dict[str, str]]:
    trace_id = secrets.token_hex(16)
    return trace_id, {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}


def unhurried(endpoint: str) -> dict[str, str]:
    """Spans are exported once a minute: what comes sooner was exported because the process ended."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "60000"}


async def exit_of(running: Process, asked_s: float) -> None:
    assert await running.ended() == 0
    assert time.monotonic() - asked_s < GRACE_S + SLACK_S


async def is_exported(sink: OtlpSink, traces: list[str], source: str, name: str) -> None:
    for trace_id in traces:
        await asyncio.to_thread(sink.trace, trace_id, {(source, name)}, 5)


async def end_the_gateway(running: Stack, sink: OtlpSink) -> None:
    traces: list[str] = []

    async def ask(prompt: str, is_asked: asyncio.Semaphore) -> list[str]:
        trace_id, headers = traced()
        traces.append(trace_id)
        async with open_stream(running.gateway.port, chat(prompt), headers=headers) as stream:
            await stream.until_text()
            is_asked.release()
            return await stream.rest()

    begun = asyncio.Semaphore(0)
    asked = [asyncio.create_task(ask(prompt, begun)) for prompt in PROMPTS]
    for _ in asked:
        await begun.acquire()
    asked_s = time.monotonic()
    running.gateway.send(signal.SIGTERM)
    short, *others = await asyncio.gather(*asked)
    assert short[-1] == "[DONE]"
    for events in others:
        assert json.loads(events[-1])["error"]["code"] == "draining"
    await exit_of(running.gateway, asked_s)
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", running.gateway.port)
    await is_exported(sink, traces, "headrace-gateway", "POST /v1/chat/completions")


async def end_the_service(running: Stack, sink: OtlpSink) -> None:
    traces: list[str] = []
    async with grpc.aio.insecure_channel(running.target) as channel:
        generate = generation_pb2_grpc.GenerationServiceStub(channel).Generate

        async def ask(prompt: str, is_asked: asyncio.Semaphore) -> str:
            trace_id, headers = traced()
            traces.append(trace_id)
            request = gen.GenerateRequest(model="default", prompt=prompt, sampling={"max_output_tokens": 4000})
            call = generate(request, timeout=60, metadata=tuple(headers.items()))
            for _ in range(2):
                await call.read()
            is_asked.release()
            try:
                while await call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return "OK"

        begun = asyncio.Semaphore(0)
        asked = [asyncio.create_task(ask(prompt, begun)) for prompt in PROMPTS]
        for _ in asked:
            await begun.acquire()
        asked_s = time.monotonic()
        running.service.send(signal.SIGTERM)
        assert await asyncio.gather(*asked) == ["OK", "UNAVAILABLE", "UNAVAILABLE"]
        await exit_of(running.service, asked_s)
    await is_exported(sink, traces, "headrace-service", "headrace.v1.GenerationService/Generate")


@pytest.mark.report("L01")
async def test_a_signal_ends_open_streams_in_words_and_the_process_in_time_with_its_spans(tmp_path: Path) -> None:
    with (
        otlp_sink() as sink,
        stack(
            tmp_path,
            both=unhurried(sink.endpoint),
            front={"drain_grace_s": GRACE_S},
            backend="simulator",
            shutdown_grace_s=GRACE_S,
        ) as running,
    ):
        await end_the_gateway(running, sink)
        await end_the_service(running, sink)


class Load:
    """Short streams, one behind the other in each of several lanes, until told to stop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_over = False
        self.answers: list[str] = []

    async def run(self, lanes: int) -> None:
        await asyncio.gather(*(self._lane() for _ in range(lanes)))

    def stop(self) -> None:
        self._is_over = True

    async def _lane(self) -> None:
        body = {**chat(script(token_ms=20, output_tokens=20)), "stream": True}
        while not self._is_over:
            try:
                async with RawClient(self._port) as client:
                    response = await client.post(body, CHAT)
                is_good = response.is_whole and response.status == 200 and read_events(response.body)[-1] == "[DONE]"
                self.answers.append("ok" if is_good else f"{response.status} {response.body[-300:]!r}")
            except (OSError, asyncio.IncompleteReadError) as error:
                self.answers.append(repr(error))


@pytest.mark.report("L03")
async def test_a_rolling_update_of_two_gateways_fails_no_request(tmp_path: Path) -> None:
    ports = free_ports(2)
    # Longer than the balancer needs to look away, on a busy machine too.
    settings = {"drain_delay_s": 1, "drain_grace_s": 10}
    with service(tmp_path, backend="simulator") as inner, ExitStack() as running:

        async def start(name: str, port: int) -> Process:
            folder = tmp_path / name
            folder.mkdir()
            return await asyncio.to_thread(running.enter_context, gateway(folder, inner.port, port=port, **settings))

        async def serves(replica: Process) -> None:
            await replica.line(logger="gateway.requests", route=CHAT, status=200)

        async def ends(replica: Process) -> None:
            replica.send(signal.SIGTERM)
            assert await replica.ended() == 0

        first, second = await asyncio.gather(start("first", ports[0]), start("second", ports[1]))
        async with balancer(ports) as front:
            await ready(front)
            load = Load(front)
            loading = asyncio.create_task(load.run(6))
            await asyncio.gather(serves(first), serves(second))
            await ends(first)
            first = await start("first again", ports[0])
            await serves(first)
            await ends(second)
            load.stop()
            await loading
        assert set(load.answers) == {"ok"}
        assert len(load.answers) > 40


async def ready(port: int) -> None:
    """Wait until the balancer has found a gateway."""
    async with asyncio.timeout(10):
        while True:
            try:
                async with RawClient(port) as client:
                    if (await client.get("/readyz")).status == 200:
                        return
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.01)
