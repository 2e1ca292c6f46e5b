"""A meter provider whose counters and histograms cost little; all else of metrics is the SDK's.

Observed instruments, readers and exporters are the SDK's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackT
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext
from opentelemetry.util.types import Attributes

from runtime.otel.instruments import RecordedCounter, RecordedHistogram
from runtime.otel.span import RecordedSpan, current_span

__all__ = ["RecordingMeterProvider"]


class _Meter(metrics.Meter):
    """Makes its own counters and histograms; what is observed is of the SDK's meter."""

    def __init__(
        self,
        inner: metrics.Meter,
        scope: InstrumentationScope,
        bounds: Mapping[str, Sequence[float]],
        example_of: Callable[[Context | None], SpanContext | None],
    ) -> None:
        super().__init__(scope.name, scope.version, scope.schema_url)
        self._inner = inner
        self._scope = scope
        self._bounds = bounds
        self._example_of = example_of
        self._instruments: dict[str, RecordedCounter | RecordedHistogram] = {}

    def read(self, reader: MetricReader, now_ns: int) -> ScopeMetrics | None:
        """Return what `reader` is to be told; None where there is nothing."""
        instruments = tuple(self._instruments.values())
        told = [metric for one in instruments if (metric := one.read(reader, now_ns)) is not None]
        return ScopeMetrics(self._scope, told, self._scope.schema_url or "") if told else None

    def create_counter(self, name: str, unit: str = "", description: str = "") -> metrics.Counter:
        """Return a counter."""
        return self._instruments.setdefault(name, RecordedCounter(name, unit, description, is_monotonic=True))  # type: ignore[return-value]

    def create_up_down_counter(self, name: str, unit: str = "", description: str = "") -> metrics.UpDownCounter:
        """Return a counter that also goes down."""
        return self._instruments.setdefault(name, RecordedCounter(name, unit, description, is_monotonic=False))  # type: ignore[return-value]

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> metrics.Histogram:
        """Return a histogram; its bounds are those of the provider for this name, or else the given ones."""
        bounds = self._bounds.get(name) or explicit_bucket_boundaries_advisory or ()
        histogram = RecordedHistogram(name, unit, description, bounds=bounds, example_of=self._example_of)
        return self._instruments.setdefault(name, histogram)  # type: ignore[return-value]

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Any:
        """Return the SDK's."""
        return self._inner.create_gauge(name, unit, description)

    def create_observable_gauge(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> metrics.ObservableGauge:
        """Return the SDK's."""
        return self._inner.create_observable_gauge(name, callbacks, unit, description)

    def create_observable_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> metrics.ObservableCounter:
        """Return the SDK's."""
        return self._inner.create_observable_counter(name, callbacks, unit, description)

    def create_observable_up_down_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> metrics.ObservableUpDownCounter:
        """Return the SDK's."""
        return self._inner.create_observable_up_down_counter(name, callbacks, unit, description)


class RecordingMeterProvider(metrics.MeterProvider):
    """A meter provider over the SDK's. `bounds` are the bucket edges of histograms by name, before their own.

    `exemplar_filter` is trace_based, always_on or always_off.
    """

    def __init__(
        self,
        readers: Sequence[MetricReader],
        resource: Resource | None = None,
        bounds: Mapping[str, Sequence[float]] | None = None,
        exemplar_filter: str = "trace_based",
    ) -> None:
        self._resource = resource or Resource.create({})
        self._bounds = bounds or {}
        self._example_of = _example_of(exemplar_filter)
        self._meters: dict[tuple[str, str | None, str | None], _Meter] = {}
        # shutdown_on_exit would block the interpreter's end while a collector is away.
        self._inner = MeterProvider(readers, self._resource, shutdown_on_exit=False)
        for reader in readers:
            self._join(reader)

    def _join(self, reader: MetricReader) -> None:
        """Let a reader of the SDK read what is recorded here besides.

        A provider gives its readers a function to read it by; the SDK has no public
        place for a second source. A test holds this to each version of it.
        """
        observed: Any = reader._collect  # whose type is said wrongly

        def collect(by: MetricReader, timeout_millis: float = 10_000) -> MetricsData | None:
            return self._with_recorded(observed(by, timeout_millis=timeout_millis), by)

        reader._set_collect_callback(collect)  # type: ignore[arg-type]

    def _with_recorded(self, data: MetricsData | None, reader: MetricReader) -> MetricsData | None:
        """Return what the SDK tells with what is recorded here: each scope once, since collectors go by its name."""
        now_ns = time.time_ns()
        told = [scope for meter in list(self._meters.values()) if (scope := meter.read(reader, now_ns)) is not None]
        if not told:
            return data
        observed = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        scopes: dict[tuple[str, ...], ScopeMetrics] = {}
        for one in (*observed, *told):
            name = (one.scope.name, one.scope.version or "", one.scope.schema_url or "")
            before = scopes[name].metrics if name in scopes else ()
            scopes[name] = ScopeMetrics(one.scope, [*before, *one.metrics], one.schema_url)
        return MetricsData([ResourceMetrics(self._resource, list(scopes.values()), self._resource.schema_url)])

    def get_meter(
        self,
        name: str,
        version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> metrics.Meter:
        """Return a meter."""
        inner = self._inner.get_meter(name, version, schema_url, attributes)
        scope = InstrumentationScope(name, version or "", schema_url or "", attributes)
        return self._meters.setdefault(
            (name, version, schema_url), _Meter(inner, scope, self._bounds, self._example_of)
        )

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Let every reader read and export."""
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Export what is left, and end the readers."""
        self._inner.shutdown(timeout_millis)


def _example_of(exemplar_filter: str) -> Callable[[Context | None], SpanContext | None]:
    """Return what says whose example a value may be, by the names that the SDK has for that."""
    if exemplar_filter == "always_off":
        return lambda _: None
    return _of_any if exemplar_filter == "always_on" else _of_sampled


def _of_any(context: Context | None) -> SpanContext:
    return current_span(context).get_span_context()


def _of_sampled(context: Context | None) -> SpanContext | None:
    span = current_span(context)
    if isinstance(span, RecordedSpan) and not span.request.flags.sampled:
        return None  # without making its context
    at = span.get_span_context()
    return at if at.trace_flags.sampled else None
