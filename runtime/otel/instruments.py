"""Counters and histograms that cost little where they are recorded.

A request records two dozen values, and the SDK checks, copies and sorts the attributes
of every one, once per reader: more than streaming a dozen tokens costs. Here an
attribute set is looked up as it comes and its numbers are added to, and the points that
the SDK's readers expect are made when they read, with the temporality that they ask for.

Attributes are those of `runtime.metrics`: strings, numbers and truth values, of few
combinations. Past a bound they go to one series that says so, as the specification has it.
Thread-safe.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import Instrument
from opentelemetry.sdk.metrics import Counter, Exemplar, Histogram, UpDownCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricReader,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.trace import SpanContext
from opentelemetry.util.types import Attributes

__all__ = ["RecordedCounter", "RecordedHistogram"]

_MAX_SERIES: Final = 2000
_OVERFLOW: Final = (("otel.metric.overflow", True),)
_DELTA: Final = AggregationTemporality.DELTA

_Key = tuple[tuple[str, Any], ...]


class _Total:
    """What was added since `since_ns`; `told` has what delta readers know of it, and since when."""

    __slots__ = ("since_ns", "told", "value")

    def __init__(self) -> None:
        self.value: float = 0
        self.since_ns = time.time_ns()
        self.told: dict[MetricReader, tuple[float, int]] = {}


class _Buckets:
    """What was recorded since `since_ns`; `examples` has the last sampled value of each bucket."""

    __slots__ = ("counts", "examples", "highest", "lowest", "since_ns", "sum", "told")

    def __init__(self, size: int) -> None:
        self.counts = [0] * size
        self.sum: float = 0
        self.lowest, self.highest = math.inf, -math.inf
        self.since_ns = time.time_ns()
        self.examples: dict[int, tuple[float, int, SpanContext]] = {}
        self.told: dict[MetricReader, tuple[list[int], float, int]] = {}


_Numbers = TypeVar("_Numbers", _Total, _Buckets)


class _Instrument(Generic[_Numbers]):
    """Numbers by attribute set."""

    def __init__(self, name: str, unit: str, description: str, make: Callable[[], _Numbers]) -> None:
        self.name, self.unit, self.description = name, unit, description
        self.lock = Lock()
        self.series: dict[frozenset[tuple[str, Any]], _Numbers] = {}
        self._make: Callable[[], _Numbers] = make
        # The same, as callers write their attributes: no order is looked for but once.
        self._as_written: dict[_Key, _Numbers] = {}

    def of(self, attributes: Attributes) -> _Numbers:
        """Return the numbers of an attribute set; the lock is held."""
        key: _Key = tuple(attributes.items()) if attributes else ()
        numbers = self._as_written.get(key)
        return self._first(key) if numbers is None else numbers

    def _first(self, key: _Key) -> _Numbers:
        found = frozenset(key)
        is_full = found not in self.series and len(self.series) >= _MAX_SERIES
        numbers = self.series.setdefault(frozenset(_OVERFLOW) if is_full else found, self._make())
        if not is_full:
            self._as_written[key] = numbers
        return numbers

    def read(self, reader: MetricReader, now_ns: int) -> Metric | None:
        """Return what `reader` is to be told; None where there is nothing."""
        with self.lock:
            data = self.data(reader, now_ns)
        return Metric(self.name, self.description, self.unit, data) if data.data_points else None

    @abstractmethod
    def data(self, reader: MetricReader, now_ns: int) -> Sum | HistogramData: ...


class RecordedCounter(_Instrument[_Total], metrics.Counter, metrics.UpDownCounter):
    """A counter, or one that also goes down."""

    def __init__(self, name: str, unit: str = "", description: str = "", *, is_monotonic: bool) -> None:
        super().__init__(name, unit, description, _Total)
        self._is_monotonic = is_monotonic
        self._least = 0.0 if is_monotonic else -math.inf

    def add(self, amount: float, attributes: Attributes = None, context: Context | None = None) -> None:
        """Add; what a counter cannot take (less than nothing, no number) is left out."""
        if self._least <= amount < math.inf:
            with self.lock:
                self.of(attributes).value += amount

    def data(self, reader: MetricReader, now_ns: int) -> Sum:
        """Return the points."""
        temporality = _temporality(reader, Counter if self._is_monotonic else UpDownCounter)
        points = []
        for key, total in self.series.items():
            value, since_ns = total.value, total.since_ns
            if temporality is _DELTA:
                before, since_ns = total.told.get(reader, (0, since_ns))
                total.told[reader] = value, now_ns
                value -= before
                if not value:
                    continue
            points.append(NumberDataPoint(dict(key), since_ns, now_ns, value))
        return Sum(points, temporality, self._is_monotonic)


class RecordedHistogram(_Instrument[_Buckets], metrics.Histogram):
    """A histogram with explicit bounds."""

    def __init__(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        bounds: Sequence[float],
        example_of: Callable[[Context | None], SpanContext | None],
    ) -> None:
        super().__init__(name, unit, description, lambda: _Buckets(len(bounds) + 1))
        self._bounds = tuple(bounds)
        self._example_of = example_of
        self._read_ns: dict[MetricReader, int] = {}

    def record(self, amount: float, attributes: Attributes = None, context: Context | None = None) -> None:
        """Record; what is less than nothing, or no number, is left out."""
        if not 0 <= amount < math.inf:
            return
        bucket = bisect_left(self._bounds, amount)
        at = self._example_of(context)
        with self.lock:
            numbers = self.of(attributes)
            numbers.counts[bucket] += 1
            numbers.sum += amount
            if amount < numbers.lowest:
                numbers.lowest = amount
            if amount > numbers.highest:
                numbers.highest = amount
            if at is not None:
                numbers.examples[bucket] = amount, time.time_ns(), at

    def data(self, reader: MetricReader, now_ns: int) -> HistogramData:
        """Return the points. Least and most are of all time, so that an interval has none."""
        temporality = _temporality(reader, Histogram)
        read_ns = self._read_ns.get(reader, 0)
        self._read_ns[reader] = now_ns
        points = []
        for key, numbers in self.series.items():
            counts, total, since_ns = list(numbers.counts), numbers.sum, numbers.since_ns
            least: Any = numbers.lowest
            most: Any = numbers.highest
            if temporality is _DELTA:
                before, total_before, since_ns = numbers.told.get(reader, ([0] * len(counts), 0.0, since_ns))
                numbers.told[reader] = counts, total, now_ns
                counts = [now - then for now, then in zip(counts, before, strict=True)]
                total -= total_before
                least = most = None
                if not any(counts):
                    continue
            points.append(
                HistogramDataPoint(
                    attributes=dict(key),
                    start_time_unix_nano=since_ns,
                    time_unix_nano=now_ns,
                    count=sum(counts),
                    sum=total,
                    bucket_counts=counts,
                    explicit_bounds=self._bounds,
                    min=least,
                    max=most,
                    exemplars=[
                        Exemplar({}, value, time_ns, at.span_id or None, at.trace_id or None)
                        for _, (value, time_ns, at) in sorted(numbers.examples.items())
                        if time_ns >= read_ns
                    ],
                )
            )
        return HistogramData(points, temporality)


def _temporality(reader: MetricReader, kind: type[Instrument]) -> AggregationTemporality:
    """Return the temporality of a kind of instrument that a reader, or its exporter, prefers."""
    told = reader._instrument_class_temporality
    return next(temporality for of, temporality in told.items() if issubclass(of, kind))
