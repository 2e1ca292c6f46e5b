"""HTTP and gRPC callers in front of a real Triton: the same text, and work that stops when nobody wants it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from tests.support.gateway_harness import RawClient
from tests.support.http_stream import open_stream, text_of_chunks
from tests.support.processes import Stack, stack
from tests.support.service import eventually
from tests.support.triton_parts import LIB
from tests.support.triton_server import SCRIPTED_SLOTS, RealTriton

pytestmark = [pytest.mark.e2e, pytest.mark.triton, pytest.mark.timeout(120)]

assert LIB
from headrace_triton.scripted import SCRIPT  # noqa: E402

COMPLETIONS = "/v1/completions"
NUMBERS = "Count from 1 to 20: 1, 2, 3, 4, 5, 6,"
LIMIT_S = 0.150


@pytest.fixture(scope="module")
def scripted(scripted_triton: RealTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {"backend": "triton", "triton_url": scripted_triton.url, "max_running": SCRIPTED_SLOTS}
    with stack(tmp_path_factory.mktemp("scripted"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def gemma(llama_triton: RealTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stack(tmp_path_factory.mktemp("gemma"), backend="triton", triton_url=llama_triton.url) as running:
        yield running


class EngineLog:
    """What the engine does from now on; `t` is time.monotonic(), this process's clock as well."""

    def __init__(self, triton: RealTriton) -> None:
        self._path = triton.event_log
        self._seen = self._path.stat().st_size if self._path.exists() else 0
        self._events: list[dict[str, Any]] = []

    def events(self, event: str, run: str = "") -> list[dict[str, Any]]:
        """Return the events of one kind, of one run or of all but health checks."""
        with self._path.open("rb") as file:
            file.seek(self._seen, os.SEEK_SET)
            new, end, _ = file.read().rpartition(b"\n")
        self._seen += len(new + end)
        self._events += [json.loads(line) for line in new.splitlines()]
        mine = [e for e in self._events if (e["id"] == run if run else not e["id"].startswith("canary"))]
        return [e for e in mine if e["event"] == event]

    async def next(self, event: str, run: str = "") -> dict[str, Any]:
        """Return the first event of its kind; waits for it."""
        give_up_s = time.monotonic() + 10
        while not (found := self.events(event, run)):
            assert time.monotonic() < give_up_s, f"no {event} of the engine in 10 s; it did {self._events[-5:]}"
            await asyncio.sleep(0.002)
        return found[0]


@pytest.fixture
async def idle(scripted_triton: RealTriton) -> AsyncIterator[None]:
    """Nothing of another test runs in the engine, and nothing of this one stays."""
    await eventually(lambda: scripted_triton.running() == 0, 10)
    yield
    await eventually(lambda: scripted_triton.running() == 0, 10)


@dataclass(frozen=True, slots=True)
class Left:
    """One abandoned request: seconds until the engine had stopped, and the tokens it had made by then."""

    stopped_after_s: float
    tokens: int


def body(prompt: str, tokens: int, **members: Any) -> dict[str, Any]:
    return {"model": "default", "prompt": prompt, "max_tokens": tokens, **members}


def p99(seconds: list[float]) -> float:
    """Return the 99th percentile by nearest rank."""
    return sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]


def say(what: str, seconds: list[float]) -> None:
    """Print the figures, for `pytest -s` and for a test that fails."""
    p50_ms, p99_ms = sorted(seconds)[len(seconds) // 2] * 1000, p99(seconds) * 1000
    print(f"{what} to engine stop: p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms of {len(seconds)}")  # noqa: T201


async def holds(what: str, measure: Callable[[], Awaitable[list[float]]]) -> None:
    """Hold the 99th percentile of what `measure` returns against LIMIT_S.

    Up to three times: a busy machine is late once, a slow path every time.
    """
    for _ in range(3):
        seconds = await measure()
        say(what, seconds)
        if p99(seconds) <= LIMIT_S:
            return
    pytest.fail(f"{what}: p99 above {LIMIT_S} s three times; at last {sorted(seconds)[-10:]}")


async def left(log: EngineLog, run: str, at_s: float) -> Left:
    end = await log.next("end", run)
    assert end["reason"] == "stop_seen"
    return Left(end["t"] - at_s, end["tokens"])


async def leave_in_the_middle(port: int, triton: RealTriton, number: int) -> Left:
    log = EngineLog(triton)
    async with open_stream(port, body("token_ms=10", 1000), COMPLETIONS) as stream:
        for _ in range(1 + number % 4):
            data = await anext(stream)
        run = json.loads(data)["id"].removeprefix("cmpl-") + "-0"
        at_s = time.monotonic()
        if number % 2:
            stream.client.leave()
        else:
            stream.client.reset()
        return await left(log, run, at_s)


async def leave_before_the_first_token(port: int, triton: RealTriton, _number: int) -> Left:
    log = EngineLog(triton)
    async with RawClient(port) as client:
        await client.send("POST", COMPLETIONS, body("prefill_ms=20000", 1000, stream=True))
        run = (await log.next("start"))["id"]
        at_s = time.monotonic()
        client.leave()
        return await left(log, run, at_s)


async def leave_a_whole_answer(port: int, triton: RealTriton, _number: int) -> Left:
    log = EngineLog(triton)
    async with RawClient(port) as client:
        await client.send("POST", COMPLETIONS, body("token_ms=10", 1000))
        run = (await log.next("tokens"))["id"]
        at_s = time.monotonic()
        client.leave()
        return await left(log, run, at_s)


WAYS: list[Callable[[int, RealTriton, int], Any]] = [
    leave_in_the_middle,
    leave_before_the_first_token,
    leave_a_whole_answer,
]


async def test_the_text_is_the_engine_s_own_whole_and_streamed(scripted: Stack) -> None:
    wanted = (SCRIPT * 3)[: 2 * len(SCRIPT)].decode()
    request = body("token_ms=0", 2 * len(SCRIPT))
    async with open_stream(scripted.gateway.port, request, COMPLETIONS) as stream:
        events = await stream.rest()
    assert events[-1] == "[DONE]"
    assert text_of_chunks(events) == wanted
    async with RawClient(scripted.gateway.port) as client:
        answer = (await client.post(request, COMPLETIONS)).json()
    assert answer["choices"][0]["text"] == wanted
    assert answer["usage"]["completion_tokens"] == 2 * len(SCRIPT)
    async with grpc.aio.insecure_channel(scripted.target) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
            gen.GenerateRequest(model="default", prompt="token_ms=0", sampling={"max_output_tokens": 2 * len(SCRIPT)}),
            timeout=20,
        )
        assert "".join([event.delta.text async for event in call]) == wanted


