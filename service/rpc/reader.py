"""The one who reads a generation: a task that writes to the wire, and the limit on how long a write may take.

One lazily armed timer: a write costs two attributes. It knows nothing of what is
written.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final, Self

from service.core.deadline import Deadline

__all__ = ["ReaderWatch"]

# What a write that goes well needs at most; one that does not end by then waits for a reader.
_HURRY_S: Final = 0.1


class ReaderWatch:
    """Watches the task that enters it, while it writes.

    A write that takes longer than `reader_s`, or beyond the deadline, is cancelled;
    `took` tells that cancel from any other. Headers are never interrupted: gRPC cannot
    send a status while they are on their way, and the caller would hang.
    """

    __slots__ = ("_due_s", "_hurried_s", "_interrupted", "_is_headers", "_loop", "_reader_s", "_since_s", "_task",
                 "_timer")  # fmt: skip

    def __init__(self, deadline: Deadline, reader_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader_s = reader_s
        self._due_s = deadline.at_s
        self._hurried_s = math.inf
        self._since_s = math.inf
        self._is_headers = False
        self._interrupted = False
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = None

    def begin_headers(self) -> None:
        """Note that the headers are about to be sent."""
        self._is_headers = True

    def begin(self, now_s: float) -> None:
        """Note that a write begins; `now_s` is `time.monotonic()`."""
        self._is_headers = False
        self._since_s = now_s

    def end(self) -> None:
        """Note that it has ended."""
        self._since_s = math.inf

    @property
    def is_writing(self) -> bool:
        """True while a write is under way."""
        return self._since_s != math.inf

    @property
    def is_blocked(self) -> bool:
        """True while a write takes longer than one to a reader that reads."""
        return time.monotonic() - self._since_s > _HURRY_S

    def hurry(self) -> None:
        """Give up a write that waits for its reader: the generation has failed, and nothing else is worth a wait."""
        self._hurried_s = time.monotonic() + _HURRY_S
        if self._timer is not None and not self._interrupted:
            self._timer.cancel()
            self._arm()

    def took(self) -> bool:
        """Return True, once, if the CancelledError just caught is ours; False if anyone else cancelled as well."""
        if not self._interrupted or self._task is None:
            return False
        self._interrupted = False
        self.end()
        return self._task.uncancel() == 0

    def _limit_s(self) -> float:
        return min(self._since_s + self._reader_s, self._due_s, self._hurried_s)

    def _arm(self) -> None:
        now_s = time.monotonic()
        if self.is_writing and not self._is_headers:
            due_s = self._limit_s()
        else:  # a write that begins after now is not due before its whole time, or soon
            due_s = max(now_s + _HURRY_S, min(now_s + self._reader_s, self._due_s, self._hurried_s))
        self._timer = self._loop.call_later(max(0.0, due_s - now_s), self._check)

    def _check(self) -> None:
        if self.is_writing and not self._is_headers and time.monotonic() >= self._limit_s():
            self._interrupted = True
            if self._task is not None:
                self._task.cancel()
        else:
            self._arm()
