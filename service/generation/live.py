"""A generation as a task of its own, from which one reader takes events; and all of those that are there.

The reader's pace is its own: the task runs ahead by what the outbox holds, and
engine and slot are free as soon as the engine has ended. Leaving a generation
before its end stops it, and returns when the engine was told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Protocol, Self

from service.core.errors import Reason, ServiceError
from service.core.events import Completed, Timing, Usage
from service.core.request import Priority
from service.generation.limits import Limits
from service.generation.outbox import Outbox
from service.generation.run import Generation
from service.generation.watch import Cause, Phase, Watch

__all__ = ["EndedGeneration", "GenerationState", "LiveGeneration", "LiveGenerations", "Reader", "not_found"]

logger = logging.getLogger("headrace.service")

# Engines bound their own stop; this is for one that does not.
_STOP_S: Final = 30.0
# What is remembered of generations that have ended.
_KEPT: Final = 1024
_KEPT_S: Final = 300.0


class GenerationState(Enum):
    """Where a generation is. The values are those of `headrace.v1.GenerationState`."""

    QUEUED = 1
    RUNNING = 2
    COMPLETED = 3
    FAILED = 4
    CANCELLED = 5


class Reader(Protocol):
    """Who takes the events, as far as the generation has to know."""

    @property
    def is_blocked(self) -> bool:
        """True while it waits for somebody to take what it writes."""
        ...

    def hurry(self) -> None:
        """Give up a write that waits: the generation has failed, and nothing else is worth a wait."""
        ...


class LiveGeneration:
    """Async context manager around one generation that runs while its reader is in the block.

    `stopped_by` and `stopped_in` are why and in which phase it was ended before its
    time, `stop_s` the seconds from there until the engine was told and the slot free;
    None for one that ended by itself.
    """

    def __init__(
        self,
        generation: Generation,
        watch: Watch,
        limits: Limits,
        reader: Reader,
        *,
        tenant: str = "",
        created_at_s: float = 0.0,
    ) -> None:
        self.generation = generation
        self.watch = watch
        self.outbox = Outbox(limits)
        # Output tokens that the metrics have already.
        self.counted_tokens = 0
        self.tenant = tenant
        self.created_at_s = created_at_s  # wall clock
        self.stopped_by: Cause | None = None
        self.stopped_in: str | None = None
        self.stop_s: float | None = None
        self.failure: ServiceError | None = None
        self._reader = reader
        watch.on_interrupt = self._note_stop
        self._stopped_at_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=self.generation.id)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = self._task
        assert task is not None
        if not task.done():
            self.interrupt(Cause.CALLER)
            _, running = await asyncio.wait([task], timeout=_STOP_S)
            if running:
                logger.error("the engine did not let go of a generation", extra={"generation_id": self.generation.id})

    @property
    def has_ended(self) -> bool:
        """True once its task has: engine and slot are free."""
        return self._task is not None and self._task.done()

    @property
    def state(self) -> GenerationState:
        """QUEUED or RUNNING: a live generation has a reader who still reads."""
        return GenerationState.QUEUED if self.generation.clock.admitted_s is None else GenerationState.RUNNING

    @property
    def reader_lag_s(self) -> float | None:
        """How long events waited behind others that the reader had not taken; None of a retained generation."""
        return self.outbox.lag_s

    def let_go(self) -> None:
        """Forget the failure, once it was told: it holds the frames that it passed, and those this object."""
        self.failure = None
        self.outbox.let_go()

    def interrupt(self, cause: Cause) -> None:
        """End it for `cause`, if it has not ended."""
        if not self.has_ended:
            self.watch.interrupt(cause)

    def _note_stop(self, cause: Cause) -> None:
        # A time limit is how an answer ends, and stops nothing before its time.
        if self.stopped_by is None and cause is not Cause.TIME_LIMIT:
            self.stopped_by, self.stopped_in = cause, self._phase()
            self._stopped_at_s = time.monotonic()

    def _phase(self) -> str:
        """Return what a generation that is ended now was doing, as metrics and logs name it."""
        if self.generation.clock.admitted_s is None:
            return "queued"
        if self.watch.phase is Phase.ROOM or self._reader.is_blocked:
            return "write"
        if not self.watch.has_output:
            return "prefill"
        return "hold_back" if self.generation.holds_back else "decode"

    async def _run(self) -> None:
        watch, outbox = self.watch, self.outbox
        put, is_complete, is_late = outbox.put, False, False
        try:
            with watch:
                try:
                    async with aclosing(self.generation.events()) as events:
                        async for event in events:
                            put(event)
                            if type(event) is Completed:
                                is_complete = True  # nothing follows that needs room, or could still go wrong
                            elif outbox.waiting and not watch.ends_softly():  # its end is a few events
                                await self._give_way()
                except asyncio.CancelledError:
                    is_caller, failure = watch.cause is Cause.CALLER, watch.failure()
                    if failure is None and not is_caller:
                        raise
                    if not is_complete:
                        self.failure, is_late = failure, True
        except ServiceError as error:
            self.failure = error
        except asyncio.CancelledError:
            # By nobody that the watch knows: the process ends. The reader is told something in any case.
            outbox.close(ServiceError(Reason.INTERNAL, "The server ended before the generation did."))
            raise
        except BaseException as error:
            outbox.close(error)
            if not isinstance(error, Exception):
                raise
            return
        finally:
            if self.stopped_by is not None:
                self.stop_s = time.monotonic() - self._stopped_at_s
        outbox.close(self.failure, drops=self.failure is not None and self.failure.reason is Reason.CONSUMER_TOO_SLOW)
        if is_late:
            self._reader.hurry()

    async def _give_way(self) -> None:
        """Let the reader, and everybody else, have a turn; wait while as much is unread as may be."""
        watch = self.watch
        try:
            if self.outbox.is_full:
                phase, since_s = watch.phase, watch.since_s
                watch.enter(Phase.ROOM, time.monotonic())
                try:
                    await self.outbox.room()
                finally:
                    # The line was not left meanwhile; an engine was not waited for.
                    watch.enter(phase, since_s if phase is Phase.QUEUE else time.monotonic())
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not watch.took_soft():
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedGeneration:
    """What is remembered of a generation for a while."""

    state: GenerationState
    model: str
    tenant: str
    priority: Priority
    created_at_s: float
    last_sequence: int
    usage: Usage
    timing: Timing
    reason: Reason | None
    ended_at_s: float  # monotonic


def not_found() -> ServiceError:
    """Return what is said of a generation that is unknown, forgotten, or another tenant's: the same of each."""
    return ServiceError(
        Reason.GENERATION_NOT_FOUND,
        "No generation with this id or key waits or runs, and none that has ended is kept.",
    )


