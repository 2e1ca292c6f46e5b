"""What happens around every RPC: request id, span, status, metrics, the catch-all.

An interceptor of our own, because the stock gRPC auto-instrumentation ends aio
spans as success on cancel and on deadline, and breaks coroutine handlers.
Health and reflection pass through untouched.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from opentelemetry import trace
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import SpanKind, Status, StatusCode

from runtime import semconv
from runtime.inbound import inbound_trace
from runtime.telemetry_settings import InboundTrace
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.rpc.authentication import authenticate, unchecked_identity
from service.rpc.call import CallRecord, remaining_s, set_current_call
from service.rpc.door import Door
from service.rpc.outcomes import Outcomes
from service.rpc.request_log import logged
from service.rpc.status import MAX_VIOLATIONS, to_status
from service.telemetry.instruments import record_rpc
from service.tenancy.authenticator import Authenticator

__all__ = ["ObservingInterceptor"]

logger = logging.getLogger("headrace.service")
request_logger = logging.getLogger("headrace.request")
_tracer = trace.get_tracer("headrace.service")

_MAX_ID_CHARS = 128
_MAX_LOGGED_CHARS = 128
_PREFIX = "/headrace.v1."
_GENERATE = "headrace.v1.GenerationService/Generate"


class _MetadataGetter(Getter[Any]):
    """Looks up single keys in gRPC metadata, where keys repeat and values may be bytes."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        for name, value in carrier:
            if name == key and isinstance(value, str):
                return [value]
        return None

    def keys(self, carrier: Any) -> list[str]:
        return [name for name, _ in carrier]


_getter = _MetadataGetter()


class ObservingInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of headrace.v1.

    `ServiceError` becomes its status; any other exception becomes INTERNAL
    with a fixed text and one log line that has the request id and the trace. The
    outcome of every Generate call is counted. Without an authenticator everybody
    may call, and callers are told apart by what they send. `trust_inbound_trace` says
    what a caller's trace is to ours.
    """

    def __init__(
        self,
        outcomes: Outcomes | None = None,
        door: Door | None = None,
        authenticator: Authenticator | None = None,
        trust_inbound_trace: InboundTrace = "parent",
    ) -> None:
        self._trust = trust_inbound_trace
        self._count = None if outcomes is None else outcomes.count
        self._door = door or Door()
        self._authenticator = authenticator

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or not details.method.startswith(_PREFIX):
            return handler
        method = details.method[1:]
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                _observed(
                    method,
                    handler.unary_stream,
                    self._door,
                    self._authenticator,
                    self._trust,
                    self._count if method == _GENERATE else None,
                ),
                _tolerant(handler.request_deserializer),
                _encoded,
            )
        return grpc.unary_unary_rpc_method_handler(
            _observed(method, handler.unary_unary, self._door, self._authenticator, self._trust),
            _tolerant(handler.request_deserializer),
            handler.response_serializer,
        )


class _Malformed:
    """Stands for bytes that are no request, so that they get a status and a log line like any other mistake."""


def _encoded(message: Any) -> bytes:
    """Return the bytes of an event; those of a retained generation are bytes already, the same for all its readers."""
    data: bytes = message if type(message) is bytes else message.SerializeToString()
    return data


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _Malformed()

    return parse


def _observed(
    method: str,
    behavior: Callable[[Any, Any], Awaitable[Any]],
    door: Door,
    authenticator: Authenticator | None,
    trust: InboundTrace,
    count: Callable[[str], None] | None = None,
) -> Callable[[Any, Any], Awaitable[Any]]:
    async def serve(request: Any, context: Any) -> Any:
        call = _open(method, context, trust)
        call.on_end = count
        set_current_call(call)
        try:
            if authenticator is None:
                call.identity = unchecked_identity(context.invocation_metadata() or ())
            else:
                await authenticate(call, context, authenticator)
            if isinstance(request, _Malformed):
                raise invalid([Violation("", "the bytes are no message of this method's request type")])
            await door.enter()
            answer = await behavior(request, context)
            if call.trailers:
                context.set_trailing_metadata(tuple(call.trailers))
            return answer
        except grpc.aio.AbortError as error:
            call.note(error)  # a status that nobody here knows; no handler does this
            raise
        except grpc.aio.InternalError as error:
            # How grpc.aio reports a write to a client that has left.
            call.note(error)
            raise asyncio.CancelledError from None
        except BaseException as error:
            status = _status(call, error)
            if status is None:
                raise
        finally:
            # Before the status is told: it waits behind what a reader has not taken yet, for as long as that client
            # stays and does not read.
            _close(call)
        # Behind the handlers, and without these names: grpc keeps what is raised here beside the call, and with it the
        # frames that it passes; a cycle would keep the request until the collector comes.
        telling = context.abort_with_status(status)
        del request, context
        try:
            await telling
        except grpc.aio.InternalError:
            # The client left before it took the status.
            raise asyncio.CancelledError from None

    return serve


def _status(call: CallRecord, error: BaseException) -> Any | None:
    """Note what ended a call, and return what its client is told; None if nobody is there any more."""
    call.note(error)
    if isinstance(error, ServiceError):
        if error.detail:
            logger.warning(
                "%s: %s", error.reason.name, error.detail, extra={"request_id": call.request_id, "method": call.method}
            )
    elif isinstance(error, Exception):
        logger.error("unexpected failure", exc_info=error, extra={"request_id": call.request_id, "method": call.method})
        error = ServiceError(Reason.INTERNAL, f"Internal error; the server's log has it as {call.request_id}.")
        call.note(error)
    else:
        return None
    return to_status(error, call.request_id, call.last_sequence, call.trailers)


def _open(method: str, context: Any, trust: InboundTrace) -> CallRecord:
    metadata: Sequence[tuple[str, Any]] = context.invocation_metadata() or ()
    parent, links = inbound_trace(metadata, trust, _getter)
    span = _tracer.start_span(
        method,
        context=parent,
        kind=SpanKind.SERVER,
        attributes={semconv.RPC_SYSTEM_NAME: "grpc", semconv.RPC_METHOD: method},
        links=links,
    )
    request_id = _request_id(metadata)
    span.set_attribute(semconv.REQUEST_ID, request_id)
    left_s = remaining_s(context)
    call = CallRecord(method, request_id, time.monotonic(), span, trace.set_span_in_context(span, parent))
    if left_s is not None:
        span.set_attribute(semconv.DEADLINE_S, left_s)
        call.deadline_s = call.received_s + left_s
    return call


def _request_id(metadata: Sequence[tuple[str, Any]]) -> str:
    """Return the caller's own id if it is short visible ASCII, else a new one."""
    for name, value in metadata:
        if name == "x-request-id" and isinstance(value, str) and _is_sane(value):
            return value
    return f"req_{secrets.token_hex(12)}"


def _is_sane(value: str) -> bool:
    return 0 < len(value) <= _MAX_ID_CHARS and all("!" <= c <= "~" for c in value)


def _close(call: CallRecord) -> None:
    if call.on_end is not None:
        call.on_end(call.outcome)
    span = call.span
    if call.last_sequence:
        span.set_attribute(semconv.MESSAGES, call.last_sequence)
    span.set_attribute(semconv.RPC_STATUS_CODE, call.status)
    span.set_attribute(semconv.OUTCOME, call.outcome)
    if call.error is not None:
        span.set_attribute(semconv.ERROR_REASON, call.error.reason.name)
    if call.error_type is not None:
        span.set_attribute(semconv.ERROR_TYPE, call.error_type)
        span.set_status(Status(StatusCode.ERROR, call.error.detail or call.error.reason.name if call.error else None))
    if call.error is not None and not call.is_logged:
        # Refused before it became a generation, which has a line of its own.
        request_logger.info(
            "call %s",
            call.outcome,
            extra={
                "request_id": call.request_id,
                "method": call.method,
                **logged(call.identity),
                "status": call.status,
                "outcome": call.outcome,
                "reason": call.error.reason.name,
                "fields": [violation.field[:_MAX_LOGGED_CHARS] for violation in call.error.violations[:MAX_VIOLATIONS]]
                or None,
            },
        )
    record_rpc(call.method, call.status, time.monotonic() - call.received_s, call.error_type, call.context)
    span.end()
    # It holds the frames that it passed, and those this call and its request: a cycle would keep them for a while.
    call.error = None
