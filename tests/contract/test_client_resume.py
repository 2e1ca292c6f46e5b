"""A client whose connection is cut again and again reads the whole answer, over either transport."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace import AsyncClient, errors
from headrace._connection import Transport
from tests.support.relay import Relay, relay
from tests.support.service import RunningService, script

TOKENS = [f"{number} " for number in range(300)]
WHOLE = "".join(TOKENS)
PROMPT = script(tokens=TOKENS, output_tokens=300, token_ms=3)


@asynccontextmanager
async def through_relay(service: RunningService, transport: Transport) -> AsyncIterator[tuple[Relay, AsyncClient]]:
    async with (
        relay(f"127.0.0.1:{service.port}") as between,
        AsyncClient(between.address, transport=transport) as client,
    ):
        yield between, client


async def cut_now_and_then(between: Relay, seed: int, times: int) -> None:
    lots = random.Random(seed)
    for _ in range(times):
        await asyncio.sleep(lots.uniform(0.02, 0.12))
        await between.cut()


async def test_what_is_cut_goes_on_without_gap_or_repetition(service: RunningService, transport: Transport) -> None:
    async with through_relay(service, transport) as (between, client):
        cutting = asyncio.create_task(cut_now_and_then(between, 1, 8))
        async with client.generate(
            model="sim", prompt=PROMPT, max_output_tokens=300, idempotency_key="k", timeout_s=30
        ) as stream:
            assert await stream.text() == WHOLE
        await cutting
        assert stream.resumed >= 1  # more where the machine is quick
        assert stream.usage is not None
    assert service.sim.started == 1


async def test_without_a_key_retention_is_enough_once_the_id_is_known(
    service: RunningService, transport: Transport
) -> None:
    async with through_relay(service, transport) as (between, client):
        async with client.generate(
            model="sim", prompt=PROMPT, max_output_tokens=300, retain_for_s=20, timeout_s=30
        ) as stream:
            await anext(stream)
            await between.cut()
            assert await stream.text() == WHOLE
        assert stream.resumed == 1


async def test_one_that_is_not_retained_is_lost_with_its_connection(
    service: RunningService, transport: Transport
) -> None:
    async with through_relay(service, transport) as (between, client):
        async with client.generate(model="sim", prompt=PROMPT, timeout_s=30) as stream:
            await anext(stream)
            await anext(stream)
            await between.cut()
            with pytest.raises(errors.HeadraceError):
                await stream.text()
        assert stream.resumed == 0


async def test_a_server_that_does_not_come_back_is_waited_for_no_longer_than_the_timeout(
    service: RunningService, transport: Transport
) -> None:
    async with (
        through_relay(service, transport) as (between, client),
        client.generate(model="sim", prompt=PROMPT, idempotency_key="k", timeout_s=1.5) as stream,
    ):
        await anext(stream)
        between.refuse()
        await between.cut()
        with pytest.raises((errors.Unavailable, errors.DeadlineExceeded)):
            await stream.text()


async def test_attach_reads_from_where_it_is_told(service: RunningService, transport: Transport) -> None:
    async with AsyncClient(f"127.0.0.1:{service.port}", transport=transport) as client:
        async with client.generate(model="sim", prompt=PROMPT, max_output_tokens=300, idempotency_key="k") as stream:
            events = [event async for event in stream]
        async with client.attach(idempotency_key="k", after_sequence=100) as rest:
            assert [event async for event in rest] == events[100:]
        async with client.attach(stream.generation_id) as again:
            assert await again.text() == WHOLE
            assert again.started == stream.started
        async with client.attach(stream.generation_id, after_sequence=len(events)) as nothing_more:
            assert [event async for event in nothing_more] == []
        with pytest.raises(errors.InvalidRequest, match="after_sequence"):
            async with client.attach(stream.generation_id, after_sequence=10_000) as beyond:
                await beyond.text()
        with pytest.raises(errors.NotFound):
            async with client.attach("gen_nope") as nothing:
                await nothing.text()
        with pytest.raises(TypeError, match="generation_id or an idempotency_key"):
            client.attach()


async def test_the_same_key_for_something_else_is_an_error_of_its_own(
    service: RunningService, transport: Transport
) -> None:
    async with AsyncClient(f"127.0.0.1:{service.port}", transport=transport) as client:
        async with client.generate(model="sim", prompt="a", idempotency_key="k") as stream:
            await stream.text()
        with pytest.raises(errors.IdempotencyMismatch):
            async with client.generate(model="sim", prompt="b", idempotency_key="k") as other:
                await other.text()


async def test_state_and_cancel_by_key(service: RunningService) -> None:
    async with (
        AsyncClient(f"127.0.0.1:{service.port}") as client,
        client.generate(
            model="sim", prompt=script(tokens=["e"], token_ms=5), idempotency_key="k", annotation=b"note"
        ) as stream,
    ):
        await anext(stream)
        state = await client.get_generation(idempotency_key="k")
        assert (state.generation_id, state.annotation) == (stream.generation_id, b"note")
        await client.cancel_generation(idempotency_key="k")
        await stream.text()
        assert stream.finish_reasons == {0: "CANCELLED"}


async def test_a_key_does_not_make_a_call_wait_for_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with AsyncClient(address) as client, asyncio.timeout(20):
        with pytest.raises(errors.Unavailable):
            async with client.generate(model="m", prompt="p", idempotency_key="k", timeout_s=300) as stream:
                await stream.text()
