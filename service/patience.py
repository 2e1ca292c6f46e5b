"""A timeout that a busy process does not take for one of the other side."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

__all__ = ["Patience"]

# A timeout is waited for in so many parts.
_PARTS: Final = 10


class Patience:
    """Ends the block by TimeoutError after `limit_s`.

    A part that took much longer than it should is time in which this process was busy,
    and says nothing about who is waited for.
    """

    __slots__ = ("_begun_s", "_left_s", "_loop", "_part_s", "_timeout", "_timer")

    def __init__(self, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._left_s = limit_s
        self._part_s = limit_s / _PARTS
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _wait(self) -> None:
        self._begun_s = self._loop.time()
        self._timer = self._loop.call_later(self._part_s, self._look)

    def _look(self) -> None:
        self._left_s -= min(self._loop.time() - self._begun_s, 2 * self._part_s)
        if self._left_s > 0:
            self._wait()
        else:
            self._timeout.reschedule(self._loop.time())
