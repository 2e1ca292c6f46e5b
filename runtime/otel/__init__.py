"""OpenTelemetry set-up: the only package that imports the SDK and exporters.

Everything else uses the API, which does nothing until `configure` installs
providers. Where spans and metrics are sent is decided by the OTEL_* variables that
every OpenTelemetry user knows; without OTEL_EXPORTER_OTLP_ENDPOINT nothing is sent,
and without a metrics port nothing can be read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, propagate, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runtime import metrics as table
from runtime import semconv
from runtime.slo import E2E, TPOT, TTFT, Objectives

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from runtime.otel.scrape import MetricsPort

__all__ = ["Telemetry", "TelemetryError", "configure"]

logger = logging.getLogger(__name__)

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
# A collector that is gone must not hold up the end of the process.
_FLUSH_TIMEOUT_MS = 3000


class TelemetryError(Exception):
    """Telemetry cannot be set up as asked; the text is for whoever started the process."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The providers of this process; empty where nothing is sent and nothing can be read."""

    tracers: trace.TracerProvider | None = None
    meters: metrics.MeterProvider | None = None
    port: MetricsPort | None = None

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
        if self.port is not None:
            self.port.close()
        for provider in (self.tracers, self.meters):
            if provider is None:
                continue
            try:
                provider.force_flush(_FLUSH_TIMEOUT_MS)  # type: ignore[union-attr]
                provider.shutdown()  # type: ignore[union-attr]
            except Exception:
                logger.warning("the last spans or metrics could not be exported", exc_info=True)


def configure(
    service_name: str,
    service_version: str,
    *,
    objectives: Objectives | None = None,
    keep_notable: bool = True,
    metrics_host: str = "127.0.0.1",
    metrics_port: int | None = None,
) -> Telemetry:
    """Install tracer and meter providers that export over OTLP/gRPC, and open the port for Prometheus.

    `keep_notable` exports the spans of slow, stalled and failed requests also where
    the sampler drops them. Raises TelemetryError with a clear line if OTEL_EXPORTER_OTLP_PROTOCOL asks
    for anything but grpc, OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER for anything but otlp or none, or the port
    cannot be had. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
    OTEL_TRACES_SAMPLER and the exporter's own variables are honoured by the SDK.
    """
    # Only W3C trace context travels: whatever a public caller puts into
    # `baggage` would else be handed on to the engine.
    propagate.set_global_textmap(TraceContextTextMapPropagator())
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    sends_traces = not is_off and _sends(_TRACES_ENDPOINT, "OTEL_TRACES_EXPORTER")
    sends_metrics = not is_off and _sends(_METRICS_ENDPOINT, "OTEL_METRICS_EXPORTER")
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    if (sends_traces or sends_metrics) and protocol != "grpc":
        raise TelemetryError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol} is not supported: use grpc (port 4317 at most collectors)"
        )
    if not (sends_traces or sends_metrics or metrics_port is not None):
        return Telemetry()

    from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource

    resource = Resource.create(
        {
            SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", service_name),
            SERVICE_VERSION: service_version,
            SERVICE_INSTANCE_ID: f"{os.uname().nodename}:{os.getpid()}",
        }
    )
    readers: list[Any] = []
    port: MetricsPort | None = None
    if metrics_port is not None:
        reader, port = _scraped(metrics_host, metrics_port)
        readers.append(reader)
    if sends_metrics:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    meters: metrics.MeterProvider | None = None
    if readers:
        from runtime.otel.meters import RecordingMeterProvider

        asked = os.environ.get("OTEL_METRICS_EXEMPLAR_FILTER", "trace_based").strip().lower()
        meters = RecordingMeterProvider(readers, resource, _bounds(objectives or Objectives()), asked)
        metrics.set_meter_provider(meters)
    tracers: trace.TracerProvider | None = None
    if sends_traces:
        tracers = _tracers(resource, keep_notable=keep_notable)
        trace.set_tracer_provider(tracers)
    if port is not None:
        logger.info("metrics on http://%s:%d/metrics", metrics_host, port.port)
    return Telemetry(tracers, meters, port)


def _sends(endpoint: str, exporter: str) -> bool:
    """Return whether one signal is sent, by its endpoint's and its exporter's variable."""
    asked = os.environ.get(exporter, "").strip().lower() or "otlp"
    if asked not in {"otlp", "none"}:
        raise TelemetryError(f"{exporter}={asked} is not supported: use otlp or none")
    return asked == "otlp" and bool(os.environ.get(_ENDPOINT) or os.environ.get(endpoint))


def _scraped(host: str, port: int) -> tuple[Any, MetricsPort]:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry

    from runtime.otel.scrape import MetricsPort

    registry = CollectorRegistry()
    try:
        opened = MetricsPort(host, port, registry)
    except OSError as error:
        raise TelemetryError(f"--metrics-port {port}: {error.strerror or error}") from None
    return PrometheusMetricReader(scope_info_enabled=False, registry=registry), opened


def _tracers(resource: Resource, *, keep_notable: bool) -> trace.TracerProvider:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    from runtime.otel.tail import Tail
    from runtime.otel.tracers import RecordingTracerProvider

    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)  # the sampler that OTEL_TRACES_SAMPLER names
    exporting = BatchSpanProcessor(OTLPSpanExporter())
    tracers.add_span_processor(exporting)
    if not keep_notable or tracers.sampler is ALWAYS_ON:
        return RecordingTracerProvider(tracers, exporting)
    decided = table.TRACES.counter(metrics.get_meter("headrace.telemetry"))
    told = {name: {semconv.SAMPLING_DECISION: name} for name in ("sampled", "kept", "dropped", "lost")}

    def count(name: str) -> None:
        decided.add(1, told[name])

    return RecordingTracerProvider(tracers, exporting, Tail(count), count)


def _bounds(objectives: Objectives) -> dict[str, Sequence[float]]:
    """Return bucket edges with every objective among those of its histogram: a bucket counts exactly the good ones."""
    bounds: dict[str, Sequence[float]] = {}
    for metric, name in (
        (table.TTFT, TTFT),
        (table.CLIENT_TTFC, TTFT),
        (table.TPOT, TPOT),
        (table.DURATION, E2E),
        (table.MAX_GAP, "stall"),
    ):
        edge = objectives.edges.get(name)
        if edge is not None and edge not in metric.bounds:
            bounds[metric.name] = sorted((*metric.bounds, edge))
    return bounds