async def test_a_real_model_answers_over_http(gemma: Stack) -> None:
    async with open_stream(gemma.gateway.port, body(NUMBERS, 12, temperature=0), COMPLETIONS) as stream:
        events = await stream.rest()
    assert (text_of_chunks(events), events[-1]) == (" 7, 8, 9, 10", "[DONE]")


@pytest.mark.report("H01")
@pytest.mark.usefixtures("idle")
async def test_closing_the_connection_stops_the_engine_in_150_ms(scripted: Stack, scripted_triton: RealTriton) -> None:
    async def measure() -> list[float]:
        # In turns, so that a busy moment of the machine meets all of them.
        turns = [[await way(scripted.gateway.port, scripted_triton, n) for way in WAYS] for n in range(50)]
        for way, results in zip(WAYS, zip(*turns, strict=True), strict=True):
            say(way.__name__, [one.stopped_after_s for one in results])
            assert all(one.tokens < 100 for one in results)
        assert all(before.tokens == 0 for _, before, _ in turns)
        return [one.stopped_after_s for turn in turns for one in turn]

    await holds("closing the connection", measure)


@pytest.mark.parametrize("way", [leave_in_the_middle, leave_a_whole_answer])
async def test_closing_the_connection_stops_a_real_model(way: Any, gemma: Stack, llama_triton: RealTriton) -> None:
    for number in range(3):
        one = await way(gemma.gateway.port, llama_triton, number)
        # It looks for a stop between two tokens; one takes 20 to 40 ms here.
        assert one.stopped_after_s < 1
        assert one.tokens < 60


@pytest.mark.usefixtures("idle")
async def test_a_grpc_deadline_stops_the_engine_in_150_ms(scripted: Stack, scripted_triton: RealTriton) -> None:
    timeout_s, lanes, rounds = 0.25, 5, 20

    async def call(stub: Any) -> tuple[str, float]:
        request = gen.GenerateRequest(model="default", prompt="token_ms=20", sampling={"max_output_tokens": 1000})
        due_s, run = time.monotonic() + timeout_s, ""
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for event in stub.Generate(request, timeout=timeout_s):
                run = run or f"{event.started.generation_id}-0"
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return run, due_s

    async def measure() -> list[float]:
        log = EngineLog(scripted_triton)
        async with grpc.aio.insecure_channel(scripted.target) as channel:
            await channel.channel_ready()
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            calls = [one for _ in range(rounds) for one in await asyncio.gather(*(call(stub) for _ in range(lanes)))]
        # On a busy machine a deadline may pass before the engine has begun: that one has nothing to stop.
        begun = {run: due_s for run, due_s in calls if run}
        assert len(begun) > 0.5 * lanes * rounds
        ends = {run: await log.next("end", run) for run in begun}
        assert all(end["reason"] == "stop_seen" for end in ends.values())
        return [ends[run]["t"] - due_s for run, due_s in begun.items()]

    await holds("a deadline", measure)


@pytest.mark.usefixtures("idle")
async def test_what_was_left_takes_no_place_from_what_comes(scripted: Stack, scripted_triton: RealTriton) -> None:
    for number in range(2 * SCRIPTED_SLOTS):
        await leave_in_the_middle(scripted.gateway.port, scripted_triton, number)
    requests = [body("token_ms=1", 20) for _ in range(SCRIPTED_SLOTS)]

    async def text(request: dict[str, Any]) -> str:
        async with RawClient(scripted.gateway.port) as client:
            return str((await client.post(request, COMPLETIONS)).json()["choices"][0]["text"])

    assert set(await asyncio.gather(*map(text, requests))) == {SCRIPT[:20].decode()}
