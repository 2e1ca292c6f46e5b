"""OpenTelemetry set-up: the only module that imports the SDK and an exporter.

Everything else uses the API, which does nothing until `configure` installs
providers. Where the spans go is decided by the OTEL_* variables that every
OpenTelemetry user knows; without OTEL_EXPORTER_OTLP_ENDPOINT nothing is
recorded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from dataclasses import dataclass

from opentelemetry import metrics, propagate, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["Telemetry", "configure"]

logger = logging.getLogger(__name__)

_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
# A collector that is gone must not hold up the end of the process.
_FLUSH_TIMEOUT_MS = 3000


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The providers of this process; empty when nothing is exported."""

    tracers: trace.TracerProvider | None = None
    meters: metrics.MeterProvider | None = None

    async def shutdown(self) -> None:
        """Export what is left and end the exporters; gives up after a few seconds.

        In a thread of its own, and a daemon: the SDK retries for long when a
        collector is gone, and neither the loop nor the process may wait for it.
        """
        if self.tracers is None and self.meters is None:
            return
        flush = threading.Thread(target=self._flush, name="telemetry flush", daemon=True)
        flush.start()
        give_up_s = time.monotonic() + _FLUSH_TIMEOUT_MS / 1000
        while flush.is_alive() and time.monotonic() < give_up_s:  # noqa: ASYNC110 - a thread has no event
            await asyncio.sleep(0.05)
        if flush.is_alive():
            logger.warning("the last spans and metrics could not be exported in time")

    def _flush(self) -> None:
        for provider in (self.tracers, self.meters):
            try:
                provider.force_flush(_FLUSH_TIMEOUT_MS)  # type: ignore[union-attr]
                provider.shutdown()  # type: ignore[union-attr]
            except Exception:
                logger.warning("the last spans or metrics could not be exported", exc_info=True)


def configure(service_name: str, service_version: str) -> Telemetry:
    """Install tracer and meter providers that export over OTLP/gRPC.

    Raises SystemExit with a clear line if OTEL_EXPORTER_OTLP_PROTOCOL asks for
    anything but grpc. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
    OTEL_TRACES_SAMPLER and the exporter's own variables are honoured by the SDK.
    """
    # Only W3C trace context travels: whatever a public caller puts into
    # `baggage` would else be handed on to the engine.
    propagate.set_global_textmap(TraceContextTextMapPropagator())
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not any(os.environ.get(e) for e in _ENDPOINTS):
        return Telemetry()
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    if protocol != "grpc":
        raise SystemExit(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol} is not supported: use grpc (port 4317 at most collectors)"
        )

    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(
        {
            SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", service_name),
            SERVICE_VERSION: service_version,
            SERVICE_INSTANCE_ID: f"{os.uname().nodename}:{os.getpid()}",
        }
    )
    # shutdown_on_exit would block the interpreter's end while a collector is away.
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meters = MeterProvider(
        resource=resource,
        metric_readers=[PeriodicExportingMetricReader(OTLPMetricExporter())],
        shutdown_on_exit=False,
    )
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    return Telemetry(tracers, meters)
