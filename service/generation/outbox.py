"""The events of one generation that wait for its reader: bounded, and joined where they can be.

One task puts, one takes, both on one event loop. A reader that keeps up gets
every event as it was made; one that does not gets fewer, larger deltas, and costs
constant memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from service.core.events import Delta, Event, Queued, ToolCallPiece
from service.generation.limits import Limits

__all__ = ["Outbox"]

# Of a joined delta: a message is held three times over while it is written, and large ones gain nothing.
_JOINED_CHARS = 2048
# Python's own objects around an id, and around a token's log probability and each of its alternatives.
_ID_BYTES = 36
_LOGPROB_BYTES = 250
_TOP_BYTES = 150


class Outbox:
    """Waiting events, in order.

    `is_full` asks whoever puts to wait for `room` before the next one; `put` itself
    takes everything, so that the end of a generation never waits. `taken` counts
    events that the reader has; `lag_s` is how long, in all, events waited behind others
    that it had not taken; None where nobody can say.
    """

    __slots__ = ("_behind_s", "_bytes", "_error", "_is_closed", "_max_bytes", "_max_events", "_reader", "_room",
                 "_waiting", "lag_s", "taken")  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self._max_events = limits.unsent_events
        self._max_bytes = limits.unsent_bytes
        self._waiting: deque[Event] = deque()
        self._bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._is_closed = False
        self.taken = 0
        self.lag_s: float | None = 0.0
        # Since when something waits behind something else; None while nothing does.
        self._behind_s: float | None = None

    @property
    def waiting(self) -> int:
        """Events that wait, after joining."""
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """About what they take in memory, bytes."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """True while as much waits as may."""
        return self._bytes >= self._max_bytes or len(self._waiting) >= self._max_events

    def put(self, event: Event) -> None:
        """Add an event behind those that wait."""
        waiting = self._waiting
        if type(event) is Delta:
            self._bytes += _size(event)
        if waiting:
            if self._behind_s is None:
                self._behind_s = time.monotonic()
            joined = _joined(waiting[-1], event)
            if joined is not None:
                waiting[-1] = joined
                return
        waiting.append(event)
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)

    def _note_lag(self) -> None:
        if self._behind_s is not None and self.lag_s is not None:
            self.lag_s += time.monotonic() - self._behind_s
        self._behind_s = None

    def close(self, error: BaseException | None = None, *, drops: bool = False) -> None:
        """Say that nothing follows, and what the reader gets at the end; `drops` what still waits. The first counts."""
        if self._is_closed:
            return
        self._is_closed, self._error = True, error
        if drops:
            self._waiting.clear()
            self._bytes = 0
        for future in (self._reader, self._room):
            if future is not None and not future.done():
                future.set_result(None)
        self._reader = self._room = None

    def let_go(self) -> None:
        """Forget the error that `next` raises; for whoever has been told it."""
        self._error = None

    async def next(self) -> Event | None:
        """Return the next event, None behind the last one. Raises what the generation failed with."""
        while not self._waiting:
            if self._is_closed:
                if self._error is not None:
                    raise self._error
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        event = self._waiting.popleft()
        self.taken += 1
        if self._behind_s is not None and not self._waiting:
            self._note_lag()
        if type(event) is Delta:
            self._bytes -= _size(event)
        room = self._room
        if room is not None and not self.is_full:
            self._room = None
            if not room.done():
                room.set_result(None)
        return event

    async def room(self) -> None:
        """Wait until it is no longer full, or closed."""
        while self.is_full and not self._is_closed:
            self._room = asyncio.get_running_loop().create_future()
            await self._room


def _size(delta: Delta) -> int:
    """Return about what `delta` takes in memory beyond a constant; of joined ones, the sum of theirs."""
    text = delta.text or delta.reasoning or (delta.call.arguments if delta.call is not None else "")
    size = len(text) if text.isascii() else len(text.encode())
    if delta.token_ids:
        size += _ID_BYTES * len(delta.token_ids)
    for logprob in delta.logprobs:
        size += _LOGPROB_BYTES + _TOP_BYTES * len(logprob.top)
    return size


def _joined(last: Event, event: Event) -> Event | None:
    """Return one event that says what both say, one behind the other; None if they have to stay apart."""
    if type(event) is not Delta or type(last) is not Delta:
        return event if type(event) is Queued and type(last) is Queued else None
    if last.choice != event.choice or last.is_mark or event.is_mark:
        return None
    call: ToolCallPiece | None = None
    if last.call is not None or event.call is not None:
        if last.call is None or event.call is None or event.call.id or last.call.number != event.call.number:
            return None
        call = last.call._replace(arguments=last.call.arguments + event.call.arguments)
        length = len(call.arguments)
    elif bool(last.reasoning) != bool(event.reasoning):
        return None
    else:
        length = len(last.text) + len(event.text) + len(last.reasoning) + len(event.reasoning)
    if length > _JOINED_CHARS:
        return None
    return Delta(
        last.choice,
        last.text + event.text,
        last.token_ids + event.token_ids,
        last.logprobs + event.logprobs,
        last.reasoning + event.reasoning,
        call,
    )
