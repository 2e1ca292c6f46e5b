"""One CLIENT span per call, with the OpenTelemetry API alone.

It owns the span's names, when it ends and with which status, and the trace
context that goes on the wire. Without an SDK the spans are no-ops. Nothing
here runs per message.

The names are those of the RPC conventions of 2026-08 (released 1.44).
"""

from __future__ import annotations

from typing import Final

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from headrace._channel import host_and_port
from headrace._version import __version__
from headrace.errors import HeadraceError

__all__ = ["CallSpan", "client_tracer"]

RPC_SYSTEM_NAME: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_REASON: Final = "headrace.error.reason"
TIME_TO_FIRST_DELTA_S: Final = "headrace.stream.time_to_first_delta_s"
STREAM_MESSAGES: Final = "headrace.stream.messages"

# W3C trace context and nothing else: the global propagator would also forward baggage, which may hold anything.
_propagator = TraceContextTextMapPropagator()


def client_tracer(provider: TracerProvider | None) -> Tracer:
    """Return the tracer of this package; None takes the global provider, also one that is set later."""
    return trace.get_tracer("headrace", __version__, provider)


class CallSpan:
    """The span of one call: started by the constructor, ended once by the first of its `end` methods.

    It is never made current, since a stream is read across yields, where a
    detach can land in another context. `context` is the parent; None takes
    the current one.
    """

    __slots__ = ("_span", "metadata")

    def __init__(self, tracer: Tracer, method: str, target: str, context: Context | None = None) -> None:
        attributes: dict[str, AttributeValue] = {RPC_SYSTEM_NAME: "grpc", RPC_METHOD: method}
        address, port = host_and_port(target)
        attributes[SERVER_ADDRESS] = address
        if port is not None:
            attributes[SERVER_PORT] = port
        self._span: trace.Span | None = tracer.start_span(
            method, context=context, kind=SpanKind.CLIENT, attributes=attributes
        )
        carrier: dict[str, str] = {}
        # Injected from this span, so that the server's span becomes its child and not its sibling.
        _propagator.inject(carrier, context=trace.set_span_in_context(self._span, context))
        self.metadata: tuple[tuple[str, str], ...] = tuple(carrier.items())

    def set(self, key: str, value: AttributeValue) -> None:
        """Set an attribute of a span that has not ended."""
        if self._span is not None:
            self._span.set_attribute(key, value)

    def end_ok(self) -> None:
        """End after status OK."""
        self._end(grpc.StatusCode.OK.name)

    def end_cancelled(self) -> None:
        """End a call that this side cancelled: CANCELLED, and not an error, since nothing went wrong."""
        self._end(grpc.StatusCode.CANCELLED.name)

    def end_error(self, error: HeadraceError) -> None:
        """End after any other status. The message stays out: it may quote the request."""
        if self._span is not None:
            self._span.set_attribute(ERROR_TYPE, error.status.name)
            if error.reason:
                self._span.set_attribute(ERROR_REASON, error.reason)
            self._span.set_status(Status(StatusCode.ERROR, error.reason))
        self._end(error.status.name)

    def _end(self, status_code: str) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.set_attribute(RPC_STATUS, status_code)
            span.end()
