"""Reasons to gRPC statuses: one table, one function.

Every error carries exactly one ErrorInfo (AIP-193); what else it carries
follows from the failure itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from service.core.errors import Reason, ServiceError

__all__ = ["DOMAIN", "SERVER_FAULTS", "STATUS_BY_REASON", "to_status"]

DOMAIN: Final = "headrace.v1"

STATUS_BY_REASON: Final = {
    Reason.INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CONTEXT_LENGTH_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CAPABILITY_UNSUPPORTED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.MODEL_NOT_READY: grpc.StatusCode.UNAVAILABLE,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.DEADLINE_TOO_SHORT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.DEADLINE_IN_QUEUE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.DEADLINE_IN_DECODE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.BACKEND_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.BACKEND_ERROR: grpc.StatusCode.INTERNAL,
    Reason.CONSUMER_TOO_SLOW: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}

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


def to_status(error: ServiceError, request_id: str, last_sequence: int) -> Any:
    """Return the status for `context.abort_with_status`.

    `last_sequence` is the number of the last event that was sent, 0 for none;
    it goes into the metadata so that a caller knows what it has.
    """
    code = STATUS_BY_REASON[error.reason]
    metadata = dict(error.metadata)
    if last_sequence:
        metadata["lastSequence"] = str(last_sequence)
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason.name, domain=DOMAIN, metadata=metadata),
        error_details_pb2.RequestInfo(request_id=request_id),
    ]
    if error.violations:
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
                    for v in error.violations
                ]
            )
        )
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.reason is Reason.MODEL_NOT_FOUND:
        details.append(
            error_details_pb2.ResourceInfo(
                resource_type="headrace.v1.Model", resource_name=error.metadata.get("model", "")
            )
        )
    status: Any = rpc_status.to_status(
        status_pb2.Status(code=_number(code), message=error.message, details=_packed(details))
    )
    pushback = _pushback_ms(error, last_sequence)
    if pushback is None:
        return status
    return status._replace(trailing_metadata=(*status.trailing_metadata, ("grpc-retry-pushback-ms", str(pushback))))


def _pushback_ms(error: ServiceError, last_sequence: int) -> int | None:
    """Return gRPC's `grpc-retry-pushback-ms`: when to retry, -1 for never, None to say nothing.

    After output was sent a retry would run the generation again.
    """
    if last_sequence:
        return -1
    return None if error.retry_after_s is None else round(error.retry_after_s * 1000)


def _number(code: grpc.StatusCode) -> int:
    return int(code_pb2.Code.Value(code.name))


def _packed(details: Sequence[Message]) -> list[any_pb2.Any]:
    packed = []
    for detail in details:
        box = any_pb2.Any()
        box.Pack(detail)
        packed.append(box)
    return packed
