"""The engine runs of one generation, one per choice, read as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from service.backends.base import Backend, EngineFinished, EngineItem, EngineRequest
from service.core.errors import Reason, ServiceError

__all__ = ["EngineRuns", "open_runs"]

# Items that may wait per choice before its run is held up.
QUEUE_PER_CHOICE = 16


class EngineRuns(Protocol):
    """Running engine work. `aclose` stops all of it and must be called."""

    async def next(self) -> tuple[int, EngineItem]:
        """Return the next item and the choice that it belongs to.

        Raises `ServiceError`, also when a run ends without its last item.
        Cancelling stops the run that was being read.
        """
        ...

    async def stop(self, choice: int) -> None:
        """Stop one choice's run; its items no longer come."""
        ...

    async def aclose(self) -> None:
        """Stop whatever still runs. Idempotent."""
        ...


def open_runs(backend: Backend, requests: Sequence[EngineRequest]) -> EngineRuns:
    """Start one engine run per request; the common single one has no queue and no task."""
    if len(requests) == 1:
        return _SingleRun(backend.generate(requests[0]))
    return _MergedRuns([backend.generate(request) for request in requests])


def _cut_short() -> ServiceError:
    # A cut must never look like success.
    return ServiceError(Reason.BACKEND_UNAVAILABLE, "The engine's answer was cut short.")


class _SingleRun:
    def __init__(self, items: AsyncGenerator[EngineItem]) -> None:
        self._items = items
        self._next = items.__anext__

    async def next(self) -> tuple[int, EngineItem]:
        try:
            return 0, await self._next()
        except StopAsyncIteration:
            raise _cut_short() from None

    async def stop(self, choice: int) -> None:  # noqa: ARG002 - there is one
        await self._items.aclose()

    async def aclose(self) -> None:
        await self._items.aclose()


class _MergedRuns:
    def __init__(self, runs: Sequence[AsyncGenerator[EngineItem]]) -> None:
        self._queue: asyncio.Queue[tuple[int, EngineItem | Exception]] = asyncio.Queue(QUEUE_PER_CHOICE * len(runs))
        self._stopped: set[int] = set()
        self._tasks = [asyncio.create_task(self._pump(choice, run)) for choice, run in enumerate(runs)]

    async def next(self) -> tuple[int, EngineItem]:
        while True:
            choice, item = await self._queue.get()
            if choice in self._stopped:
                continue
            if isinstance(item, Exception):
                try:
                    raise item
                finally:
                    del item  # its traceback has this frame
            return choice, item

    async def stop(self, choice: int) -> None:
        self._stopped.add(choice)
        await self._end([self._tasks[choice]])

    async def aclose(self) -> None:
        self._stopped.update(range(len(self._tasks)))
        await self._end(self._tasks)
        # An ended task has the frames that its end passed, and those this object; what is queued nobody takes.
        self._tasks, self._queue = [], asyncio.Queue()

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, choice: int, run: AsyncGenerator[EngineItem]) -> None:
        # aclose in this task, so that the engine's clean-up runs where it was awaited.
        try:
            async for item in run:
                await self._queue.put((choice, item))
                if isinstance(item, EngineFinished):
                    return
            await self._queue.put((choice, _cut_short()))
        except Exception as error:
            await self._queue.put((choice, error))
        finally:
            await run.aclose()
