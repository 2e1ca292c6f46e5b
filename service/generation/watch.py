"""The limits of one generation, watched by one lazily armed timer.

A timer per token would cost more than the token. Instead the stream notes when
it entered a phase, and one timer looks at that note no more often than the
shortest limit.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from enum import Enum

from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError

__all__ = ["Cause", "Limits", "Phase", "Watch"]


class Phase(Enum):
    """What the generation waits for.

    HEADERS is never interrupted: gRPC cannot send a status while the headers
    are on their way, and the caller would hang. It is short; what falls into it
    happens at the next `enter`.
    """

    QUEUE = "queue"
    ENGINE = "engine"
    HEADERS = "headers"
    READER = "reader"


class Cause(Enum):
    """Which limit was reached."""

    DEADLINE = "deadline"
    TIME_LIMIT = "time_limit"
    ENGINE_STALL = "engine_stall"
    READER_STALL = "reader_stall"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds; what bounds each wait.

    `first_token_s`: from admission to the engine's first item, and from any
    item before the first token to the next. `token_gap_s`: between items after
    that. `reader_s`: one event handed to a reader that does not read.
    """

    first_token_s: float = 120.0
    token_gap_s: float = 60.0
    reader_s: float = 30.0


class Watch:
    """Watches the task that created it, from `with` to its end.

    When a limit is reached the task is cancelled at the point where it waits;
    `took(cause)` and `failure()` tell that cancel from any other, and must be
    asked by whoever catches the CancelledError.
    """

    def __init__(self, deadline: Deadline, limits: Limits, time_limit: Deadline | None = None) -> None:
        self._deadline_s = deadline.at_s
        self._limits = limits
        self._time_limit_s = math.inf if time_limit is None else time_limit.at_s
        self._shortest_s = min(limits.first_token_s, limits.token_gap_s, limits.reader_s)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._phase = Phase.QUEUE
        self._since_s = time.monotonic()
        self._deferred: Cause | None = None
        self.has_output = False
        self.cause: Cause | None = None

    def __enter__(self) -> Watch:
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def phase(self) -> Phase:
        """What the generation waits for now."""
        return self._phase

    def enter(self, phase: Phase, now_s: float) -> None:
        """Note that the task is about to wait in `phase`; `now_s` is `time.monotonic()`."""
        self._phase = phase
        self._since_s = now_s
        if self._deferred is not None and phase is not Phase.HEADERS:
            cause, self._deferred = self._deferred, None
            self.interrupt(cause)

    @property
    def is_time_limit_over(self) -> bool:
        """True once the soft limit has passed, also while the task waited elsewhere."""
        return time.monotonic() >= self._time_limit_s

    def interrupt(self, cause: Cause) -> None:
        """Cancel the task for `cause`; the first cause stands."""
        if self._phase is Phase.HEADERS:
            self._deferred = self._deferred or cause
        elif self.cause is None and self._task is not None:
            self.cause = cause
            self._task.cancel()

    def took(self, cause: Cause) -> bool:
        """Return True, once, if the CancelledError just caught is ours and for `cause`.

        False if anyone else cancelled the task as well: that one goes on.
        """
        if self.cause is not cause or self._task is None:
            return False
        self.cause = None
        return self._task.uncancel() == 0

    def failure(self) -> ServiceError | None:
        """Return the failure behind the CancelledError just caught; None if it is not ours."""
        cause = self.cause
        if cause is None or not self.took(cause):
            return None
        match cause:
            case Cause.DEADLINE if self._phase is Phase.QUEUE:
                return ServiceError(Reason.DEADLINE_IN_QUEUE, "The deadline passed while waiting for a free slot.")
            case Cause.DEADLINE:
                return ServiceError(Reason.DEADLINE_IN_DECODE, "The deadline passed before the generation ended.")
            case Cause.READER_STALL:
                return ServiceError(
                    Reason.CONSUMER_TOO_SLOW,
                    f"Nothing was read for {self._limits.reader_s:g} s; the generation was stopped.",
                )
            case Cause.DRAIN:
                return ServiceError(Reason.DRAINING, "The server shut down before the generation ended; retry.")
            case Cause.TIME_LIMIT:  # in the engine's phase it is no failure, and taken there
                return ServiceError(Reason.DEADLINE_IN_QUEUE, "The time limit passed while waiting for a free slot.")
            case Cause.ENGINE_STALL:
                waited_s = self._limits.token_gap_s if self.has_output else self._limits.first_token_s
                return ServiceError(
                    Reason.BACKEND_UNAVAILABLE, f"The engine said nothing for {waited_s:g} s; it was given up."
                )

    def _arm(self) -> None:
        now_s = time.monotonic()
        # A phase that begins after now cannot be due before now + the shortest limit.
        due_s = min(self._deadline_s, now_s + self._shortest_s, self._phase_due_s())
        if self._time_limit_s > now_s:
            due_s = min(due_s, self._time_limit_s)
        self._timer = self._loop.call_later(max(0.0, due_s - now_s), self._check)

    def _phase_due_s(self) -> float:
        match self._phase:
            case Phase.ENGINE:
                return self._since_s + (self._limits.token_gap_s if self.has_output else self._limits.first_token_s)
            case Phase.READER:
                return self._since_s + self._limits.reader_s
            case Phase.QUEUE | Phase.HEADERS:
                return math.inf

    def _check(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._deadline_s:
            self.interrupt(Cause.DEADLINE)
        elif now_s >= self._phase_due_s():
            self.interrupt(Cause.ENGINE_STALL if self._phase is Phase.ENGINE else Cause.READER_STALL)
        elif now_s >= self._time_limit_s and self._phase in (Phase.QUEUE, Phase.ENGINE):
            # A reader that is being written to is not interrupted for the soft
            # limit: the stream asks `is_time_limit_over` before it goes on.
            self.interrupt(Cause.TIME_LIMIT)
        if self._deferred is None and self.cause in (None, Cause.TIME_LIMIT):
            self._arm()
