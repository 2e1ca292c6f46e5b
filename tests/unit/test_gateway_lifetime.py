"""A request ends once, for one cause, and only for that."""

import asyncio
from typing import Any

import pytest

from gateway.lifetime import EndCause, Lifetime


class Client:
    """A `receive` whose client leaves when told."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_a_client_that_leaves_ends_the_block() -> None:
    client, registry = Client(), set[Lifetime]()
    cleaned = False
    async with Lifetime(client, registry) as lifetime:
        assert registry == {lifetime}
        client.left.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned = True
    assert lifetime.cause is EndCause.DISCONNECTED
    assert cleaned
    assert registry == set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_client_that_leaves_while_the_last_bytes_go_out_ends_nothing() -> None:
    client = Client()
    async with Lifetime(client, set()) as lifetime:
        lifetime.finish()
        client.left.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert lifetime.cause is None


async def test_only_the_first_cause_counts() -> None:
    async with Lifetime(Client(), set()) as lifetime:
        lifetime.end(EndCause.STALLED)
        lifetime.end(EndCause.DRAINED)
        await asyncio.Event().wait()
    assert lifetime.cause is EndCause.STALLED


async def test_an_end_that_the_block_never_meets_does_not_leak() -> None:
    async with Lifetime(Client(), set()) as lifetime:
        lifetime.end(EndCause.DRAINED)
    assert lifetime.cause is EndCause.DRAINED
    await asyncio.sleep(0)


async def test_a_foreign_cancel_passes() -> None:
    lifetime = Lifetime(Client(), set())

    async def serve() -> None:
        async with lifetime:
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lifetime.cause is None


async def test_a_foreign_cancel_passes_also_beside_an_own_one() -> None:
    lifetime = Lifetime(Client(), set())

    async def serve() -> None:
        async with lifetime:
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    lifetime.end(EndCause.STALLED)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_other_exceptions_pass_and_the_watcher_ends() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        async with Lifetime(Client(), set()):
            raise ZeroDivisionError
    assert asyncio.all_tasks() == before


async def test_nothing_ends_after_the_block() -> None:
    async with Lifetime(Client(), set()) as lifetime:
        pass
    lifetime.end(EndCause.DRAINED)
    await asyncio.sleep(0)
    assert lifetime.cause is None
