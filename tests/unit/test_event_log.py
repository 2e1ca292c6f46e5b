"""The log of a retained generation, without a generation."""

import asyncio

from service.retention.log import EventLog


async def test_a_reader_that_has_left_is_awaited_by_nobody() -> None:
    log = EventLog(10, 1000)
    staying, leaving = (asyncio.create_task(log.after(0)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert log.is_awaited
    log.append(b"a")
    assert await staying == [b"a"]
    alone = asyncio.create_task(log.after(1))
    await asyncio.sleep(0)
    alone.cancel()
    await asyncio.wait([alone])
    assert not log.is_awaited
