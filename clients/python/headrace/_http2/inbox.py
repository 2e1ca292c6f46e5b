"""The messages of one call that have arrived and wait for its reader.

It owns cutting DATA into messages, the one reader's wait, and how much may
wait: the stream's window is given back when nothing waits, never before, so
that at most one window of messages and one unfinished message are held. It
knows no frames but their length, and not what the messages are.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

import grpc

from headrace._http2.frames import MAX_FRAME_BYTES, WINDOW_BYTES
from headrace._http2.outcome import Outcome

__all__ = ["PREFIX_BYTES", "Inbox", "MessageError"]

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
        "_loop",
        "_max_message_bytes",
        "give_back",
        "has_headers",
        "is_plain",
        "messages",
        "partial",
        "unreturned_bytes",
        "waiter",
    )

    HALF_WINDOW_BYTES: Final = WINDOW_BYTES // 2

    def __init__(self, max_message_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_message_bytes = max_message_bytes
        self.messages: deque[bytes] = deque()
        self.has_headers = False  # whether the response has begun, so that DATA may come
        # Whether a frame that holds exactly one message can be taken as that message, without `feed`.
        self.is_plain = False
        self.partial = bytearray()
        self.unreturned_bytes = 0
        self.give_back: Callable[[int], None] | None = None
        self.waiter: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Let messages come: the headers of the response are there."""
        self.has_headers = True
        self.is_plain = self._max_message_bytes >= MAX_FRAME_BYTES

    def feed(self, data: bytes) -> None:
        """Take the payload of one DATA frame, wherever it cuts messages. MessageError for what cannot be taken."""
        partial = self.partial
        partial += data
        start, end = 0, len(partial)
        while end - start >= PREFIX_BYTES:
            is_compressed, size = _PREFIX.unpack_from(partial, start)
            if is_compressed:
                raise MessageError(Outcome(grpc.StatusCode.INTERNAL, "the server sent a compressed message"))
            if size > self._max_message_bytes:
                text = f"CLIENT: Received message larger than max ({size} vs. {self._max_message_bytes})"
                raise MessageError(Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
            message_end = start + PREFIX_BYTES + size
            if message_end > end:
                break
            self.messages.append(bytes(partial[start + PREFIX_BYTES : message_end]))
            start = message_end
        if start:
            del partial[:start]
        self.is_plain = not partial and self._max_message_bytes >= MAX_FRAME_BYTES

    def account(self) -> bool:
        """Give the window back if nothing waits; return False if the peer sent more than the window."""
        if self.unreturned_bytes > WINDOW_BYTES:
            return False
        if not self.messages:
            self.reopen()
        return True

    def give_back_if_due(self) -> None:
        """Give the window back once half of it is used and nothing waits: for the reader, after each message."""
        if self.unreturned_bytes > self.HALF_WINDOW_BYTES and not self.messages:
            self.reopen()

    def reopen(self) -> None:
        """Give back the window for all that came."""
        increment, self.unreturned_bytes = self.unreturned_bytes, 0
        if self.give_back is not None and increment:
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
        waiter = self.waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            if self.waiter is waiter:
                self.waiter = None
