"""What is recorded of an exchange: one span, a few metrics, one log line. Nothing per event.

Uses the OpenTelemetry API only. Names of models and routes on metrics come from
the service and from route templates, never from the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, format_trace_id
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers
from starlette.types import Scope

from gateway.exchange import Exchange
from gateway.openai.answers import GenerationReader
from headrace.v1 import generation_pb2 as gen
from runtime import metrics as table
from runtime import semconv
from runtime.inbound import inbound_trace
from runtime.slo import KEEP_TRAILER, TIMING_TRAILER, Objectives, keep_reason
from runtime.telemetry_settings import InboundTrace

__all__ = ["GatewayTelemetry"]

access_log = logging.getLogger("gateway.requests")

_KNOWN_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_PROBES: Final = frozenset({"/healthz", "/readyz"})
_OTHER: Final = "_OTHER"

Attributes = dict[str, AttributeValue]


class GatewayTelemetry:
    """Tracer and instruments of the gateway; providers are the global ones unless given."""

    def __init__(
        self,
        trust_inbound_trace: InboundTrace,
        objectives: Objectives | None = None,
        *,
        tracers: trace.TracerProvider | None = None,
        meters: metrics.MeterProvider | None = None,
    ) -> None:
        self._trust = trust_inbound_trace
        self._objectives = objectives or Objectives()
        self._tracer = trace.get_tracer("headrace.gateway", tracer_provider=tracers)
        meter = metrics.get_meter("headrace.gateway", meter_provider=meters)
        self._http_duration = table.HTTP_DURATION.histogram(meter)
        self._active = table.HTTP_ACTIVE.up_down_counter(meter)
        self._duration = table.CLIENT_DURATION.histogram(meter)
        self._ttfc = table.CLIENT_TTFC.histogram(meter)
        self._tokens = table.CLIENT_TOKENS.histogram(meter)
        self._outcomes = table.GATEWAY_GENERATIONS.counter(meter)
        self._disconnects = table.DISCONNECTS.counter(meter)

    def start(self, scope: Scope, headers: Headers) -> tuple[Span, Context]:
        """Start the SERVER span of a request; return it and the context that holds it."""
        parent, links = inbound_trace(headers, self._trust)
        method = _method(scope)
        attributes: Attributes = {
            semconv.HTTP_REQUEST_METHOD: method,
            semconv.URL_PATH: scope["path"][:256],
            semconv.URL_SCHEME: scope["scheme"],
        }
        if agent := headers.get("user-agent"):
            attributes[semconv.USER_AGENT] = agent[:256]
        # Never made current: a context that is attached in one task must not be
        # detached in another. It is handed on instead.
        span = self._tracer.start_span(
            method if method != _OTHER else "HTTP", parent, SpanKind.SERVER, attributes=attributes, links=links
        )
        self._active.add(1, {semconv.HTTP_REQUEST_METHOD: method})
        return span, trace.set_span_in_context(span, parent)

    def end(self, scope: Scope, exchange: Exchange, span: Span, route: str | None) -> None:
        """End the span and record the request. `route` is the template, None if no route matched."""
        duration_s = exchange.elapsed_s()
        method = _method(scope)
        status = exchange.status if exchange.status is not None else 499
        error_type = _error_type(exchange, status)
        http: Attributes = {
            semconv.HTTP_REQUEST_METHOD: method,
            semconv.URL_SCHEME: scope["scheme"],
            semconv.HTTP_STATUS_CODE: status,
        }
        if route is not None:
            http[semconv.HTTP_ROUTE] = route
            span.update_name(f"{method} {route}")
        if error_type is not None:
            http[semconv.ERROR_TYPE] = error_type
        self._active.add(-1, {semconv.HTTP_REQUEST_METHOD: method})
        self._http_duration.record(duration_s, http, context=exchange.context)
        span.set_attributes({**http, semconv.REQUEST_ID: exchange.request_id, semconv.OUTCOME: exchange.outcome})
        if exchange.error is not None and exchange.error.reason is not None:
            span.set_attribute(semconv.ERROR_REASON, exchange.error.reason)
        if error_type is not None:
            span.set_status(StatusCode.ERROR, error_type)
        if (keep := self._keep_reason(exchange, error_type)) is not None:
            span.set_attribute(semconv.KEEP, keep)
        self._end_generation(exchange, span, duration_s, error_type)
        span.end()
        level = logging.DEBUG if route in _PROBES else logging.INFO
        if access_log.isEnabledFor(level):
            access_log.log(level, "request", extra=_log_fields(scope, exchange, span, route, status, duration_s))

    def _keep_reason(self, exchange: Exchange, error_type: str | None) -> str | None:
        """Return why this trace is worth to be kept: as the service says, or as it was seen from here."""
        if (told := exchange.trailers.get(KEEP_TRAILER)) is not None:
            return told
        has_judged = TIMING_TRAILER in exchange.trailers  # the service, by its own clock, and it would have said so
        is_slow = False
        limit_s, first_s, call = self._objectives.ttft_s, exchange.first_output_s, exchange.call
        max_gap_s = exchange.max_gap_s
        if first_s is not None and exchange.outcome == "client_cancelled":
            max_gap_s = max(max_gap_s, exchange.elapsed_s() - exchange.last_output_s)  # they left waiting
        is_promised = call is not None and call.stream and call.request.priority != gen.PRIORITY_BATCH
        if is_promised and not has_judged and limit_s is not None:
            # A client who leaves before the first output has waited for it until then.
            waited_s = exchange.elapsed_s() if first_s is None and exchange.outcome == "client_cancelled" else first_s
            is_slow = waited_s is not None and waited_s > limit_s
        return keep_reason(
            {"ttft": not is_slow},
            failed=error_type is not None,
            max_gap_s=0.0 if has_judged else max_gap_s,
            stall_s=self._objectives.stall_s,
        )

    def _end_generation(self, exchange: Exchange, span: Span, duration_s: float, error_type: str | None) -> None:
        call, reader = exchange.call, exchange.reader
        if call is None or reader is None:
            return
        generation: Attributes = {
            semconv.GEN_AI_OPERATION: call.endpoint.value,
            semconv.GEN_AI_PROVIDER: "headrace",
            # The caller's word for the model may be anything; the service's is one of few.
            semconv.GEN_AI_RESPONSE_MODEL: reader.model if reader.has_started else _OTHER,
        }
        self._outcomes.add(
            1,
            {semconv.GEN_AI_OPERATION: call.endpoint.value, semconv.OUTCOME: exchange.outcome},
            context=exchange.context,
        )
        if exchange.outcome == "client_cancelled":
            phase = "before_first_output" if exchange.first_output_s is None else "after_first_output"
            self._disconnects.add(1, {semconv.GEN_AI_OPERATION: call.endpoint.value, semconv.DISCONNECT_PHASE: phase})
        failed: Attributes = {} if error_type is None else {semconv.ERROR_TYPE: error_type}
        self._duration.record(duration_s, {**generation, **failed}, context=exchange.context)
        # Without the operation's name: viewers take a span that has it for the model's own, which is the service's.
        span.set_attributes(
            {
                semconv.GEN_AI_RESPONSE_MODEL: generation[semconv.GEN_AI_RESPONSE_MODEL],
                semconv.GEN_AI_REQUEST_STREAM: call.stream,
            }
        )
        for token_type, tokens in _tokens(reader):
            self._tokens.record(tokens, {**generation, semconv.GEN_AI_TOKEN_TYPE: token_type}, context=exchange.context)
        if (ttft_s := _ttft_s(reader)) is not None:
            # By the service's own clock: what it is less than time_to_first_chunk went by on the way.
            span.set_attribute(semconv.UPSTREAM_TTFT_S, ttft_s)
        if reader.has_started:
            span.set_attribute(semconv.GEN_AI_RESPONSE_ID, reader.generation_id)
        if exchange.first_output_s is not None and call.stream:
            self._ttfc.record(exchange.first_output_s, generation, context=exchange.context)
            span.set_attribute(semconv.GEN_AI_TTFC, exchange.first_output_s)


def _ttft_s(reader: GenerationReader) -> float | None:
    timing = reader.timing
    if timing is None or not timing.HasField("time_to_first_token"):
        return None
    return timing.time_to_first_token.seconds + timing.time_to_first_token.nanos / 1e9


def _tokens(reader: GenerationReader) -> Iterator[tuple[str, int]]:
    usage = reader.usage
    if usage is not None and usage.HasField("prompt_token_count"):
        yield "input", usage.prompt_token_count
    if usage is not None and usage.HasField("output_token_count"):
        yield "output", usage.output_token_count


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _KNOWN_METHODS else _OTHER


def _error_type(exchange: Exchange, status: int) -> str | None:
    """Return what makes this a failure of the server; None for good answers, refusals and callers who left."""
    if exchange.outcome in {"cancelled", "client_cancelled", "rejected"}:
        return None
    if exchange.error is not None:
        return exchange.error.reason or str(exchange.error.http_status)
    if exchange.outcome != "completed":
        return exchange.outcome
    return str(status) if status >= 500 else None


def _log_fields(
    scope: Scope, exchange: Exchange, span: Span, route: str | None, status: int, duration_s: float
) -> Mapping[str, object]:
    context = span.get_span_context()
    fields: dict[str, object] = {
        "request_id": exchange.request_id,
        "trace_id": format_trace_id(context.trace_id) if context.is_valid else None,
        "method": _method(scope),
        "route": route,
        "status": status,
        "duration_ms": round(duration_s * 1000, 1),
        "outcome": exchange.outcome,
        "reason": None if exchange.error is None else exchange.error.reason or exchange.error.code,
    }
    if route is None:
        fields["path"] = scope["path"][:256]
    reader = exchange.reader
    if reader is not None:
        fields["model"] = reader.model if reader.has_started else None
        fields["generation_id"] = reader.generation_id or None
        fields["ttfc_ms"] = None if exchange.first_output_s is None else round(exchange.first_output_s * 1000, 1)
        ttft_s = _ttft_s(reader)
        fields["ttft_ms"] = None if ttft_s is None else round(ttft_s * 1000, 1)  # by the service's clock
        if reader.usage is not None and reader.usage.HasField("output_token_count"):
            fields["output_tokens"] = reader.usage.output_token_count
    return fields
