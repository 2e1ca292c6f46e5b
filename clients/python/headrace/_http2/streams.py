"""The streams of one connection, and what their frames do to them.

It owns who a stream belongs to, from its request to its end, and the rules of
a response: headers, messages, trailers. It writes through a function and knows
no socket; FrameError for what the whole connection cannot survive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import grpc

from headrace._http2 import frames
from headrace._http2.frames import ErrorCode, Flag, FrameError
from headrace._http2.inbox import Inbox, MessageError
from headrace._http2.metadata import NO_TABLE, Field
from headrace._http2.outbox import Outbox
from headrace._http2.outcome import (
    Outcome,
    end_without_trailers,
    outcome_of_refusal,
    outcome_of_reset,
    outcome_of_trailers,
)

__all__ = ["StreamOwner", "Streams"]


class StreamOwner(Protocol):
    """Who is told what becomes of a stream. After `on_end` nothing more comes."""

    inbox: Inbox

    def on_headers(self, fields: list[Field]) -> None:
        """A response has begun."""

    def on_end(self, outcome: Outcome, *, was_seen: bool) -> None:
        """The stream is over; `was_seen` is False if the server says that it did nothing for it."""


class Streams:
    """All streams that are open. `on_gone` is called when one has ended, before its owner is told.

    `inboxes` may be read by whoever parses frames; `unreturned_bytes` counts
    DATA for the connection's window.
    """

    __slots__ = ("_next_id", "_on_gone", "_owners", "_write", "inboxes", "max_streams", "outbox", "unreturned_bytes")

    def __init__(self, write: Callable[[bytes], None], on_gone: Callable[[], None]) -> None:
        self._write = write
        self._on_gone = on_gone
        self._owners: dict[int, StreamOwner] = {}
        self._next_id = 1
        self.inboxes: dict[int, Inbox] = {}
        self.outbox = Outbox(write)
        self.max_streams: int = frames.MAX_STREAM_ID  # until the peer says otherwise
        self.unreturned_bytes = 0

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def has_room(self) -> bool:
        """Whether another stream may be opened."""
        return len(self._owners) < self.max_streams and self._next_id <= frames.MAX_STREAM_ID

    @property
    def is_used_up(self) -> bool:
        """Whether no stream can ever be opened again."""
        return self._next_id > frames.MAX_STREAM_ID

    # What this side does.

    def open(self, owner: StreamOwner, header_block: bytes, body: bytes) -> int:
        """Send a request and return its stream id. There must be room."""
        stream_id = self._next_id
        self._next_id += 2
        if stream_id == 1:
            header_block = NO_TABLE + header_block
        self._owners[stream_id] = owner
        self.inboxes[stream_id] = owner.inbox
        owner.inbox.give_back = lambda increment: self._write(frames.window_update(stream_id, increment))
        self.outbox.send(stream_id, frames.headers(stream_id, header_block, self.outbox.max_frame_bytes), body)
        return stream_id

    def cancel(self, stream_id: int, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Reset a stream; its owner is not told. Does nothing if it has ended."""
        if stream_id in self._owners:
            self._write(frames.reset(stream_id, code))
            self._forget(stream_id)

    def fail(self, stream_id: int, outcome: Outcome, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Reset a stream and tell its owner why."""
        owner = self._owners.get(stream_id)
        if owner is not None:
            self.cancel(stream_id, code)
            owner.on_end(outcome, was_seen=True)

    def end_above(self, last_id: int, outcome: Outcome) -> None:
        """End the streams that the server has not looked at, and will not."""
        for stream_id in [opened for opened in self._owners if opened > last_id]:
            self._end(stream_id, outcome, was_seen=False)

    def end_all(self, outcome: Outcome) -> None:
        """End every stream, whatever the server did for it."""
        for stream_id in list(self._owners):
            self._end(stream_id, outcome, was_seen=True)

    # What the peer does.

    def on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Take any DATA frame."""
        self.unreturned_bytes += len(payload)
        inbox = self.inboxes.get(stream_id)
        if inbox is None:
            self._check_was_open(stream_id)
            return
        if not inbox.has_headers:
            self._break(stream_id, ErrorCode.PROTOCOL_ERROR, "the server sent data before headers")
            return
        inbox.unreturned_bytes += len(payload)
        try:
            inbox.feed(frames.unpadded(flags, payload))
        except MessageError as error:
            self.fail(stream_id, error.outcome)
            return
        if flags & Flag.END_STREAM:
            self._end_by_server(stream_id, end_without_trailers())
        elif inbox.unreturned_bytes > inbox.HALF_WINDOW_BYTES and not inbox.account():
            self.break_for_overrun(stream_id)
        elif inbox.messages:
            inbox.wake()

    def on_fields(self, stream_id: int, fields: list[Field], *, is_last: bool) -> None:
        """Take a decoded header block: a response's begin, its trailers, or both in one."""
        owner = self._owners.get(stream_id)
        if owner is None:
            self._check_was_open(stream_id)
            return
        inbox = owner.inbox
        if is_last:
            outcome = outcome_of_trailers(fields)
            if outcome.status is grpc.StatusCode.OK and inbox.is_within_message:
                outcome = Outcome(grpc.StatusCode.INTERNAL, "the server ended the stream within a message")
            self._end_by_server(stream_id, outcome)
        elif inbox.has_headers:
            self._break(stream_id, ErrorCode.PROTOCOL_ERROR, "the server sent headers within the stream")
        elif not dict(fields).get(b":status", b"").startswith(b"1"):  # 1xx is not yet the response
            refusal = outcome_of_refusal(fields)
            if refusal is not None:
                self.fail(stream_id, refusal)
            else:
                inbox.begin()
                owner.on_headers(fields)

    def on_reset(self, stream_id: int, code: int) -> None:
        """Take a RST_STREAM frame."""
        if stream_id in self._owners:
            self._end(stream_id, outcome_of_reset(code), was_seen=code != ErrorCode.REFUSED_STREAM)
        else:
            self._check_was_open(stream_id)

    def on_window_update(self, stream_id: int, increment: int) -> None:
        """Take a WINDOW_UPDATE frame; stream 0 is the connection."""
        if stream_id not in self._owners and stream_id:
            self._check_was_open(stream_id)
        elif not increment and not stream_id:
            raise FrameError(ErrorCode.PROTOCOL_ERROR, "a window update of 0 bytes")
        elif not increment or not self.outbox.widen(stream_id, increment):
            self._break(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the server's window update is out of bounds")

    def break_for_overrun(self, stream_id: int) -> None:
        """End a stream on which more came than its window."""
        self._break(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the server sent past the window")

    # Ends.

    def _break(self, stream_id: int, code: ErrorCode, text: str) -> None:
        self.fail(stream_id, Outcome(grpc.StatusCode.INTERNAL, text), code)

    def _end_by_server(self, stream_id: int, outcome: Outcome) -> None:
        if self.outbox.is_sending(stream_id):  # it has answered without reading everything
            self._write(frames.reset(stream_id, ErrorCode.NO_ERROR))
        self._end(stream_id, outcome, was_seen=True)

    def _end(self, stream_id: int, outcome: Outcome, *, was_seen: bool) -> None:
        owner = self._owners.get(stream_id)
        if owner is not None:
            self._forget(stream_id)
            owner.on_end(outcome, was_seen=was_seen)

    def _forget(self, stream_id: int) -> None:
        self._owners.pop(stream_id).inbox.give_back = None
        del self.inboxes[stream_id]
        self.outbox.drop(stream_id)
        self._on_gone()

    def _check_was_open(self, stream_id: int) -> None:
        """What comes late for a stream that has ended is ignored; other streams cannot exist."""
        if not stream_id & 1 or stream_id >= self._next_id:
            raise FrameError(ErrorCode.PROTOCOL_ERROR, f"a frame for stream {stream_id}, which was never opened")
