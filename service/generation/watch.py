"""The limits of one generation's own task, watched by one lazily armed timer.

A timer per token would cost more than the token. Instead the task notes when
it entered a phase, and one timer looks at that note no more often than the
shortest limit.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from enum import Enum

from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Priority
from service.generation.limits import Limits

__all__ = ["Cause", "Phase", "Watch"]


class Phase(Enum):
    """What the task waits for. PREPARE and WORK are waits that nobody can shorten: a thread that counts tokens."""

    PREPARE = "prepare"
    QUEUE = "queue"
    ENGINE = "engine"
    ROOM = "room"
    WORK = "work"


class Cause(Enum):
    """Why a generation ends before its time.

    TIME_LIMIT and CANCEL are soft: what was made until then is an answer. CALLER:
    nobody is there any more to get one.
    """

    DEADLINE = "deadline"
    TIME_LIMIT = "time_limit"
    QUEUE_TIMEOUT = "queue_timeout"
    ENGINE_STALL = "engine_stall"
    READER_STALL = "slow_reader"
    DRAIN = "drain"
    CANCEL = "cancel_call"
    CALLER = "client"


_SOFT = frozenset({Cause.TIME_LIMIT, Cause.CANCEL})


class Watch:
    """Watches the task that enters it, from `with` to its end.

    When a limit is reached the task is cancelled at the point where it waits;
    `took(cause)` and `failure()` tell that cancel from any other, and must be
    asked by whoever catches the CancelledError. A soft cause never interrupts
    what cannot be left half done: it stands in `soft`, which the task reads
    between two items.
    """

    def __init__(
        self,
        deadline: Deadline,
        limits: Limits,
        time_limit: Deadline | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> None:
        self._deadline_s = deadline.at_s
        self._limits = limits
        self._queue_s = limits.queue_limit_s(priority)
        self._priority = priority
        self._time_limit_s = math.inf if time_limit is None else time_limit.at_s
        self._shortest_s = min(self._queue_s, limits.first_token_s, limits.token_gap_s, limits.room_s)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._phase = Phase.PREPARE
        self._since_s = time.monotonic()
        self.has_output = False
        self.cause: Cause | None = None
        self.soft: Cause | None = None
        # Told of each cause that is taken, at that moment.
        self.on_interrupt: Callable[[Cause], None] | None = None

    def __enter__(self) -> Watch:
        self._task = asyncio.current_task()
        if self.cause is not None and self._task is not None:
            self._task.cancel()  # interrupted before it began
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Whoever is told most often owns this watch: a cycle would keep the whole request until the collector comes.
        self._task = self.on_interrupt = None

    def enter(self, phase: Phase, now_s: float) -> None:
        """Note that the task is about to wait in `phase`; `now_s` is `time.monotonic()`."""
        self._phase = phase
        self._since_s = now_s

    @property
    def phase(self) -> Phase:
        """What it waits for."""
        return self._phase

    @property
    def since_s(self) -> float:
        """When it began to wait for that."""
        return self._since_s

    def ends_softly(self) -> bool:
        """Return True once a soft cause has come: what was made until now is the answer."""
        return self.soft is not None

    def interrupt(self, cause: Cause) -> None:
        """End the task's work for `cause`. The first one stands, but a hard one wins over a soft one not yet taken."""
        is_soft = cause in _SOFT
        if is_soft and self.soft is not None:
            return  # it is ending as an answer already
        if self.cause is not None and (is_soft or self.cause not in _SOFT):
            return
        if self.on_interrupt is not None:
            self.on_interrupt(cause)
        if is_soft:
            self.soft = cause
            if self._phase in (Phase.PREPARE, Phase.WORK):
                return
        is_cancelled = self.cause is not None
        self.cause = cause
        if self._task is not None and not is_cancelled:
            self._task.cancel()

    def took(self, cause: Cause) -> bool:
        """Return True, once, if the CancelledError just caught is ours and for `cause`.

        False if anyone else cancelled the task as well: that one goes on.
        """
        if self.cause is not cause or self._task is None:
            return False
        self.cause = None
        return self._task.uncancel() == 0

    def took_soft(self) -> bool:
        """Return True, once, if the CancelledError just caught is ours and for a soft cause."""
        return self.soft is not None and self.took(self.soft)

    def failure(self) -> ServiceError | None:
        """Return the failure behind the CancelledError just caught; None if it is not ours, or nobody would read it."""
        cause = self.cause
        if cause is None or not self.took(cause):
            return None
        match cause:
            case Cause.DEADLINE if self._phase in (Phase.PREPARE, Phase.QUEUE):
                return ServiceError(Reason.DEADLINE_IN_QUEUE, "The deadline passed while waiting for a free slot.")
            case Cause.DEADLINE:
                return ServiceError(Reason.DEADLINE_IN_DECODE, "The deadline passed before the generation ended.")
            case Cause.QUEUE_TIMEOUT:
                return self._queue_timeout()
            case Cause.READER_STALL:
                return ServiceError(
                    Reason.CONSUMER_TOO_SLOW,
                    f"Nothing was read for {self._limits.room_s:g} s while as much waited as may; "
                    "the generation was stopped.",
                )
            case Cause.DRAIN:
                return ServiceError(
                    Reason.DRAINING,
                    "The server went out of service before the generation ended; retry, on another one if possible.",
                    retry_after_s=1.0,
                )
            case Cause.ENGINE_STALL:
                return self._engine_stall()
            case Cause.CALLER | Cause.TIME_LIMIT | Cause.CANCEL:  # the soft ones are answers, and taken where they are
                return None

    def _queue_timeout(self) -> ServiceError:
        return ServiceError(
            Reason.QUEUE_TIMEOUT,
            f"No slot was free within {self._queue_s:g} s; retry later.",
            metadata={"waitedMs": str(round(self._queue_s * 1000)), "priority": self._priority.value},
            retry_after_s=1.0,
        )

    def _engine_stall(self) -> ServiceError:
        if self.has_output:
            return ServiceError(
                Reason.TOKEN_GAP_TIMEOUT,
                f"The engine said nothing for {self._limits.token_gap_s:g} s between two tokens; it was given up.",
            )
        return ServiceError(
            Reason.FIRST_TOKEN_TIMEOUT,
            f"The engine produced no token in {self._limits.first_token_s:g} s; it was given up.",
        )

    def _arm(self) -> None:
        now_s = time.monotonic()
        # A phase that begins after now cannot be due before now + the shortest limit.
        due_s = min(self._deadline_s, now_s + self._shortest_s, self._phase_due_s())
        if self.soft is None:
            due_s = min(due_s, self._time_limit_s)
        self._timer = self._loop.call_later(max(0.0, due_s - now_s), self._check)

    def _phase_due_s(self) -> float:
        if self.cause is not None:
            return math.inf  # it is ending: what stops is not silent
        match self._phase:
            case Phase.QUEUE:
                return self._since_s + self._queue_s
            case Phase.ENGINE:
                return self._since_s + (self._limits.token_gap_s if self.has_output else self._limits.first_token_s)
            case Phase.ROOM:
                return self._since_s + self._limits.room_s
            case Phase.PREPARE | Phase.WORK:
                return math.inf

    def _check(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._deadline_s:
            self.interrupt(Cause.DEADLINE)
        elif now_s >= self._phase_due_s():
            self.interrupt(_STALLS[self._phase])
        elif now_s >= self._time_limit_s and self.soft is None:
            self.interrupt(Cause.TIME_LIMIT)
        if self.cause is None or self.cause in _SOFT:
            self._arm()


_STALLS = {
    Phase.QUEUE: Cause.QUEUE_TIMEOUT,
    Phase.ENGINE: Cause.ENGINE_STALL,
    Phase.ROOM: Cause.READER_STALL,
}
