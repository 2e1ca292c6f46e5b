"""Own counters and histograms tell every reader of the SDK what the SDK's own would have told it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter, MeterProvider, Observation
from opentelemetry.sdk.metrics import Counter, Histogram, UpDownCounter
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from prometheus_client import CollectorRegistry, generate_latest

from runtime.otel.meters import RecordingMeterProvider
from tests.support.metering import points_of

# What neither takes, the SDK says in its log each time.
pytestmark = pytest.mark.usefixtures("quiet_sdk")

BOUNDS = (0.1, 0.5, 1.0)
ATTRIBUTES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", "y"]), max_size=3)
AMOUNTS = st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5, 0.75, 1.0, 7.0, -1.0, math.inf, math.nan])
STEPS = st.lists(
    st.one_of(st.just("read"), st.tuples(st.sampled_from(["counter", "up_down", "histogram"]), AMOUNTS, ATTRIBUTES)),
    max_size=40,
)
DELTA = AggregationTemporality.DELTA


@pytest.fixture(scope="module")
def quiet_sdk() -> Iterator[None]:
    logger = logging.getLogger("opentelemetry.sdk.metrics")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def instruments(meter: Meter) -> Mapping[str, Callable[..., None]]:
    meter.create_observable_gauge("gauge", [lambda _: [Observation(3, {"a": "x"})]])
    return {
        "counter": meter.create_counter("counter", "{thing}", "Things.").add,
        "up_down": meter.create_up_down_counter("up_down").add,
        "histogram": meter.create_histogram("histogram", "s", explicit_bucket_boundaries_advisory=BOUNDS).record,
    }


def both(make: Callable[[], MetricReader]) -> Sequence[tuple[Any, Mapping[str, Callable[..., None]]]]:
    """Return a reader and recorders of each: ours, and the SDK's."""
    found = []
    for provide in (RecordingMeterProvider, lambda readers: SdkMeterProvider(readers, shutdown_on_exit=False)):
        reader = make()
        provider: MeterProvider = provide([reader])
        found.append((reader, instruments(provider.get_meter("test", "1"))))
    return found


def told(reader: InMemoryMetricReader, *, with_edges: bool) -> dict[tuple[str, frozenset[Any]], Any]:
    """Return what a reader was told, without times."""
    found: dict[tuple[str, frozenset[Any]], Any] = {}
    for name, point in points_of(reader):
        values: Any = getattr(point, "value", None)
        if values is None:
            values = (point.count, pytest.approx(point.sum), tuple(point.bucket_counts), tuple(point.explicit_bounds))
            values += ((point.min, point.max),) if with_edges else ()
        if values != pytest.approx(0):  # a delta of nothing may be told or not
            found[name, frozenset(point.attributes.items())] = pytest.approx(values) if name != "histogram" else values
    return found


@pytest.mark.parametrize("is_delta", [False, True], ids=["cumulative", "delta"])
@given(steps=STEPS)
def test_readers_are_told_what_the_sdk_would_have_told_them(is_delta: bool, steps: list[Any]) -> None:
    deltas: dict[type, AggregationTemporality] = dict.fromkeys((Counter, Histogram, UpDownCounter), DELTA)
    ours, theirs = both(lambda: InMemoryMetricReader(preferred_temporality=deltas if is_delta else None))
    for step in [*steps, "read"]:
        if step == "read":
            # Least and most of an interval are not kept.
            assert told(ours[0], with_edges=not is_delta) == told(theirs[0], with_edges=not is_delta)
        else:
            name, amount, attributes = step
            for _, recorders in (ours, theirs):
                recorders[name](amount, attributes)


def test_prometheus_reads_the_same_page() -> None:
    registries: list[CollectorRegistry] = []

    def make() -> MetricReader:
        registries.append(CollectorRegistry())
        return PrometheusMetricReader(scope_info_enabled=False, registry=registries[-1])

    for _, recorders in both(make):
        recorders["counter"](3, {"a": "x"})
        recorders["up_down"](-1)
        recorders["histogram"](0.3, {"a": "x", "b": "y"})
        recorders["histogram"](0.3, {"b": "y", "a": "x"})
    ours, theirs = (sorted(generate_latest(registry).decode().splitlines()) for registry in registries)
    assert ours == theirs
    assert 'histogram_seconds_count{a="x",b="y"} 2.0' in ours


