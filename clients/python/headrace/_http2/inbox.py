"""The messages of one call that have arrived and wait for its reader.

It owns cutting DATA into messages, the one reader's wait, and how much may
wait: the stream's window is given back to a reader that has read everything,
never before, so that a stream whose reader has stopped holds one window. A
message of a token is small, and Python's object around it is not: of a backlog
only the first messages are cut, the others wait in one piece. It knows no frames
but their length, and not what the messages are.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

import grpc

from headrace._http2.frames import MAX_FRAME_BYTES
from headrace._http2.outcome import Outcome

__all__ = ["MAX_APART", "PREFIX_BYTES", "STREAM_WINDOW_BYTES", "Inbox", "MessageError"]

# What a stream may send ahead of its reader, and so most of what a frozen reader costs. 12 KiB are some 500 tokens, and
# 12 MB/s from a server a millisecond away.
STREAM_WINDOW_BYTES: Final = 12 * 1024
# Messages that wait as objects of their own: as many as a busy loop may find at once in a stream that is read, and of
# more than that the first few.
MAX_APART: Final = 128
KEPT_APART: Final = 32

# One byte that says whether the message is compressed, then its length.
_PREFIX: Final = struct.Struct(">BI")
PREFIX_BYTES: Final = 5


class MessageError(Exception):
    """What arrived is no message that can be taken; the call has to end with `outcome`."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class Inbox:
    """Filled by the connection, emptied by one reader.

    `unreturned_bytes` counts what came since the window was last given back;
    `give_back` is called with that number when it is time.
    """

    __slots__ = (
        "_begin",
        "_end",
        "_loop",
        "_max_message_bytes",
        "_uncut",
        "_whole_end",
        "give_back",
        "has_headers",
        "is_plain",
        "messages",
        "unreturned_bytes",
        "waiter",
    )

    HALF_WINDOW_BYTES: Final = STREAM_WINDOW_BYTES // 2

    def __init__(self, max_message_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_message_bytes = max_message_bytes
        # What waits uncut: whole messages from `_begin` to `_whole_end`, and up to `_end` the start of another one.
        self._uncut = bytearray()
        self._begin = self._whole_end = self._end = 0
        self.messages: deque[bytes] = deque()
        self.has_headers = False  # whether the response has begun, so that DATA may come
        # Whether a frame that holds exactly one message can be taken as that message, without `feed`.
        self.is_plain = False
        self.unreturned_bytes = 0
        self.give_back: Callable[[int], None] | None = None
        self.waiter: asyncio.Future[None] | None = None

    @property
    def is_within_message(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._end > self._whole_end

    def begin(self) -> None:
        """Let messages come: the headers of the response are there."""
        self.has_headers = True
        self._set_plain()

    def feed(self, data: bytes) -> None:
        """Take the payload of one DATA frame, wherever it cuts messages. MessageError for what cannot be taken."""
        self._append(data)
        start, end = self._whole_end, self._end
        while end - start >= PREFIX_BYTES:
            is_compressed, size = _PREFIX.unpack_from(self._uncut, start)
            if is_compressed:
                raise MessageError(Outcome(grpc.StatusCode.INTERNAL, "the server sent a compressed message"))
            if size > self._max_message_bytes:
                text = f"CLIENT: Received message larger than max ({size} vs. {self._max_message_bytes})"
                raise MessageError(Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
            if start + PREFIX_BYTES + size > end:
                break
            start += PREFIX_BYTES + size
        self._whole_end = start
        if len(self.messages) < KEPT_APART:
            self.cut()
        self._set_plain()

    def cut(self) -> bool:
        """Make messages of what waits in one piece, as many as may wait apart; return whether there is one now."""
        start, messages = self._begin, self.messages
        if start == self._whole_end:
            return bool(messages)
        while start < self._whole_end and len(messages) < KEPT_APART:
            _, size = _PREFIX.unpack_from(self._uncut, start)
            message_end = start + PREFIX_BYTES + size
            messages.append(bytes(self._uncut[start + PREFIX_BYTES : message_end]))
            start = message_end
        self._begin = start
        if start == self._whole_end:
            self._uncut = self._uncut[start : self._end]
            self._end -= start
            self._begin = self._whole_end = 0
            self._set_plain()
        return bool(messages)

    def drop(self) -> None:
        """Forget everything that waits."""
        self.messages.clear()
        self._uncut = bytearray()
        self._begin = self._whole_end = self._end = 0

    def account(self) -> bool:
        """Look at the window once half of it is used: give it back to a reader that waits for more of one message.

        Return False if the peer sent more than the window.
        """
        if self.unreturned_bytes > STREAM_WINDOW_BYTES:
            return False
        if self.waiter is not None:
            self.give_back_if_due()
        return True

    def give_back_if_due(self) -> None:
        """Give the window back once half of it is used and nothing waits: for the reader, after each message."""
        if self.unreturned_bytes > self.HALF_WINDOW_BYTES and not self.messages and self._begin == self._whole_end:
            increment, self.unreturned_bytes = self.unreturned_bytes, 0
            if self.give_back is not None:
                self.give_back(increment)

    def wake(self) -> None:
        """Let the reader look again."""
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Return at the next `wake`. One reader at a time."""
        if self.waiter is not None:
            raise RuntimeError("a stream is read by one task at a time")
        self.give_back_if_due()
        waiter = self.waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            if self.waiter is waiter:
                self.waiter = None

    def pack(self) -> None:
        """Put messages that were cut already back into one piece, all but the first."""
        messages = self.messages
        behind = [messages.pop() for _ in range(len(messages) - KEPT_APART)]
        # All that may still come before the window is given back fits: growing would leave holes in the heap.
        self._uncut = bytearray(STREAM_WINDOW_BYTES)
        for one in reversed(behind):
            self._append(_PREFIX.pack(0, len(one)) + one)
        self._whole_end = self._end
        self.is_plain = False

    def _append(self, data: bytes) -> None:
        end = self._end + len(data)
        self._uncut[self._end : end] = data
        self._end = end

    def _set_plain(self) -> None:
        self.is_plain = self.has_headers and not self._end and self._max_message_bytes >= MAX_FRAME_BYTES
