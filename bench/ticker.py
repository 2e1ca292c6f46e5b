"""Something done again and again while a block runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

__all__ = ["ticking"]


@asynccontextmanager
async def ticking(every_s: float, tick: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Call `tick` every `every_s` seconds, on a fixed grid, until the block is left.

    Each call is a task: a slow one delays no other. An exception of a call ends
    the block with it. Leaving the block cancels the calls that still run.
    """
    async with asyncio.TaskGroup() as tasks:

        async def tick_on_the_grid() -> None:
            loop = asyncio.get_running_loop()
            begun_s, number = loop.time(), 0
            running: set[asyncio.Task[None]] = set()
            try:
                while True:
                    task = tasks.create_task(_awaited(tick()))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    number += 1
                    await asyncio.sleep(begun_s + number * every_s - loop.time())
            finally:
                for task in running:
                    task.cancel()

        clock = tasks.create_task(tick_on_the_grid())
        try:
            yield
        finally:
            clock.cancel()


async def _awaited(tick: Awaitable[None]) -> None:
    await tick