def test_each_reader_has_its_own_interval() -> None:
    readers = [InMemoryMetricReader(preferred_temporality={Counter: DELTA, Histogram: DELTA}) for _ in range(2)]
    record = instruments(RecordingMeterProvider(readers).get_meter("test"))
    counts = []
    for number in range(3):
        record["counter"](1)
        record["histogram"](0.2)
        for reader in readers[: 1 + number % 2]:  # the second one reads less often
            points = dict(points_of(reader))
            counts.append((points["counter"].value, points["histogram"].count))
            assert points["histogram"].start_time_unix_nano < points["histogram"].time_unix_nano
    assert counts == [(1, 1), (1, 1), (2, 2), (1, 1)]


def test_what_begins_behind_a_read_begins_then() -> None:
    reader = InMemoryMetricReader()
    record = instruments(RecordingMeterProvider([reader]).get_meter("test"))
    record["counter"](1, {"a": "x"})
    first = dict(points_of(reader))["counter"]
    record["counter"](1, {"a": "y"})
    by_attribute = {point.attributes["a"]: point for name, point in points_of(reader) if name == "counter"}
    assert by_attribute["x"].start_time_unix_nano == first.start_time_unix_nano
    assert by_attribute["y"].start_time_unix_nano > first.start_time_unix_nano


def in_trace(span_id: int, *, is_sampled: bool) -> Any:
    flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
    span = NonRecordingSpan(SpanContext(0xABC, span_id, is_remote=False, trace_flags=flags))
    return trace.set_span_in_context(span)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [("trace_based", [(0.2, 2), (0.7, 3)]), ("always_off", []), ("always_on", [(0.3, 9), (0.7, 3)])],
)
def test_exemplars_are_the_last_sampled_values_of_each_bucket(asked: str, wanted: list[Any]) -> None:
    reader = InMemoryMetricReader()
    record = instruments(RecordingMeterProvider([reader], exemplar_filter=asked).get_meter("test"))["histogram"]
    record(0.15, context=in_trace(1, is_sampled=True))
    record(0.2, context=in_trace(2, is_sampled=True))
    record(0.7, context=in_trace(3, is_sampled=True))
    record(0.3, context=in_trace(9, is_sampled=False))
    (point,) = (point for name, point in points_of(reader) if name == "histogram")
    assert [(one.value, one.span_id) for one in point.exemplars] == wanted
    assert all(one.trace_id == 0xABC for one in point.exemplars)
    (again,) = (point for name, point in points_of(reader) if name == "histogram")
    assert again.exemplars == []  # of what came since
    assert again.count == 4


def test_series_are_bounded() -> None:
    reader = InMemoryMetricReader()
    record = instruments(RecordingMeterProvider([reader]).get_meter("test"))["counter"]
    for number in range(2500):
        record(1, {"a": number})
    points = [point for name, point in points_of(reader) if name == "counter"]
    (rest,) = (point for point in points if point.attributes == {"otel.metric.overflow": True})
    assert len(points) == 2001
    assert rest.value == 500


def test_nothing_is_lost_between_threads() -> None:
    reader = InMemoryMetricReader()
    record = instruments(RecordingMeterProvider([reader]).get_meter("test"))

    def work() -> None:
        for _ in range(5000):
            record["counter"](1, {"a": "x"})
            record["histogram"](0.2, {"a": "x"})

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    points = dict(points_of(reader))
    assert points["counter"].value == points["histogram"].count == 20_000


def test_a_name_is_one_instrument_and_the_resource_is_told() -> None:
    reader = InMemoryMetricReader()
    provider = RecordingMeterProvider([reader], Resource({"service.name": "one"}), {"histogram": [2.0]})
    for _ in range(2):
        instruments(provider.get_meter("test"))["histogram"](1)
    data = reader.get_metrics_data()
    assert data is not None
    (of_resource,) = data.resource_metrics
    (of_scope,) = of_resource.scope_metrics  # a collector may keep one of each name
    assert {metric.name for metric in of_scope.metrics} == {"gauge", "histogram"}
    assert of_resource.resource.attributes["service.name"] == "one"
    found = dict(points_of(reader))
    assert found["histogram"].count == 2
    assert list(found["histogram"].explicit_bounds) == [2.0]
    provider.force_flush()
    provider.shutdown()
