"""What a caller's trace is to our own span: the same rule at the gateway and at the service."""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, default_getter
from opentelemetry.trace import Link, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runtime.telemetry_settings import InboundTrace

__all__ = ["inbound_trace"]

_propagator = TraceContextTextMapPropagator()


def inbound_trace(
    carrier: Any, trust: InboundTrace, getter: Getter[Any] = default_getter
) -> tuple[Context, list[Link]]:
    """Return the context that our span hangs under, and the links that only point to the caller's."""
    if trust == "never":
        return Context(), []
    caller = _propagator.extract(carrier, context=Context(), getter=getter)
    if trust == "parent":
        return caller, []
    span_context = get_current_span(caller).get_span_context()
    return Context(), [Link(span_context)] if span_context.is_valid else []
