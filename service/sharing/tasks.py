"""The end of tasks that wait for the store."""

from __future__ import annotations

import asyncio

__all__ = ["stop"]

_PATIENCE_S = 0.5


async def stop(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and wait for their end.

    As often as it takes: a timeout inside a library may swallow a cancel that comes in
    the moment in which it is over.
    """
    left = {task for task in tasks if task is not None and not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_PATIENCE_S)
