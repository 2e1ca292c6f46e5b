"""The client against the real service, on either transport: the line, the state of a generation, and its cancel."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace import AsyncClient, errors
from headrace.v1 import generation_pb2 as pb
from tests.support.service import eventually, running_service, script, simulated_model

SLOW = script(token_ms=5)


@asynccontextmanager
async def one_slot(waiting: int = 8) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """Two clients of a service that runs one generation at a time; nothing of it may be left at the end."""
    async with running_service(simulated_model(running=1, waiting=waiting)) as service:
        address = f"127.0.0.1:{service.port}"
        async with AsyncClient(address) as one, AsyncClient(address) as other:
            yield one, other
        slots = service.models["sim"].slots
        await eventually(lambda: (service.sim.running, slots.running, slots.waiting) == (0, 0, 0))


async def test_a_request_tells_its_place_until_it_starts() -> None:
    async with (
        one_slot() as (client, other),
        client.generate(model="sim", prompt=SLOW, max_output_tokens=4096) as first,
    ):
        await anext(first)
        async with other.generate(model="sim", prompt="x", max_output_tokens=3, queue_events=True) as second:
            assert (await anext(second)).HasField("queued")
            assert second.generation_id is not None
            found = await client.get_generation(second.generation_id)
            assert (found.state, found.ahead_count, found.model) == (pb.GENERATION_STATE_QUEUED, 0, "sim")
            first.cancel()
            assert len(await second.text()) > 0
            assert (second.started is not None, second.finish_reasons) == (True, {0: "LENGTH"})
        found = await client.get_generation(second.generation_id)
        assert (found.state, found.usage.output_token_count) == (pb.GENERATION_STATE_COMPLETED, 3)


async def test_a_cancel_by_id_ends_a_stream_well_while_it_runs_and_while_it_waits() -> None:
    async with (
        one_slot() as (client, other),
        client.generate(model="sim", prompt=SLOW, max_output_tokens=4096) as first,
    ):
        for _ in range(3):
            await anext(first)
        async with client.generate(model="sim", prompt="x", queue_events=True) as second:
            await anext(second)
            await other.cancel_generation(str(second.generation_id))
            assert (await second.text(), second.finish_reasons) == ("", {0: "CANCELLED"})
        await other.cancel_generation(str(first.generation_id))
        await first.text()
        assert first.finish_reasons == {0: "CANCELLED"}
        assert first.usage is not None
        assert 0 < first.usage.output_token_count < 4096
        for ended in (first, second):
            found = await other.get_generation(str(ended.generation_id))
            assert found.state == pb.GENERATION_STATE_CANCELLED


async def test_a_full_line_refuses_at_once_and_says_when_to_come_back() -> None:
    async with (
        one_slot(waiting=1) as (client, _),
        client.generate(model="sim", prompt=SLOW, max_output_tokens=4096) as first,
    ):
        await anext(first)
        async with client.generate(model="sim", prompt="x", queue_events=True) as second:
            await anext(second)
            async with client.generate(model="sim", prompt="y") as third:
                with pytest.raises(errors.Overloaded) as caught:
                    async with asyncio.timeout(2):
                        await third.text()
        assert (caught.value.reason, caught.value.is_retriable) == ("QUEUE_FULL", True)
        assert (caught.value.retry_after_s or 0) > 0


async def test_ids_of_nobody_and_of_others_are_not_found() -> None:
    async with one_slot() as (client, other):
        async with client.generate(model="sim", prompt="x", metadata={"authorization": "a"}) as stream:
            await stream.text()
        for unknown in ("gen_0", str(stream.generation_id)):
            for ask in (other.get_generation, other.cancel_generation):
                with pytest.raises(errors.NotFound) as caught:
                    await ask(unknown)
                assert caught.value.reason == "GENERATION_NOT_FOUND"
        found = await other.get_generation(str(stream.generation_id), metadata={"authorization": "a"})
        assert found.state == pb.GENERATION_STATE_COMPLETED
        with pytest.raises(errors.InvalidRequest) as invalid:
            await client.get_generation("")
        assert [violation.field for violation in invalid.value.violations] == ["generation_id"]


async def test_a_time_limit_ends_with_what_there_is() -> None:
    async with one_slot() as (client, _):
        async with client.generate(model="sim", prompt=SLOW, max_output_tokens=4096, time_limit_s=0.2) as stream:
            assert len(await stream.text()) > 0
        assert stream.finish_reasons == {0: "TIME_LIMIT"}
