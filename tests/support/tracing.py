"""One in-memory span exporter for the whole test process: a provider can be set only once."""

from __future__ import annotations

from functools import cache

from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runtime.otel.tracers import RecordingTracerProvider

__all__ = ["install_exporter"]


@cache
def _exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider, exporting = TracerProvider(shutdown_on_exit=False), SimpleSpanProcessor(exporter)
    provider.add_span_processor(exporting)
    trace.set_tracer_provider(RecordingTracerProvider(provider, exporting))
    propagate.set_global_textmap(TraceContextTextMapPropagator())
    return exporter


def install_exporter() -> InMemorySpanExporter:
    """Return the exporter, empty."""
    exporter = _exporter()
    exporter.clear()
    return exporter
