# ruff: noqa: N818 - these names read as facts in `except` clauses
"""Failures of Headrace calls, as one small tree of exceptions.

    HeadraceError
    ├── InvalidRequest             the request is wrong; .violations names every field
    │   ├── ContextLengthExceeded  prompt plus requested output do not fit the model
    │   ├── RequestTooLarge        the message is over the transport's size limit
    │   └── IdempotencyMismatch    the idempotency key was used for another request
    ├── CapabilityUnsupported      this model cannot do what was asked
    ├── NotFound                   no such model or generation, or its events are no longer kept
    ├── AccessDenied               credentials are missing, wrong, or not enough
    ├── Overloaded                 the waiting line is full or too slow; see .retry_after_s
    │   └── RateLimited            a limit of the caller's own tenant
    │       └── QuotaExhausted     its quota of the day is spent; waiting for seconds does not help
    ├── ConsumerTooSlow            the stream was not read fast enough and was stopped
    ├── DeadlineExceeded           the timeout passed, in the line or while decoding
    ├── Unavailable                the server or its engine cannot be reached, or is draining
    ├── Cancelled                  ended with CANCELLED though nobody here asked for it
    └── InternalError              a fault of the server
        └── ProtocolError          the stream broke its own rules: a gap, or an end without `completed`

It owns the way from a gRPC status with google.rpc details to these classes, in
one table. It must not know streams or channels. `asyncio.CancelledError` is no
part of it: a cancelled task sees that, untouched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

__all__ = [
    "AccessDenied",
    "Cancelled",
    "CapabilityUnsupported",
    "ConsumerTooSlow",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "HeadraceError",
    "InternalError",
    "InvalidRequest",
    "NotFound",
    "Overloaded",
    "ProtocolError",
    "RequestTooLarge",
    "Unavailable",
    "Violation",
    "error_from_rpc",
    "error_from_status",
]

LIMIT_HEADERS: Final = "x-ratelimit-"
ERROR_DOMAIN: Final = "headrace.v1"
DETAILS_TRAILER: Final = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong with one field: its path in the request, and what is accepted there."""

    field: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetails:
    """What the google.rpc details of one status say; every field is empty if they say nothing."""

    reason: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    retry_after_s: float | None = None
    request_id: str | None = None
    resource: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class HeadraceError(Exception):
    """A call failed. Catch this for all of them, a subclass for one kind.

    `status` is the gRPC status; `reason` the name of the ErrorReason without
    its prefix, or None when the failure did not come from a Headrace server
    (a refused connection, a local timeout). `message` is for people, and
    `metadata`, `violations`, `retry_after_s`, `request_id`, `resource` and
    `headers` (`x-ratelimit-...`, of a limit that was reached) are for programs.
    `events_received` counts the events that came before it.
    """

    may_pass: bool = False  # whether the cause may go away by itself

    def __init__(
        self,
        message: str,
        *,
        status: grpc.StatusCode,
        details: ErrorDetails | None = None,
    ) -> None:
        super().__init__(message)
        details = details or ErrorDetails()
        self.message = message
        self.status = status
        self.reason = details.reason
        self.metadata = details.metadata
        self.violations = details.violations
        self.retry_after_s = details.retry_after_s
        self.request_id = details.request_id
        self.resource = details.resource
        self.headers = details.headers
        self.events_received = 0  # the stream that raises sets it

    @property
    def is_retriable(self) -> bool:
        """Whether the same call may be made again: the cause may pass, and no event has been delivered yet."""
        return self.may_pass and self.events_received == 0

    def __str__(self) -> str:
        return f"{self.reason or self.status.name}: {self.message}"


class InvalidRequest(HeadraceError):
    """The request is wrong; the same request will fail again."""


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus requested output do not fit; `metadata` holds maxContextTokens and what is known of the rest."""


class RequestTooLarge(InvalidRequest):
    """The message is over the size limit of the transport."""


class IdempotencyMismatch(InvalidRequest):
    """The idempotency key was used for another request."""


class CapabilityUnsupported(HeadraceError):
    """The model cannot do what was asked; `metadata["capability"]` names what."""


class NotFound(HeadraceError):
    """No model has this id or alias, or the server that answers knows no such generation of this caller."""


class AccessDenied(HeadraceError):
    """Credentials are missing, wrong, or do not allow this call."""


class Overloaded(HeadraceError):
    """The server takes no more for now; `retry_after_s` says when to come back, if known."""

    may_pass = True


class RateLimited(Overloaded):
    """A limit of the caller's tenant; `retry_after_s` says when there is room again."""


class QuotaExhausted(RateLimited):
    """What the tenant may use is used up; waiting for seconds does not help."""

    may_pass = False


class ConsumerTooSlow(HeadraceError):
    """The stream was read too slowly, so the server stopped the generation."""


class DeadlineExceeded(HeadraceError):
    """The timeout passed. Running the same call again costs the same again."""


class Unavailable(HeadraceError):
    """The server or its engine cannot be reached, is loading, or is shutting down."""

    may_pass = True


