"""The limit on a write: only a write is cut, never the headers, and only by us."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.core.deadline import Deadline
from service.rpc.reader import ReaderWatch

FAR = 100.0


async def write(reader: ReaderWatch, seconds: float) -> bool:
    """Write for so long; return whether it was cut."""
    reader.begin(time.monotonic())
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if not reader.took():
            raise
        return True
    reader.end()
    return False


async def test_a_write_that_nobody_takes_is_cut() -> None:
    with ReaderWatch(Deadline.after(FAR), 0.15) as reader:
        assert not await write(reader, 0.01)
        assert await write(reader, 5)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_time_between_writes_does_not_count() -> None:
    with ReaderWatch(Deadline.after(FAR), 0.15) as reader:
        for _ in range(4):
            assert not await write(reader, 0.08)
            await asyncio.sleep(0.1)


async def test_a_write_beyond_the_deadline_is_cut() -> None:
    with ReaderWatch(Deadline.after(0.1), FAR) as reader:
        assert await write(reader, 5)


async def test_headers_are_never_cut_and_the_write_behind_them_is() -> None:
    with ReaderWatch(Deadline.after(0.01), 0.05) as reader:
        reader.begin_headers()
        await asyncio.sleep(0.3)
        assert await write(reader, 5)


async def test_a_hurried_write_gets_a_moment_and_no_more() -> None:
    with ReaderWatch(Deadline.after(FAR), FAR) as reader:
        reader.hurry()
        assert not await write(reader, 0.01)
        started_s = time.monotonic()
        assert await write(reader, 5)
        assert time.monotonic() - started_s < 2


async def test_what_was_cut_is_not_cut_again() -> None:
    with ReaderWatch(Deadline.after(FAR), 0.05) as reader:
        assert await write(reader, 5)
        reader.hurry()
        await asyncio.sleep(0.3)


async def test_a_cancel_by_anyone_else_goes_on() -> None:
    task = asyncio.current_task()
    assert task is not None
    with ReaderWatch(Deadline.after(FAR), 5) as reader:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write(reader, 1)
        task.uncancel()


async def test_nothing_fires_after_the_block() -> None:
    with ReaderWatch(Deadline.after(0.02), 0.02) as reader:
        reader.begin(time.monotonic())
    await asyncio.sleep(0.2)
