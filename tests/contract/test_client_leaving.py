"""Every way out of a generation, in every phase, on either transport: the server stops, and nothing stays behind."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from headrace import AsyncClient, GenerationStream, errors
from headrace._http2.call import Call
from tests.support.fake_service import (
    HANG,
    Fail,
    FakeService,
    completed,
    delta,
    fake_service,
    finished,
    queued,
    started,
)

# What the server does, and how many of its events are read before the way out.
PHASES: Final[dict[str, tuple[tuple[object, ...], int]]] = {
    "before anything came": ((HANG,), 0),
    "in the line": ((queued(2), HANG), 1),
    "started": ((started(), HANG), 1),
    "amid the text": ((started(), delta("a"), HANG), 2),
    "with events unread": ((started(), *[delta("x" * 100)] * 300, HANG), 2),
}


def open_calls() -> list[object]:
    return [thing for thing in gc.get_objects() if isinstance(thing, grpc.aio.UnaryStreamCall | Call)]


class Opened:
    """A generation in one phase, and what watches over it."""

    def __init__(self, fake: FakeService, client: AsyncClient, reads: int) -> None:
        self.fake = fake
        self.client = client
        self.reads = reads

    def stream(self, **more: Any) -> GenerationStream:
        return self.client.generate(model="m", prompt="p", queue_events=True, **more)

    async def read(self, stream: GenerationStream) -> None:
        """Get into the phase."""
        for _ in range(self.reads):
            await anext(stream)
        if not self.reads:
            await self.fake.next_call()


@asynccontextmanager
async def opened(phase: str, transport: str) -> AsyncIterator[Opened]:
    """Serve one phase; check at the end that the server stopped, one span ended, and no call and no task is left."""
    script, reads = PHASES[phase]
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with fake_service() as fake, AsyncClient(fake.address, tracer_provider=provider) as client:
        fake.will(*script)
        gc.disable()
        gc.freeze()  # what is older is of no interest, and would take most of the time
        try:
            yield Opened(fake, client, reads)
            await asyncio.wait_for(fake.calls[0].cancelled.wait(), 10)
            assert len(fake.calls) == 1  # a cancel from here is not tried again
            (span,) = exporter.get_finished_spans()
            assert (span.attributes or {})["rpc.response.status_code"] == "CANCELLED"
            assert span.status.status_code is StatusCode.UNSET  # this side wanted it so
            if transport == "grpcio":
                gc.collect()  # what it raises in a cancelled call refers to the call
            assert open_calls() == []  # freed by reference counts alone
        finally:
            gc.unfreeze()
            gc.enable()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        servers = ("AioServer", "rpc_task", "HandleExceptions")  # the fake's own
        assert [task for task in tasks if not any(name in repr(task) for name in servers)] == []
    provider.shutdown()


async def leave(case: Opened) -> None:
    async with case.stream() as stream:
        await case.read(stream)


async def raise_in_the_block(case: Opened) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with case.stream() as stream:
            await case.read(stream)
            raise LookupError("mine")


async def leave_an_async_loop(case: Opened) -> None:
    async with case.stream() as stream:
        await case.read(stream)
        pieces = stream.deltas()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                async for _piece in pieces:
                    pass


async def _cancel_while(case: Opened, busy: Callable[[GenerationStream], Awaitable[object]]) -> None:
    is_there = asyncio.Event()

    async def use() -> None:
        async with case.stream() as stream:
            await case.read(stream)
            is_there.set()
            await busy(stream)

    task = asyncio.ensure_future(use())
    await asyncio.wait_for(is_there.wait(), 10)
    await asyncio.sleep(0)  # one turn, so that it is busy
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancel_the_task_in_a_read(case: Opened) -> None:
    await _cancel_while(case, lambda stream: stream.text())


async def cancel_the_task_elsewhere(case: Opened) -> None:
    await _cancel_while(case, lambda _: asyncio.Event().wait())


async def call_cancel(case: Opened) -> None:
    async with case.stream() as stream:
        await case.read(stream)
        stream.cancel()
        stream.cancel()
        with pytest.raises(errors.Cancelled):
            await anext(stream)


async def call_cancel_and_leave(case: Opened) -> None:
    async with case.stream() as stream:
        await case.read(stream)
        stream.cancel()


async def call_cancel_while_another_task_reads(case: Opened) -> None:
    async with case.stream() as stream:
        await case.read(stream)
        reading = asyncio.ensure_future(stream.text())
        await asyncio.sleep(0)  # one turn, so that the read has begun
        stream.cancel()
        (end,) = await asyncio.gather(reading, return_exceptions=True)
        assert isinstance(end, errors.Cancelled)


async def close_the_client(case: Opened) -> None:
    async with case.stream() as stream:
        await case.read(stream)
        await case.client.close()


async def drop(case: Opened) -> None:
    stream = await case.stream().__aenter__()
    await case.read(stream)
    with pytest.warns(ResourceWarning, match="was dropped within its block"):
        del stream


async def drop_for_another_thread_to_collect(case: Opened) -> None:
    stream = await case.stream().__aenter__()
    await case.read(stream)
    cycle: list[object] = [stream]
    cycle.append(cycle)
    del stream, cycle
    with pytest.warns(ResourceWarning, match="was dropped within its block"):
        await asyncio.to_thread(gc.collect)


WAYS: Final = (
    leave,
    raise_in_the_block,
    leave_an_async_loop,
    cancel_the_task_in_a_read,
    cancel_the_task_elsewhere,
    call_cancel,
    call_cancel_and_leave,
    call_cancel_while_another_task_reads,
    close_the_client,
    drop,
    drop_for_another_thread_to_collect,
)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.replace("_", " "))
async def test_the_server_stops_and_nothing_stays_behind(
    way: Callable[[Opened], Awaitable[None]], phase: str, transport: str
) -> None:
    async with opened(phase, transport) as case:
        await way(case)


async def test_a_reader_that_never_reads_ends_with_its_deadline() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(started(), *[delta("x" * 1000)] * 2000, HANG)
        async with client.generate(model="m", prompt="p", timeout_s=0.4) as stream:
            await (await fake.next_call()).wait_cancelled()  # though nothing was read
            with pytest.raises(errors.DeadlineExceeded):
                async for _event in stream:
                    pass
        assert fake.calls[0].sent < 2000  # flow control held the server back


async def test_what_has_ended_is_left_and_cancelled_without_effect() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        async with client.generate(model="m", prompt="p") as stream:
            assert await stream.text() == "Hello world"
            stream.cancel()
            assert [event async for event in stream] == []
        stream.cancel()
        await client.health()  # a round trip later
        assert not fake.calls[0].cancelled.is_set()
        del stream  # without a warning


async def test_a_generation_is_not_cancelled_before_it_began() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(RuntimeError, match="has not begun"):
            client.generate(model="m", prompt="p").cancel()


async def test_a_cancel_that_comes_behind_the_end_of_the_call_does_not_change_it() -> None:
    failure = Fail(code=grpc.StatusCode.INTERNAL, reason="BACKEND_ERROR")
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(started(), failure)
        async with client.generate(model="m", prompt="p") as stream:
            with pytest.raises(errors.InternalError):
                await stream.text()
            stream.cancel()
            assert [event async for event in stream] == []


async def test_a_cancel_while_the_status_is_awaited_passes_at_once() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(started(), finished(), completed(), HANG)
        is_leaving = asyncio.Event()

        async def use() -> None:
            async with client.generate(model="m", prompt="p") as stream:
                for _ in range(3):
                    await anext(stream)
                is_leaving.set()

        task = asyncio.ensure_future(use())
        await asyncio.wait_for(is_leaving.wait(), 10)
        task.cancel()
        async with asyncio.timeout(0.5):
            with pytest.raises(asyncio.CancelledError):
                await task
        await fake.calls[0].wait_cancelled()


async def test_a_status_that_never_comes_does_not_hold_the_block() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(started(), finished(), completed(), HANG)
        async with asyncio.timeout(5):
            async with client.generate(model="m", prompt="p", timeout_s=500) as stream:
                for _ in range(3):
                    await anext(stream)
        await fake.calls[0].wait_cancelled()
        assert stream.finish_reasons == {0: "STOP"}


def test_a_stream_that_outlives_its_loop_warns_and_harms_nothing() -> None:
    async def abandon() -> GenerationStream:
        async with fake_service() as fake, AsyncClient(fake.address) as client:
            fake.will(HANG)
            stream = await client.generate(model="m", prompt="p").__aenter__()
            await fake.next_call()
            return stream

    stream = asyncio.run(abandon())
    with pytest.warns(ResourceWarning, match="was dropped within its block"):
        del stream
