"""Leaving, cancelling, deadlines: what the server sees, and that nothing stays behind."""

import asyncio
import gc

import grpc
import pytest

from headrace import AsyncClient, errors
from tests.support.fake_service import HANG, Fail, completed, delta, fake_service, finished, started

ENDLESS = (started(), delta("a"), HANG)


def open_calls() -> set[int]:
    return {id(thing) for thing in gc.get_objects() if isinstance(thing, grpc.aio.UnaryStreamCall)}


async def test_a_stream_that_is_never_entered_makes_no_call() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        client.generate(model="m", prompt="p")
        assert await client.health()  # a round trip later
        assert fake.calls == []


async def test_leaving_early_cancels_on_the_server() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*ENDLESS)
        async with client.generate(model="m", prompt="p") as stream:
            async for _piece in stream.deltas():
                break
        await (await fake.next_call()).wait_cancelled()


async def test_leaving_before_anything_came_cancels_on_the_server() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(HANG)
        async with client.generate(model="m", prompt="p"):
            call = await fake.next_call()
        await call.wait_cancelled()


async def test_an_exception_in_the_block_cancels_and_passes() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*ENDLESS)

        async def fail() -> None:
            async with client.generate(model="m", prompt="p") as stream:
                await anext(stream)
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await fail()
        await (await fake.next_call()).wait_cancelled()


async def test_leaving_does_not_wait_for_a_server_that_is_silent() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(HANG)
        async with asyncio.timeout(5):
            async with client.generate(model="m", prompt="p", timeout_s=500):
                await fake.next_call()


async def test_stopping_at_completed_is_not_a_cancel() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        async with client.generate(model="m", prompt="p") as stream:
            async for event in stream:
                if event.HasField("completed"):
                    break
        call = await fake.next_call()
        assert call.is_over
        assert not call.cancelled.is_set()


async def test_a_cancelled_task_sees_cancelled_error_and_the_server_a_cancel() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*ENDLESS)
        has_text = asyncio.Event()

        async def read() -> None:
            async with client.generate(model="m", prompt="p") as stream:
                async for _piece in stream.deltas():
                    has_text.set()

        task = asyncio.create_task(read())
        await asyncio.wait_for(has_text.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await (await fake.next_call()).wait_cancelled()


async def test_a_timed_out_read_ends_the_call_and_the_next_read_says_so_without_a_cancelled_error() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*ENDLESS)
        async with client.generate(model="m", prompt="p") as stream:
            await anext(stream)
            await anext(stream)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(stream)
            with pytest.raises(errors.Cancelled):
                await anext(stream)


async def test_a_server_that_ends_with_cancelled_does_not_look_like_a_cancelled_task() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(started(), Fail(code=grpc.StatusCode.CANCELLED, message="drained"))
        async with client.generate(model="m", prompt="p") as stream:
            with pytest.raises(errors.Cancelled, match="drained"):
                await stream.text()


async def test_leaving_in_one_task_ends_the_read_of_another_with_an_error() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*ENDLESS)
        async with client.generate(model="m", prompt="p") as stream:
            await anext(stream)
            await anext(stream)
            reader = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)  # one turn, so that the read has begun
        with pytest.raises(errors.Cancelled):
            await reader


async def test_the_timeout_reaches_the_server_as_its_deadline_and_ends_the_stream() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*ENDLESS)
        async with client.generate(model="m", prompt="p", timeout_s=0.3) as stream:
            with pytest.raises(errors.DeadlineExceeded) as caught:
                await stream.text()
        assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (caught.value.events_received, caught.value.is_retriable) == (2, False)
        call = await fake.next_call()
        assert call.time_remaining_s is not None
        assert 0 < call.time_remaining_s < 0.5  # the wire rounds a little up
        await call.wait_cancelled()


async def test_there_is_always_a_deadline() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        async with client.generate(model="m", prompt="p") as stream:
            await stream.text()
        remaining_s = (await fake.next_call()).time_remaining_s
        assert remaining_s is not None
        assert 590 < remaining_s < 601
        for nonsense in (float("inf"), float("nan")):
            with pytest.raises(ValueError, match="finite"):
                client.generate(model="m", prompt="p", timeout_s=nonsense)


async def test_closing_the_client_ends_what_still_runs() -> None:
    async with fake_service() as fake:
        fake.will(*ENDLESS)
        client = AsyncClient(fake.address)
        async with client.generate(model="m", prompt="p") as stream:
            await anext(stream)
            await client.close()
            with pytest.raises(errors.Cancelled):
                await stream.text()
        await (await fake.next_call()).wait_cancelled()
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await client.health()


async def test_a_hundred_early_exits_leave_no_task_and_no_call() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.default = ENDLESS

        async def leave_early() -> None:
            async with client.generate(model="m", prompt="p") as stream:
                async for _piece in stream.deltas():
                    break

        gc.collect()
        before = open_calls()
        gc.disable()
        try:
            for _round in range(10):
                await asyncio.gather(*[leave_early() for _ in range(10)])
            for call in fake.calls:
                await call.wait_cancelled()
            await client.health()
            assert open_calls() - before == set()  # freed by reference counts alone
        finally:
            gc.enable()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        servers = ("AioServer", "rpc_task", "HandleExceptions")  # the fake's own
        assert [task for task in others if not any(name in repr(task) for name in servers)] == []
        assert len(fake.calls) == 100


async def test_a_client_serves_many_streams_at_once() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.default = (started(), *[delta("x")] * 50, finished(), completed())

        async def read() -> str:
            async with client.generate(model="m", prompt="p") as stream:
                return await stream.text()

        assert await asyncio.gather(*[read() for _ in range(20)]) == ["x" * 50] * 20


def test_a_client_belongs_to_one_event_loop() -> None:
    client = AsyncClient("127.0.0.1:1")

    async def use() -> None:
        await client.health(timeout_s=0.2)

    with asyncio.Runner() as first:
        first.run(use())
        with asyncio.Runner() as second, pytest.raises(RuntimeError, match="event loop"):
            second.run(use())
        first.run(client.close())
