"""Several generations read as one: their events merged into the order that one generation has.

Every source runs in a task of its own, a few at a time and begun in their order.
It knows the contract's events, and nothing of HTTP and of what is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from gateway.openai.content import ContractError
from gateway.openai.errors import cancelled
from headrace.v1 import generation_pb2 as gen
from headrace.v1 import usage_pb2

__all__ = ["FanOut", "Source"]

Events = AsyncIterator[gen.GenerateResponse]

# Sources that run at once: enough to keep an engine's batch busy, few enough that
# one request does not fill a model's slots.
_RUNNING: Final = 4
# Events that wait for the reader, over all sources.
_WAITING: Final = 64
_COUNTS: Final = tuple(field.name for field in usage_pb2.Usage.DESCRIPTOR.fields)


@dataclass(frozen=True, slots=True)
class Source:
    """One generation: how it is opened, and how many choices it has."""

    open: Callable[[], AbstractAsyncContextManager[Events]]
    choices: int


class FanOut:
    """Async context manager and iterator over the events of `sources` as one generation.

    The first that starts gives the `started`; choice i of source s becomes choice
    i + the choices of all sources before s; `completed` comes once, when all have
    ended well, with the sum of the usages. The first failure is raised to the reader.
    A source that somebody stopped by its id is one (ApiError). Leaving the block, also by
    a cancel, cancels every source and waits for its end.
    Events are renumbered from 1 and changed in place.
    """

    def __init__(self, sources: Sequence[Source], *, running: int = _RUNNING) -> None:
        self._sources = sources
        self._running = min(running, len(sources))
        # Unbounded for failures and ends alone: events hold one of the permits.
        self._queue: asyncio.Queue[tuple[int, gen.GenerateResponse | None] | BaseException] = asyncio.Queue()
        self._permits = asyncio.Semaphore(_WAITING)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_left = False
        self._is_over = False
        self._has_started = False
        self._sequence = 0
        self._ended = 0
        self._completed: list[gen.GenerationCompleted] = []
        self._firsts = [sum(source.choices for source in sources[:number]) for number in range(len(sources))]

    async def __aenter__(self) -> Self:
        pending = iter(list(enumerate(self._sources)))

        async def work() -> None:
            for number, source in pending:
                await self._read(number, source)

        for _ in range(self._running):
            task = asyncio.create_task(work())
            task.add_done_callback(self._on_end)
            self._tasks.append(task)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_left = True
        # An ended task has the frames that its end passed, and those this object.
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._queue = asyncio.Queue()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> gen.GenerateResponse:
        while not self._is_over:
            item = await self._queue.get()
            if isinstance(item, BaseException):
                self._is_over = True
                try:
                    raise item
                finally:
                    del item  # its traceback has this frame
            number, event = item
            if event is None:
                self._ended += 1
                if self._ended == len(self._sources):
                    self._is_over = True
                    return self._numbered(gen.GenerateResponse(completed=self._sum()))
                continue
            self._permits.release()
            if self._is_shown(number, event):
                return self._numbered(event)
        raise StopAsyncIteration

    async def _read(self, number: int, source: Source) -> None:
        async with source.open() as events:
            async for event in events:
                await self._permits.acquire()
                self._queue.put_nowait((number, event))
        self._queue.put_nowait((number, None))

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            failure: BaseException | None = RuntimeError("a generation was cancelled from elsewhere")
        else:
            failure = task.exception()
        if failure is not None and not self._is_left:
            self._queue.put_nowait(failure)

    def _is_shown(self, number: int, event: gen.GenerateResponse) -> bool:
        """Move the event to its place in the whole; return whether there is one."""
        match event.WhichOneof("event"):
            case "delta":
                event.delta.index = self._place(number, event.delta.index)
            case "choice_finished":
                if event.choice_finished.reason == gen.FINISH_REASON_CANCELLED:
                    raise cancelled()  # what the others would still make is an answer for nobody
                event.choice_finished.index = self._place(number, event.choice_finished.index)
            case "started":
                if self._has_started:
                    return False
                self._has_started = True
                # Of one prompt; the sum comes with the usage.
                if len(self._sources) > 1:
                    event.started.ClearField("prompt_token_count")
            case "completed":
                self._completed.append(event.completed)
                return False
        return True

    def _place(self, number: int, index: int) -> int:
        if not 0 <= index < self._sources[number].choices:
            raise ContractError(f"choice {index} of generation {number} does not exist")
        return self._firsts[number] + index

    def _numbered(self, event: gen.GenerateResponse) -> gen.GenerateResponse:
        self._sequence += 1
        event.sequence = self._sequence
        return event

    def _sum(self) -> gen.GenerationCompleted:
        """Return the end of the whole. A count that one source does not know is unknown; several have no timing."""
        if len(self._completed) != len(self._sources):
            raise ContractError("a generation ended without being complete")
        if len(self._completed) == 1:
            return self._completed[0]
        total = usage_pb2.Usage()
        for name in _COUNTS:
            if all(completed.usage.HasField(name) for completed in self._completed):
                setattr(total, name, sum(getattr(completed.usage, name) for completed in self._completed))
        return gen.GenerationCompleted(usage=total)