class LiveGenerations:
    """The generations of this process by id, and for some minutes those that have ended."""

    def __init__(self) -> None:
        self._live: dict[str, LiveGeneration] = {}
        self._ended: OrderedDict[str, EndedGeneration] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveGeneration]:
        return iter(tuple(self._live.values()))

    def add(self, live: LiveGeneration) -> None:
        """Make it known."""
        self._live[live.generation.id] = live

    def end(self, generation_id: str, ended: EndedGeneration) -> None:
        """Remember how it ended; the oldest ones are forgotten."""
        self._live.pop(generation_id, None)
        self._ended[generation_id] = ended
        while len(self._ended) > _KEPT or self._oldest_s() < ended.ended_at_s - _KEPT_S:
            self._ended.popitem(last=False)

    def find(self, generation_id: str, tenant: str, now_s: float) -> LiveGeneration | EndedGeneration | None:
        """Return what is known of a tenant's generation; None for one that is unknown, forgotten or another's."""
        found: LiveGeneration | EndedGeneration | None = self._live.get(generation_id) or self._ended.get(generation_id)
        is_old = isinstance(found, EndedGeneration) and found.ended_at_s < now_s - _KEPT_S
        return None if found is None or is_old or found.tenant != tenant else found

    def _oldest_s(self) -> float:
        return next(iter(self._ended.values())).ended_at_s
