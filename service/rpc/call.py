"""Facts about one RPC while it is served, and how its end is classified."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from opentelemetry.context import Context
from opentelemetry.trace import Span

from service.core.errors import Reason, ServiceError
from service.core.identity import ANONYMOUS, Identity
from service.rpc.status import SERVER_FAULTS, STATUS_BY_REASON

__all__ = ["CallRecord", "current_call", "remaining_s", "set_current_call"]

_call: contextvars.ContextVar[CallRecord] = contextvars.ContextVar("headrace_call")

_FAULT_NAMES: Final = frozenset(code.name for code in SERVER_FAULTS)
# A client ends the call itself when its deadline passes, and its cancel is all that comes. It is early by this
# server's clock: by the way here, and because gRPC rounds a deadline up, by up to one in a hundred, to send it.
_DEADLINE_SLACK_S: Final = 0.02
_DEADLINE_SLACK: Final = 0.011
_CENTURIES_S: Final = 1e9
# What a failure counts as; every reason that is not here was refused before it ran.
_OUTCOMES: Final = {
    Reason.DEADLINE_IN_QUEUE: "deadline_exceeded",
    Reason.DEADLINE_IN_DECODE: "deadline_exceeded",
    Reason.BACKEND_UNAVAILABLE: "backend_error",
    Reason.BACKEND_ERROR: "backend_error",
    Reason.DRAINING: "drained",
    Reason.CONSUMER_TOO_SLOW: "consumer_too_slow",
    Reason.INTERNAL: "internal_error",
    Reason.FIRST_TOKEN_TIMEOUT: "backend_error",
    Reason.TOKEN_GAP_TIMEOUT: "backend_error",
}


@dataclass(slots=True)
class CallRecord:
    """One RPC. `received_s` is monotonic; `last_sequence` numbers the last event sent.

    `context` has the SERVER span; it is passed explicitly and never attached.
    """

    method: str
    request_id: str
    received_s: float
    span: Span
    context: Context
    outcome: str = "completed"
    status: str = "OK"
    error: ServiceError | None = None
    # Monotonic; None if the caller set none.
    deadline_s: float | None = None
    identity: Identity = ANONYMOUS
    last_sequence: int = 0
    # Initial metadata beside the ids.
    headers: Sequence[tuple[str, str]] = ()
    # Trailing metadata: where the time went, and whether this trace is worth to be kept.
    trailers: Sequence[tuple[str, str]] = ()
    # Told the outcome, once, when the call is over.
    on_end: Callable[[str], None] | None = None
    # True once a log line has told the end of this call.
    is_logged: bool = False

    @property
    def tenant(self) -> str:
        """Whom what this call starts belongs to; empty for callers that send no credentials."""
        return self.identity.tenant

    @property
    def error_type(self) -> str | None:
        """The status, if it is a fault of this server."""
        return self.status if self.status in _FAULT_NAMES else None

    def note(self, error: BaseException) -> None:
        """Classify what ended the call. Idempotent."""
        is_past_deadline = self.deadline_s is not None and time.monotonic() >= self.deadline_s - self._slack_s()
        if isinstance(error, ServiceError):
            self.error = error
            self.status = STATUS_BY_REASON[error.reason].name
            self.outcome = _OUTCOMES.get(error.reason, "rejected")
        elif isinstance(error, asyncio.CancelledError):
            # The client left, the connection broke, or gRPC's own deadline passed.
            self.outcome = "deadline_exceeded" if is_past_deadline else "client_cancelled"
            self.status = "DEADLINE_EXCEEDED" if is_past_deadline else "CANCELLED"
        elif isinstance(error, grpc.aio.InternalError):
            # How grpc.aio reports a write to a client that left while the write
            # was blocked by flow control.
            self.outcome, self.status = "client_cancelled", "CANCELLED"
        else:
            self.outcome, self.status = "internal_error", "INTERNAL"

    def _slack_s(self) -> float:
        budget_s = 0.0 if self.deadline_s is None else self.deadline_s - self.received_s
        return _DEADLINE_SLACK_S + _DEADLINE_SLACK * budget_s


def remaining_s(context: Any) -> float | None:
    """Return the seconds that the caller's deadline leaves; None if there is none."""
    seconds: float | None = context.time_remaining()
    # grpc.aio reports centuries where there is no deadline.
    return None if seconds is None or seconds > _CENTURIES_S else seconds


def current_call() -> CallRecord:
    """Return the record of the RPC that runs in this task."""
    return _call.get()


def set_current_call(call: CallRecord) -> None:
    """Make `call` the record of this task; every RPC has a task of its own."""
    _call.set(call)
