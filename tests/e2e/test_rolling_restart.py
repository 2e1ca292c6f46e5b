"""Two services are restarted one after the other under load: over gRPC and over HTTP nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from tests.support.balancer import balancer, is_service_ready
from tests.support.gateway_harness import CHAT, RawClient, read_events
from tests.support.processes import Process, free_ports, gateway, service, wait_until
from tests.support.service import script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

# Longer than a balancer of this test needs to look away, and than a client to notice.
DELAY_S: Final = 1
GRACE_S: Final = 10
# A quarter of a second; and one that begins before the signal and ends behind the delay, within the grace.
SHORT: Final = script(tokens=["s"], token_ms=25, output_tokens=10)
LONG: Final = script(tokens=["l"], token_ms=50, output_tokens=60)
LANES: Final = 3
# What a client that knows the contract tries once more: nobody has looked at the call, and nothing came back.
RETRIABLE: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

# The library's own retries are off, so that the test sees what it would hide.
OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
IN_TURN: Final[list[tuple[str, Any]]] = [("grpc.lb_policy_name", "round_robin")]

Ask = Callable[[str], Awaitable[str]]


class Caller:
    """Calls in lanes, one behind the other in each, until told to stop. `ask` returns "ok" or what went wrong."""

    def __init__(self, name: str, ask: Ask) -> None:
        self.name = name
        self.answers: Counter[str] = Counter()
        self._ask = ask
        self._is_over = False

    async def run(self) -> None:
        await asyncio.gather(*(self._lane() for _ in range(LANES)))

    def stop(self) -> None:
        self._is_over = True

    async def _lane(self) -> None:
        while not self._is_over:
            self.answers[await self._ask(SHORT)] += 1

    async def long(self) -> str:
        """Ask for a stream that outlives the delay."""
        return await self._ask(LONG)


def over_grpc(channel: grpc.aio.Channel, name: str = "one") -> Ask:
    """A client of nothing but grpcio that tries once more. Its request ids are its name."""
    generate = generation_pb2_grpc.GenerationServiceStub(channel).Generate

    async def once(prompt: str) -> tuple[str, bool]:
        events = 0
        try:
            request = gen.GenerateRequest(model="default", prompt=prompt)
            async for _ in generate(request, timeout=30, metadata=(("x-request-id", name),)):
                events += 1
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} after {events}: {error.details()}", not events and error.code() in RETRIABLE
        return "ok", False

    async def ask(prompt: str) -> str:
        answer, is_worth_another = await once(prompt)
        if is_worth_another:
            await asyncio.sleep(0.1)
            answer, _ = await once(prompt)
        return answer

    return ask


def over_http(port: int, name: str) -> Ask:
    """A client that tries once more where the answer says that it should. Its request ids are its name."""

    async def once(prompt: str) -> tuple[str, float | None]:
        message = {"role": "user", "content": f"{prompt}\n"}
        body = {"model": "default", "messages": [message], "stream": True, "max_tokens": 200}
        async with RawClient(port) as client:
            answer = await client.post(body, CHAT, {"x-request-id": name})
        if answer.status != 200:
            is_worth_another = answer.headers.get("x-should-retry") == "true"
            wait_s = float(answer.headers.get("retry-after", "0.1")) if is_worth_another else None
            return f"{answer.status} {answer.body[-200:]!r}", wait_s
        return ("ok" if read_events(answer.body)[-1] == "[DONE]" else f"broken: {answer.body[-300:]!r}"), None

    async def ask(prompt: str) -> str:
        answer, wait_s = await once(prompt)
        if wait_s is not None:
            await asyncio.sleep(wait_s)
            answer, _ = await once(prompt)
        return answer

    return ask


async def test_a_rolling_restart_of_two_services_loses_no_stream_and_fails_no_request(tmp_path: Path) -> None:
    ports = free_ports(2)
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    settings = {"backend": "simulator", "drain_delay_s": DELAY_S, "shutdown_grace_s": GRACE_S}
    with ExitStack() as running:

        async def start(name: str, port: int) -> Process:
            folder = tmp_path / name
            folder.mkdir()
            return await asyncio.to_thread(running.enter_context, service(folder, port=port, **settings))

        first, second = await asyncio.gather(start("first", ports[0]), start("second", ports[1]))
        target = {"HEADRACE_GATEWAY_TARGET": f"ipv4:{addresses}", "ready_timeout_s": 2}
        front = await asyncio.to_thread(running.enter_context, gateway(tmp_path, 0, **target))
        async with (
            balancer(ports, is_service_ready) as balanced,
            grpc.aio.insecure_channel(f"ipv4:{addresses}", options=IN_TURN + OPTIONS) as to_both,
            grpc.aio.insecure_channel(f"127.0.0.1:{balanced}", options=OPTIONS) as to_balancer,
        ):
            await wait_until(f"http://127.0.0.1:{front.port}/readyz", 200)
            await to_balancer_is_ready(to_balancer)
            callers = [
                Caller("every address", over_grpc(to_both, "addresses")),
                Caller("HTTP", over_http(front.port, "http")),
                Caller("one connection through a balancer", over_grpc(to_balancer)),
            ]
            loading = [asyncio.create_task(caller.run()) for caller in callers]
            long: list[str] = []

            async def leaves(replica: Process) -> None:
                # Two of each, so that both replicas have some.
                streams = [asyncio.create_task(caller.long()) for caller in callers for _ in range(2)]
                await asyncio.sleep(0.3)
                replica.send(signal.SIGTERM)
                long.extend(await asyncio.gather(*streams))
                assert await replica.ended() == 0

            async def is_back(name: str, port: int) -> None:
                """Start a replica, and wait until those who know its address have found it again."""
                replica = await start(name, port)
                for request_id in ("addresses", "http"):
                    await replica.line(logger="headrace.request", request_id=request_id, outcome="completed")

            await leaves(first)
            await is_back("first again", ports[0])
            await leaves(second)
            await is_back("second again", ports[1])
            for caller in callers:
                caller.stop()
            await asyncio.gather(*loading)
        assert set(long) == {"ok"}
        assert {caller.name: set(caller.answers) for caller in callers} == {caller.name: {"ok"} for caller in callers}
        assert all(caller.answers["ok"] > 20 for caller in callers)


async def to_balancer_is_ready(channel: grpc.aio.Channel) -> None:
    """Wait until the balancer has found a service."""
    async with asyncio.timeout(10):
        await channel.channel_ready()
        while await over_grpc(channel)(SHORT) != "ok":  # noqa: ASYNC110 - what another process does
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_a_service_at_once_also_while_it_still_serves(
    number: signal.Signals, tmp_path: Path
) -> None:
    with service(tmp_path, backend="simulator", drain_delay_s=60, shutdown_grace_s=60) as running:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
                gen.GenerateRequest(model="default", prompt=script(token_ms=20)), timeout=60
            )
            await call.read()
            running.send(number)
            await running.line(message="not ready any more, still serving")
            assert running.is_running
            asked_s = time.monotonic()
            running.send(number)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await running.ended() == 0
            assert time.monotonic() - asked_s < 3
