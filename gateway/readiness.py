"""Whether requests should come here: what the service says, known before anybody asks.

A probe gets an answer that was asked for after it came. Where that takes longer
than a probe should wait, because both processes are busy, it gets the last one, which
is a second or two old. It must not know how the service is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from types import TracebackType
from typing import Final, Self

__all__ = ["Readiness", "ServiceHealth"]

# A probe is to be answered within 100 ms.
_PATIENCE_S: Final = 0.07
_REFRESH_S: Final = 0.5
# An answer older than this is not worth telling; the next one is waited for.
_FRESH_S: Final = 2.0


class ServiceHealth(Enum):
    """What the service says of itself. DEGRADED: it serves, but not as it should."""

    SERVING = "serving"
    DEGRADED = "degraded"
    NOT_SERVING = "not serving"


class Readiness:
    """Async context manager that asks again and again while it is open.

    `ask` has to end within its own limit and raise nothing. However many probes wait,
    there is one question at a time. Cancelling a probe does not cancel the question.
    """

    def __init__(self, ask: Callable[[], Awaitable[ServiceHealth]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[ServiceHealth] | None = None
        self._last: ServiceHealth | None = None
        self._last_s = 0.0
        self._refreshing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._refreshing = asyncio.create_task(self._refresh(), name="readiness")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = [task for task in (self._refreshing, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def now(self) -> ServiceHealth:
        """Return what the service says now, or said last."""
        asking = self._question()
        is_known = self._last is not None and self._time() - self._last_s < _FRESH_S
        await asyncio.wait([asking], timeout=_PATIENCE_S if is_known else None)
        if asking.done() or self._last is None:
            return await asyncio.shield(asking)
        return self._last

    async def _refresh(self) -> None:
        while True:
            await asyncio.wait([self._question()])
            await asyncio.sleep(_REFRESH_S)

    def _question(self) -> asyncio.Task[ServiceHealth]:
        """Return the question that is being asked; begin one if there is none."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._answered(), name="health of the service")
        return self._asking

    async def _answered(self) -> ServiceHealth:
        self._last, self._last_s = await self._ask(), self._time()
        return self._last

    def _time(self) -> float:
        return asyncio.get_running_loop().time()
