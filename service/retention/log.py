"""The events of one generation, encoded once and in order: one task appends, any number follow.

Bounded in events and bytes: above either the oldest ones go, and a reader that
needs them is told so. Everything happens on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from service.core.errors import Reason, ServiceError

__all__ = ["EventLog"]

# Python's own object around the bytes of an event, and its place in the list.
_EVENT_BYTES: Final = 41
# Places of events that are gone, before the list is cut.
_CUT: Final = 1024


class EventLog:
    """Events from number `first` to `last`; `last` is 0 and `first` 1 before there is one.

    `source` appends what waits outside for somebody who wants it.
    """

    __slots__ = ("_dropped", "_events", "_failure", "_gone", "_max_bytes", "_max_events", "_readers", "has_ended",
                 "size", "source")  # fmt: skip

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: list[bytes] = []
        self._gone = 0  # events that the list no longer holds
        self._dropped = 0  # places at its front that are empty
        self._readers: list[asyncio.Future[None]] = []
        self._failure: ServiceError | None = None
        self.source: Callable[[], None] | None = None
        self.has_ended = False
        self.size = 0  # bytes, with what Python adds

    @property
    def first(self) -> int:
        """Number of the oldest event that is kept."""
        return self._gone + self._dropped + 1

    @property
    def last(self) -> int:
        """Number of the newest event."""
        return self._gone + len(self._events)

    @property
    def has_failed(self) -> bool:
        """True once it has ended with a failure."""
        return self._failure is not None

    def failure(self) -> ServiceError:
        """Return how it failed, for one more reader: an error of its own each time."""
        assert self._failure is not None
        return replace(self._failure)

    @property
    def is_awaited(self) -> bool:
        """True while a reader waits for the next event."""
        return bool(self._readers)

    def pull(self) -> None:
        """Append what waits outside."""
        if self.source is not None:
            self.source()

    def append(self, event: bytes) -> None:
        """Keep `event` as the newest one."""
        self._events.append(event)
        self.size += len(event) + _EVENT_BYTES
        if self.size > self._max_bytes or len(self._events) - self._dropped > self._max_events:
            self._drop()
        if self._readers:
            self.wake()

    def end(self, failure: ServiceError | None = None) -> None:
        """Say that nothing follows, and what readers get behind the last event. The first call counts."""
        if self.has_ended:
            return
        self.has_ended = True
        if failure is not None:
            self._failure = replace(failure)  # without the frames that it has passed
        self.wake()

    def kept_after(self, number: int, most: int) -> list[bytes]:
        """Return at most `most` kept events behind `number`, which is not before the oldest; perhaps none."""
        begin = number - self._gone
        return self._events[begin : begin + most]

    def begin_at(self, number: int) -> None:
        """Make `number` the next event's: those before are not kept."""
        self._gone, self._dropped, self.size = number - 1, 0, 0
        self._events.clear()

    async def after(self, number: int) -> list[bytes]:
        """Return the events behind `number`, at least one; none behind the end.

        Waits while there are none. REPLAY_EXPIRED if the next one is gone.
        """
        while True:  # once a token: no properties
            place = number - self._gone
            if self.source is not None and place == len(self._events):
                self.source()
                place = number - self._gone
            if place < self._dropped:
                raise ServiceError(
                    Reason.REPLAY_EXPIRED,
                    f"The events up to {self.first - 1} are no longer kept.",
                    metadata={"firstSequence": str(self.first)},
                )
            if place < len(self._events):
                return self._events[place:]
            if self.has_ended:
                return []
            news = asyncio.get_running_loop().create_future()
            self._readers.append(news)
            try:
                await news
            except asyncio.CancelledError:
                # Who has left is not to be waited for by what comes next.
                if news in self._readers:
                    self._readers.remove(news)
                raise

    def wake(self) -> None:
        """Let readers look again."""
        readers, self._readers = self._readers, []
        for news in readers:
            if not news.done():
                news.set_result(None)

    def _drop(self) -> None:
        events, at = self._events, self._dropped
        while at < len(events) - 1 and (self.size > self._max_bytes or len(events) - at > self._max_events):
            self.size -= len(events[at]) + _EVENT_BYTES
            events[at] = b""
            at += 1
        self._dropped = at
        if at >= _CUT:
            del events[:at]
            self._gone += at
            self._dropped = 0
