"""Reasons to gRPC statuses: one table, one function.

Every error carries exactly one ErrorInfo (AIP-193); what else it carries
follows from the failure itself. Errors travel as trailers, of which clients take
8 KiB in all: whatever a caller sent, an error is cut to less.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Any, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from service.core.errors import Reason, ServiceError, Violation

__all__ = ["DOMAIN", "MAX_VIOLATIONS", "SERVER_FAULTS", "STATUS_BY_REASON", "to_status"]

DOMAIN: Final = "headrace.v1"

# The trailers hold the message twice, escaped (three characters a byte at worst) and with the details in
# base64: 1 KB and 1.4 KB of it, 4.5 KB of the rest, and the names of it all.
MAX_MESSAGE_BYTES: Final = 1024
MAX_VIOLATIONS: Final = 20
_MAX_VIOLATIONS_BYTES: Final = 2560
_MAX_FIELD_BYTES: Final = 256
_MAX_DESCRIPTION_BYTES: Final = 512
_MAX_METADATA_BYTES: Final = 128
_MAX_METADATA: Final = 4
# Those of limits, which come with one violation and never with many.
_MAX_HEADERS: Final = 6
_MAX_HEADER_BYTES: Final = 64
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {ord("%")}
_ELLIPSIS: Final = "..."

STATUS_BY_REASON: Final = {
    Reason.INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CONTEXT_LENGTH_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CAPABILITY_UNSUPPORTED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.MODEL_NOT_READY: grpc.StatusCode.UNAVAILABLE,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.QUOTA_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.DEADLINE_TOO_SHORT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.DEADLINE_IN_QUEUE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.DEADLINE_IN_DECODE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.BACKEND_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.BACKEND_ERROR: grpc.StatusCode.INTERNAL,
    Reason.CONSUMER_TOO_SLOW: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.IDEMPOTENCY_MISMATCH: grpc.StatusCode.ALREADY_EXISTS,
    Reason.GENERATION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.REPLAY_EXPIRED: grpc.StatusCode.OUT_OF_RANGE,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
    Reason.QUEUE_TIMEOUT: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.FIRST_TOKEN_TIMEOUT: grpc.StatusCode.UNAVAILABLE,
    Reason.TOKEN_GAP_TIMEOUT: grpc.StatusCode.UNAVAILABLE,
    Reason.GENERATION_LOST: grpc.StatusCode.UNAVAILABLE,
    Reason.STORE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}

# Their violations are of limits, and not of fields.
_QUOTAS: Final = frozenset({Reason.RATE_LIMITED, Reason.QUOTA_EXHAUSTED})

# Statuses that make a SERVER span an error (OTel RPC conventions): the others
# are the caller's doing.
SERVER_FAULTS: Final = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


def to_status(
    error: ServiceError, request_id: str, last_sequence: int, trailers: Sequence[tuple[str, str]] = ()
) -> Any:
    """Return the status for `context.abort_with_status`.

    `last_sequence` is the number of the last event that was sent, 0 for none;
    it goes into the metadata so that a caller knows what it has. `trailers` go beside
    the details. All trailers
    together have less than 8 KiB: long texts are cut, and of many violations the
    first ones are named, the last one says how many more there are.
    """
    code = STATUS_BY_REASON[error.reason]
    metadata = {name: _cut(value, _MAX_METADATA_BYTES) for name, value in islice(error.metadata.items(), _MAX_METADATA)}
    if last_sequence:
        metadata["lastSequence"] = str(last_sequence)
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason.name, domain=DOMAIN, metadata=metadata),
        error_details_pb2.RequestInfo(request_id=request_id),
    ]
    if error.violations and error.reason in _QUOTAS:
        details.append(
            error_details_pb2.QuotaFailure(
                violations=[
                    error_details_pb2.QuotaFailure.Violation(subject=v.field, description=v.description)
                    for v in _first(error.violations)
                ]
            )
        )
    elif error.violations:
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
                    for v in _first(error.violations)
                ]
            )
        )
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.reason is Reason.MODEL_NOT_FOUND:
        details.append(
            error_details_pb2.ResourceInfo(resource_type="headrace.v1.Model", resource_name=metadata.get("model", ""))
        )
    status: Any = rpc_status.to_status(
        status_pb2.Status(code=_number(code), message=_message(error.message), details=_packed(details))
    )
    beside = [(name, _cut(value, _MAX_HEADER_BYTES)) for name, value in error.headers[:_MAX_HEADERS]]
    beside += trailers
    pushback = _pushback_ms(error, last_sequence)
    if pushback is not None:
        beside.append(("grpc-retry-pushback-ms", str(pushback)))
    return status._replace(trailing_metadata=(*status.trailing_metadata, *beside)) if beside else status


def _first(violations: Sequence[Violation]) -> list[Violation]:
    """Return as many of the violations as there is room for, and one that says how many more there are."""
    shown: list[Violation] = []
    room = _MAX_VIOLATIONS_BYTES
    for violation in violations[:MAX_VIOLATIONS]:
        field = _cut(violation.field, _MAX_FIELD_BYTES)
        description = _cut(violation.description, _MAX_DESCRIPTION_BYTES)
        # Four bytes of Protobuf's around it, or six.
        room -= len(field.encode()) + len(description.encode()) + 8
        if room < 0:
            break
        shown.append(Violation(field, description))
    if len(shown) < len(violations):
        shown.append(Violation("", f"and {len(violations) - len(shown)} more"))
    return shown


def _message(text: str) -> str:
    """Return `text` cut so that gRPC's escaping of it has no more than `MAX_MESSAGE_BYTES`."""
    data = text[: MAX_MESSAGE_BYTES + 1].encode(errors="replace")
    ends = list(accumulate(1 if byte in _PLAIN else 3 for byte in data))
    if not ends or ends[-1] <= MAX_MESSAGE_BYTES:
        return data.decode()
    fitting = sum(end <= MAX_MESSAGE_BYTES - len(_ELLIPSIS) for end in ends)
    return data[:fitting].decode(errors="ignore") + _ELLIPSIS


def _cut(text: str, most_bytes: int) -> str:
    """Return `text` as whole characters that UTF-8 has, in so many bytes at most."""
    data = text[: most_bytes + 1].encode(errors="replace")
    if len(data) <= most_bytes:
        return data.decode()
    return data[: most_bytes - len(_ELLIPSIS)].decode(errors="ignore") + _ELLIPSIS


def _pushback_ms(error: ServiceError, last_sequence: int) -> int | None:
    """Return gRPC's `grpc-retry-pushback-ms`: when to retry, -1 for never, None to say nothing.

    After output was sent a retry would run the generation again, and one that the
    engine was given its whole time for would most likely take it again. A limit is the
    caller's matter, and may be hours away: grpc-java would wait for it, whatever the
    status. Never 0: grpcio then waits for its deadline.
    """
    if last_sequence or error.reason is Reason.FIRST_TOKEN_TIMEOUT or error.reason in _QUOTAS:
        return -1
    return None if error.retry_after_s is None else max(1, round(error.retry_after_s * 1000))


def _number(code: grpc.StatusCode) -> int:
    return int(code_pb2.Code.Value(code.name))


def _packed(details: Sequence[Message]) -> list[any_pb2.Any]:
    packed = []
    for detail in details:
        box = any_pb2.Any()
        box.Pack(detail)
        packed.append(box)
    return packed