class Cancelled(HeadraceError):
    """The call ended as cancelled, though the reading task was not: by the server, or by an earlier cancelled read."""


class InternalError(HeadraceError):
    """A fault on the other side; `request_id` finds it in the server's log."""


class ProtocolError(InternalError):
    """The stream broke the rules of the contract, so its content cannot be trusted to be whole."""


# One table: a reason where there is one, else the status.
ERROR_CLASSES: Final[Mapping[str | grpc.StatusCode, type[HeadraceError]]] = {
    "INVALID_FIELD": InvalidRequest,
    "CONTEXT_LENGTH_EXCEEDED": ContextLengthExceeded,
    "CAPABILITY_UNSUPPORTED": CapabilityUnsupported,
    "MODEL_NOT_FOUND": NotFound,
    "MODEL_NOT_READY": Unavailable,
    "QUEUE_FULL": Overloaded,
    "QUEUE_TIMEOUT": Overloaded,
    "DEADLINE_TOO_SHORT": DeadlineExceeded,
    "DEADLINE_IN_QUEUE": DeadlineExceeded,
    "DEADLINE_IN_DECODE": DeadlineExceeded,
    "DRAINING": Unavailable,
    "BACKEND_UNAVAILABLE": Unavailable,
    "BACKEND_ERROR": InternalError,
    "FIRST_TOKEN_TIMEOUT": Unavailable,
    "TOKEN_GAP_TIMEOUT": Unavailable,
    "CONSUMER_TOO_SLOW": ConsumerTooSlow,
    "GENERATION_NOT_FOUND": NotFound,
    "INTERNAL": InternalError,
    "RATE_LIMITED": RateLimited,
    "QUOTA_EXHAUSTED": QuotaExhausted,
    "IDEMPOTENCY_MISMATCH": IdempotencyMismatch,
    "REPLAY_EXPIRED": NotFound,
    "UNAUTHENTICATED": AccessDenied,
    "PERMISSION_DENIED": AccessDenied,
    "GENERATION_LOST": Unavailable,
    "STORE_UNAVAILABLE": Unavailable,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNKNOWN: InternalError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    grpc.StatusCode.PERMISSION_DENIED: AccessDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.FAILED_PRECONDITION: CapabilityUnsupported,
    grpc.StatusCode.ABORTED: InternalError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: CapabilityUnsupported,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DATA_LOSS: InternalError,
    grpc.StatusCode.UNAUTHENTICATED: AccessDenied,
}


def error_from_rpc(error: grpc.aio.AioRpcError) -> HeadraceError:
    """Return the exception for a failed grpc.aio call."""
    trailers = error.trailing_metadata() or ()
    return error_from_status(error.code(), error.details() or "", trailers)


def error_from_status(
    status: grpc.StatusCode, message: str, trailers: Iterable[Sequence[str | bytes]] = ()
) -> HeadraceError:
    """Return the exception for a status, its text and its trailing metadata.

    Details that are missing, broken, or of another domain are left out; the
    status alone then chooses the class.
    """
    trailers = tuple(trailers)
    details = _parse_details(trailers)
    error_class = ERROR_CLASSES.get(details.reason or status) or ERROR_CLASSES[status]
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and details.reason is None and "larger than max" in message:
        error_class = RequestTooLarge  # made by the gRPC library, which has no details to tell it by
    return error_class(message, status=status, details=details)


def _parse_details(trailers: Sequence[Sequence[str | bytes]]) -> ErrorDetails:
    raw = next((value for key, value in trailers if key == DETAILS_TRAILER), None)
    if not isinstance(raw, bytes):
        return ErrorDetails()
    try:
        status = status_pb2.Status.FromString(raw)
    except DecodeError:
        return ErrorDetails()
    info = error_details_pb2.ErrorInfo()
    fields = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    request = error_details_pb2.RequestInfo()
    resource = error_details_pb2.ResourceInfo()
    found = set()
    for detail in status.details:
        for message in (info, fields, retry, request, resource):
            try:
                if detail.Unpack(message):
                    found.add(message.DESCRIPTOR.name)
            except DecodeError:
                message.Clear()
    is_ours = info.domain == ERROR_DOMAIN
    return ErrorDetails(
        reason=info.reason or None if is_ours else None,
        metadata=dict(info.metadata) if is_ours else {},
        violations=tuple(Violation(v.field, v.description) for v in fields.field_violations),
        retry_after_s=_seconds(retry) if "RetryInfo" in found else None,
        request_id=request.request_id or None,
        headers=dict(_limit_headers(trailers)),
        resource=resource.resource_name or None,
    )


def _limit_headers(trailers: Iterable[Sequence[str | bytes]]) -> Iterator[tuple[str, str]]:
    for name, value in trailers:
        if isinstance(name, str) and isinstance(value, str) and name.startswith(LIMIT_HEADERS):
            yield name, value


def _seconds(retry: error_details_pb2.RetryInfo) -> float | None:
    delay_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return delay_s if math.isfinite(delay_s) and delay_s >= 0 else None
