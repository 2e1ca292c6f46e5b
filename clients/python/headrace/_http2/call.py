"""One server-streaming call: its deadline, its attempts, and its reader.

It owns the one timer of the call and the answer to "has it ended, and how". It
is driven by callbacks: a call that nobody reads needs no task. It must not
know sockets (`connection`) nor how one is chosen (`channel`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError

from headrace._http2.connection import Connection
from headrace._http2.inbox import PREFIX_BYTES, Inbox
from headrace._http2.metadata import (
    Field,
    Metadata,
    MetadataError,
    encode_attempts,
    encode_metadata,
    encode_timeout,
    metadata_of,
)
from headrace._http2.outcome import Outcome
from headrace._http2.retry import RetryThrottle, pushback_of, retry_delay_s
from headrace._reader import text_values
from headrace.errors import error_from_rpc

__all__ = ["Call", "Limits", "Router"]

T_co = TypeVar("T_co", covariant=True)

# After so many messages without a wait, other tasks get a turn: a backlog must not hold up the loop.
MESSAGES_PER_TURN: Final = 16
DEADLINE_EXCEEDED: Final = Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
UNDECODABLE: Final = Outcome(grpc.StatusCode.INTERNAL, "the server sent a message that cannot be decoded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes of messages, bytes; a request above `retried_bytes` is sent once."""

    received_bytes: int
    sent_bytes: int
    retried_bytes: int


class Router(Protocol):
    """Who finds a connection for a call."""

    def route(self, call: Call[object]) -> None:
        """Call `send` with a connection or `on_end`, now or later."""

    def forget(self, call: Call[object]) -> None:
        """The call has ended."""


