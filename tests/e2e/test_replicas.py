"""Three service processes that share a real Redis, gateways in front, and kills in the middle."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace import AsyncClient, errors
from tests.support.gateway_harness import CHAT, RawClient, read_events
from tests.support.processes import Process, free_ports, gateway, service, wait_until
from tests.support.redis_server import RedisServer, redis_server
from tests.support.service import script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

SETTINGS = {"backend": "simulator", "log_format": "json"}
TOKENS = [f"{number} " for number in range(500)]
WHOLE = "".join(TOKENS)
ANSWER = script(tokens=TOKENS, output_tokens=500, token_ms=12)
ENDLESS = script(tokens=["e"], token_ms=10)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def kill(running: Process) -> None:
    """End it as a crash does."""
    running.send(signal.SIGKILL)
    running.popen.wait(5)


async def test_an_owner_that_dies_ends_its_generations_clearly_and_frees_their_keys(
    tmp_path: Path, redis: RedisServer
) -> None:
    with ExitStack() as stack:
        owner, first, second = (stack.enter_context(service(tmp_path, store=redis.url, **SETTINGS)) for _ in range(3))
        async with (
            AsyncClient(f"127.0.0.1:{owner.port}") as at_owner,
            AsyncClient(f"127.0.0.1:{first.port}") as at_first,
            AsyncClient(f"127.0.0.1:{second.port}") as at_second,
        ):
            request = {"model": "simulator", "prompt": ENDLESS, "max_output_tokens": 4000, "idempotency_key": "k"}
            async with at_owner.generate(**request) as begun:
                await anext(begun)
                generation_id = begun.generation_id
            assert generation_id is not None

            async def reader(client: AsyncClient) -> int:
                async with client.attach(generation_id, timeout_s=60) as stream:
                    with pytest.raises(errors.Unavailable) as failed:
                        await stream.text()
                    assert failed.value.reason == "GENERATION_LOST"
                    return failed.value.events_received

            readers = [asyncio.create_task(reader(client)) for client in (at_first, at_second)]
            await asyncio.sleep(1.0)

            async def ahead() -> str | None:
                async with at_first.attach(generation_id, after_sequence=100_000, timeout_s=60) as stream:
                    with pytest.raises(errors.Unavailable) as failed:
                        await stream.text()
                    return failed.value.reason

            one_ahead = asyncio.create_task(ahead())  # it has what the owner did not come to show
            kill(owner)
            assert await asyncio.wait_for(one_ahead, 20) == "GENERATION_LOST"
            assert min(await asyncio.wait_for(asyncio.gather(*readers), 20)) > 20
            state = await at_first.get_generation(generation_id)
            assert state.failure_reason == 25  # ERROR_REASON_GENERATION_LOST
            # The key is free: what nobody can complete has to be run again.
            async with at_second.generate(**request) as again:
                await anext(again)
                assert again.generation_id != generation_id
                await at_first.cancel_generation(idempotency_key="k")
                await again.text()
                assert again.finish_reasons == {0: "CANCELLED"}


async def test_a_thousand_drops_with_services_and_gateways_killed_in_between(
    tmp_path: Path, redis: RedisServer
) -> None:
    lots = random.Random(7)
    ports = free_ports(4)
    settings = {"store": redis.url, "reattach_s": 30, **SETTINGS}
    with ExitStack() as stack:
        owner = stack.enter_context(service(tmp_path, **settings))
        backs = [stack.enter_context(service(tmp_path, port=port, **settings)) for port in ports[:2]]
        fronts = [
            stack.enter_context(gateway(tmp_path, back, port=port))
            for back, port in zip(ports, ports[2:], strict=False)
        ]
        body = {
            "model": "simulator",
            "messages": [{"role": "user", "content": ANSWER}],
            "max_tokens": 600,
            "stream": True,
        }
        is_over = asyncio.Event()

        async def killer() -> None:
            for turn in range(4):
                await asyncio.sleep(lots.uniform(0.8, 1.6))
                if is_over.is_set():
                    return
                at = turn % 2
                if turn < 2:
                    kill(backs[at])
                    backs[at] = await asyncio.to_thread(
                        stack.enter_context, service(tmp_path, port=ports[at], **settings)
                    )
                else:
                    kill(fronts[at])
                    fronts[at] = await asyncio.to_thread(
                        stack.enter_context, gateway(tmp_path, ports[at], port=ports[2 + at])
                    )

        async def over_grpc(seed: int) -> str:
            draw, events = random.Random(seed), []
            target = f"ipv4:127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
            async with AsyncClient(target) as client:
                for _ in range(50):
                    async with client.attach(idempotency_key="k", after_sequence=len(events), timeout_s=60) as stream:
                        for _ in range(draw.randint(0, 20)):
                            try:
                                events.append(await anext(stream))
                            except StopAsyncIteration:
                                break
                async with client.attach(idempotency_key="k", after_sequence=len(events), timeout_s=60) as stream:
                    events += [event async for event in stream]
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))
            return "".join(event.delta.text for event in events)

        async def over_http(seed: int) -> str:
            draw, read = random.Random(seed), b""
            for _ in range(50):
                read += await some_of(ports[2 + draw.randint(0, 1)], body, read, draw.randint(0, 20))
            while b"data: [DONE]" not in read:
                read += await some_of(ports[2 + draw.randint(0, 1)], body, read, 10_000)
            documents = [json.loads(data) for data in read_events(read) if data != "[DONE]"]
            return "".join(document["choices"][0]["delta"].get("content") or "" for document in documents)

        async with AsyncClient(f"127.0.0.1:{owner.port}") as client:
            # Asked for as the gateway asks, so that the key stands for the same request.
            front = stack.enter_context(gateway(tmp_path, owner.port))
            await wait_until(f"http://127.0.0.1:{front.port}/readyz", 200)
            await some_of(front.port, body, b"", 3)
            killing = asyncio.create_task(killer())
            texts = await asyncio.gather(
                *(over_grpc(seed) for seed in range(10)), *(over_http(seed) for seed in range(10, 20))
            )
            is_over.set()
            await killing
            assert set(texts) == {WHOLE}
            state = await client.get_generation(idempotency_key="k")
            assert state.state == 3  # GENERATION_STATE_COMPLETED


async def some_of(port: int, body: object, read: bytes, most: int) -> bytes:
    """Return at most so many events behind those that were read; fewer, and whole ones, if the server dies."""
    last = [line[4:].decode() for line in read.split(b"\n") if line.startswith(b"id: ")]
    headers = {"Idempotency-Key": "k", **({"Last-Event-ID": last[-1]} if last else {})}
    got = b""
    try:
        async with RawClient(port) as client:
            await client.send("POST", CHAT, body, headers)
            if (await client.head()).status == 200:
                while got.count(b"\n\n") < most and (piece := await client.piece()):
                    got += piece
            client.reset()
    except (OSError, asyncio.IncompleteReadError):
        pass
    if not got:
        await asyncio.sleep(0.02)
    frames = [frame for frame in got.split(b"\n\n")[:-1] if b'"error"' not in frame]
    return b"".join(frame + b"\n\n" for frame in frames)
