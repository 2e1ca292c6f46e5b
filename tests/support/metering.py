"""What the service's global instruments recorded: one in-memory reader for the whole test process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from opentelemetry import metrics
from opentelemetry.sdk.metrics import Counter, Histogram
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

from runtime.otel.meters import RecordingMeterProvider

__all__ = ["Metered", "install_reader", "points_of"]


@cache
def _reader() -> InMemoryMetricReader:
    # Counters and histograms tell what came since they were last read; gauges what is.
    deltas: dict[type, AggregationTemporality] = dict.fromkeys((Counter, Histogram), AggregationTemporality.DELTA)
    reader = InMemoryMetricReader(preferred_temporality=deltas)
    metrics.set_meter_provider(RecordingMeterProvider([reader]))
    return reader


class Metered:
    """The points that were recorded since the last `read`, by name."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader
        self._points: list[tuple[str, Any]] = []

    def read(self) -> None:
        """Take what was recorded since the last time."""
        self._points = list(points_of(self._reader))

    def named(self, name: str) -> list[Any]:
        """Return the points of one metric."""
        return [point for found, point in self._points if found == name]

    def sum(self, name: str) -> float:
        """Return the sum over all points of a counter or gauge, or of the counts of a histogram."""
        return sum(point.count if hasattr(point, "count") else point.value for point in self.named(name))

    def series(self) -> int:
        """Return how many series there are."""
        return len(self._points)


def install_reader() -> Metered:
    """Return the reader, emptied."""
    metered = Metered(_reader())
    metered.read()
    return metered


def points_of(reader: InMemoryMetricReader) -> Iterator[tuple[str, Any]]:
    """Yield every data point with its metric's name."""
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    yield metric.name, point