class Call(Generic[T_co]):
    """A call as its reader holds it (`headrace._reader.EventReader`), and as connections tell it (`StreamOwner`)."""

    __slots__ = (
        "_attempts",
        "_body",
        "_connection",
        "_ends_s",
        "_header_waiters",
        "_headers",
        "_is_transparent_retry_used",
        "_limits",
        "_loop",
        "_metadata_block",
        "_outcome",
        "_parse",
        "_prefix",
        "_pushed_back",
        "_retry_timer",
        "_router",
        "_streak",
        "_stream_id",
        "_throttle",
        "_timer",
        "inbox",
    )

    def __init__(self, router: Router, limits: Limits, throttle: RetryThrottle, parse: Callable[[bytes], T_co]) -> None:
        self.inbox = Inbox(limits.received_bytes)
        self._router = router
        self._limits = limits
        self._throttle = throttle
        self._parse = parse
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None  # while a stream is open on it
        self._stream_id = 0
        self._prefix = self._metadata_block = self._body = b""
        self._ends_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.Handle | None = None
        self._attempts = self._pushed_back = 0
        self._is_transparent_retry_used = False
        self._headers: Metadata | None = None
        self._header_waiters: list[asyncio.Future[None]] = []
        self._outcome: Outcome | None = None
        self._streak = 0

    def begin(self, prefix: bytes, request: bytes, timeout_s: float, metadata: Metadata) -> None:
        """Start the clock and the first attempt. What cannot be sent ends the call at once."""
        self._ends_s = self._loop.time() + timeout_s
        try:
            self._metadata_block = encode_metadata(metadata)
        except MetadataError as error:
            self._finish(Outcome(grpc.StatusCode.INTERNAL, f"Invalid metadata: {error}"))
            return
        if len(request) > self._limits.sent_bytes:
            text = f"CLIENT: Sent message larger than max ({len(request)} vs. {self._limits.sent_bytes})"
            self._finish(Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
            return
        if timeout_s <= 0:
            self._finish(DEADLINE_EXCEEDED)
            return
        self._prefix = prefix
        self._body = b"\x00" + len(request).to_bytes(PREFIX_BYTES - 1) + request
        self._timer = self._loop.call_at(self._ends_s, self._on_deadline)
        self._router.route(self)

    # The reader's side.

    async def read(self) -> T_co | None:
        """Return the next message, None after OK. HeadraceError for other ends. A cancelled read cancels the call."""
        inbox = self.inbox
        if not inbox.messages or self._streak >= MESSAGES_PER_TURN:
            await self._wait()
        if not inbox.messages:
            assert self._outcome is not None, "only an end drops messages"
            failure = self._failure(self._outcome)
            if failure is not None:
                raise error_from_rpc(failure) from failure
            return None
        self._streak += 1
        raw = inbox.messages.popleft()
        inbox.give_back_if_due()
        try:
            return self._parse(raw)
        except DecodeError:
            self._abandon(UNDECODABLE)
            failure = self._failure(UNDECODABLE)
            assert failure is not None, "it is not OK"
            raise error_from_rpc(failure) from failure

    async def take(self, most: int) -> list[T_co]:
        """Return the messages that have arrived, in order: at least one, at most `most`; none after OK.

        Waits for the first and for no second one. AioRpcError for other ends,
        after the messages before them. A cancelled wait cancels the call.
        """
        messages, parse = self.inbox.messages, self._parse
        if not messages or self._streak >= MESSAGES_PER_TURN:
            await self._wait()
        taken: list[T_co] = []
        try:
            while len(taken) < most and (messages or self.inbox.cut()):
                taken.append(parse(messages.popleft()))
        except DecodeError:
            self._abandon(UNDECODABLE)
        self.inbox.give_back_if_due()
        if not taken:
            assert self._outcome is not None, "only an end drops messages"
            failure = self._failure(self._outcome)
            if failure is not None:
                raise failure
        self._streak += len(taken)
        return taken

    async def _wait(self) -> None:
        """Wait until a message or the end is there; with messages there already, let other tasks have a turn."""
        self._streak = 0
        try:
            if self.inbox.messages or self.inbox.cut():
                await asyncio.sleep(0)
            else:
                while not self.inbox.messages and self._outcome is None:
                    await self.inbox.wait()
        except asyncio.CancelledError:
            self.cancel("the read was cancelled")
            raise

    async def headers(self) -> dict[str, str]:
        """Return the text values of the initial metadata, waiting until it is there; none if the call ends without."""
        while self._headers is None and self._outcome is None:
            waiter = self._loop.create_future()
            self._header_waiters.append(waiter)
            await waiter
        return text_values(self._headers or ())

    @property
    def trailers(self) -> dict[str, str]:
        """The text values of the trailing metadata; empty until the server has ended the call."""
        return text_values(() if self._outcome is None else self._outcome.trailers)

    async def close(self) -> None:
        """Cancel the call unless it ended; return at once."""
        self.cancel()

    def cancel(self, text: str = "the call was cancelled") -> None:
        """End the call as CANCELLED unless it ended, and tell the server so."""
        self._abandon(Outcome(grpc.StatusCode.CANCELLED, text))

    def _failure(self, outcome: Outcome) -> grpc.aio.AioRpcError | None:
        """Return what the outcome means for a reader, None if it is OK."""
        if outcome.status is grpc.StatusCode.OK:
            return None
        headers, trailers = grpc.aio.Metadata(*(self._headers or ())), grpc.aio.Metadata(*outcome.trailers)
        return grpc.aio.AioRpcError(outcome.status, headers, trailers, outcome.message)

    # The connection's side.

    def send(self, connection: Connection) -> None:
        """Make an attempt on a connection that has room."""
        timeout = encode_timeout(self._ends_s - self._loop.time())
        block = self._prefix + timeout + encode_attempts(self._attempts) + self._metadata_block
        self._connection = connection
        self._stream_id = connection.open_stream(self, block, self._body)

    def on_headers(self, fields: list[Field]) -> None:
        """A response has begun: from here on there is no other attempt."""
        self._body = self._prefix = self._metadata_block = b""
        self._headers = metadata_of(fields)
        self._wake_header_waiters()

    def on_end(self, outcome: Outcome, *, was_seen: bool) -> None:
        """An attempt is over: make another one, or end the call."""
        self._connection = None
        if self._outcome is not None:
            return
        if outcome.status is grpc.StatusCode.CANCELLED and self._loop.time() >= self._ends_s:
            outcome = DEADLINE_EXCEEDED  # the server's clock was first, and a reset is all that it sends
        if self._headers is not None:
            self._throttle.note(outcome)
            self._finish(outcome)
        elif not was_seen and not self._is_transparent_retry_used:
            self._is_transparent_retry_used = True  # once, as in gRFC A6
            self._retry_timer = self._loop.call_soon(self._attempt_again)
        else:
            self._retry_or_finish(outcome)

    def _retry_or_finish(self, outcome: Outcome) -> None:
        self._attempts += 1
        delay_s = retry_delay_s(outcome, self._attempts, self._throttle, pushed_back=self._pushed_back)
        is_sent_once = len(self._body) > self._limits.retried_bytes
        # An attempt that would come behind the deadline says less than the failure that there is.
        if delay_s is None or is_sent_once or self._loop.time() + delay_s >= self._ends_s:
            self._finish(outcome)
            return
        self._pushed_back += pushback_of(outcome) is not None
        self._retry_timer = self._loop.call_later(delay_s, self._attempt_again)

    def _attempt_again(self) -> None:
        self._retry_timer = None
        self._router.route(self)

    # Ends.

    def _on_deadline(self) -> None:
        self._timer = None
        self._abandon(DEADLINE_EXCEEDED)

    def _abandon(self, outcome: Outcome) -> None:
        """End the call from this side; what waits to be read is dropped."""
        if self._outcome is not None:
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cancel_stream(self._stream_id)
        self.inbox.drop()
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        self._outcome = outcome
        for timer in (self._timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry_timer = None
        self._body = b""
        self._router.forget(self)
        self.inbox.wake()
        self._wake_header_waiters()

    def _wake_header_waiters(self) -> None:
        waiters, self._header_waiters = self._header_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
