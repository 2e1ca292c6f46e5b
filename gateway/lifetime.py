"""The life of one request: one task, which ends early for one cause at most.

Whoever finds that a request has no purpose any more calls `end`; the task that
serves it is cancelled where it waits, its context managers let go of what they
hold, and `Lifetime` turns that cancellation into a fact to read. Costs nothing
while the request runs.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from types import TracebackType
from typing import Self

from starlette.types import Receive

__all__ = ["EndCause", "Lifetime"]


class EndCause(Enum):
    """Why a request was ended before its time. The value is the outcome in logs and spans."""

    DISCONNECTED = "client_cancelled"
    STALLED = "client_stalled"
    DRAINED = "drained"


class Lifetime:
    """Async context manager around the work for one request, in the task that does it.

    Watches `receive`, which must have delivered the whole body, for the client
    to leave. A cancellation that came from `end` is swallowed at the end of the
    block, and `cause` says why; any other one passes. `registry` holds those
    that are running, for whoever shuts the process down.
    """

    def __init__(self, receive: Receive, registry: set[Lifetime]) -> None:
        self.cause: EndCause | None = None
        self._receive = receive
        self._registry = registry
        self._is_finishing = False
        self._is_over = False
        self._task: asyncio.Task[object] | None = None
        self._cancels = 0
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancels = self._task.cancelling()
        self._watcher = asyncio.create_task(self._watch())
        self._registry.add(self)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._is_over = True
        self._registry.discard(self)
        # Of a task that was cancelled this object is in the traceback: kept, it would be a cycle.
        task, self._task, watcher, self._watcher = self._task, None, self._watcher, None
        assert task is not None
        assert watcher is not None
        is_ours = self.cause is not None and task.uncancel() <= self._cancels
        watcher.cancel()
        try:
            await asyncio.wait([watcher])
        except asyncio.CancelledError:
            # A cancel of ours that the block never met arrives here.
            if not is_ours or isinstance(exc, asyncio.CancelledError):
                raise
        return is_ours and isinstance(exc, asyncio.CancelledError)

    def end(self, cause: EndCause) -> None:
        """End the request now; only the first cause counts, and none after the block."""
        if self.cause is None and not self._is_over and self._task is not None:
            self.cause = cause
            self._task.cancel()

    def finish(self) -> None:
        """Say that the last bytes are on their way: a client that leaves now has its answer."""
        self._is_finishing = True

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_finishing:
            self.end(EndCause.DISCONNECTED)
