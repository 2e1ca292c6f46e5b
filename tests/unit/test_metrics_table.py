"""The table of metrics: fixed names, the names that Prometheus really has, and objectives as edges."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from runtime import metrics, otel, semconv
from runtime.metrics import METRICS, Kind, Metric
from runtime.otel.meters import RecordingMeterProvider
from runtime.slo import Objectives
from runtime.spans import ATTRIBUTES
from tests.support.metering import points_of

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.txt"


def line(metric: Metric) -> str:
    """Return everything of a metric that others build on."""
    attributes = ",".join(metric.attributes) or "-"
    bounds = ",".join(f"{edge:g}" for edge in metric.bounds) or "-"
    return f"{metric.name} {metric.kind.value.replace(' ', '_')} {metric.unit or '-'} {metric.by} {attributes} {bounds}"


def test_names_units_attributes_and_edges_are_what_dashboards_stand_on() -> None:
    # A line that changes here breaks other people's dashboards: say so in the notes of the release.
    assert "".join(f"{line(metric)}\n" for metric in METRICS) == GOLDEN.read_text()


def test_names_are_unique_and_edges_ascend() -> None:
    assert len({metric.name for metric in METRICS}) == len({metric.prometheus for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert bool(metric.bounds) is (metric.kind is Kind.HISTOGRAM)


@pytest.mark.parametrize("metric", METRICS, ids=[metric.name for metric in METRICS])
def test_prometheus_has_the_name_that_the_table_says(metric: Metric) -> None:
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
    provider = RecordingMeterProvider([reader])
    meter = provider.get_meter("test")
    attributes = dict.fromkeys(metric.attributes, "x")
    match metric.kind:
        case Kind.HISTOGRAM:
            metric.histogram(meter).record(1, attributes)
        case Kind.COUNTER:
            metric.counter(meter).add(1, attributes)
        case Kind.UP_DOWN:
            metric.up_down_counter(meter).add(1, attributes)
        case Kind.GAUGE:
            from opentelemetry.metrics import Observation

            metric.gauge(meter, lambda _: [Observation(1, attributes)])
    names = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }
    name = f"{metric.prometheus}_count" if metric.kind is Kind.HISTOGRAM else metric.prometheus
    assert name in names
    assert names[name] == {attribute.replace(".", "_") for attribute in metric.attributes}
    provider.shutdown()


def test_objectives_are_edges_so_that_a_bucket_counts_the_good_ones() -> None:
    reader = InMemoryMetricReader()
    edges = otel._bounds(Objectives(ttft_s=0.42, tpot_s=0.033, e2e_s=17.0, stall_s=1.25))
    provider = RecordingMeterProvider([reader], bounds=edges)
    meter = provider.get_meter("test")
    wanted = {
        metrics.TTFT: 0.42,
        metrics.CLIENT_TTFC: 0.42,
        metrics.TPOT: 0.033,
        metrics.DURATION: 17.0,
        metrics.MAX_GAP: 1.25,
    }
    for metric, edge in wanted.items():
        metric.histogram(meter).record(edge)
    bounds = {name: list(point.explicit_bounds) for name, point in points_of(reader)}
    for metric, edge in wanted.items():
        assert bounds[metric.name] == sorted({*metric.bounds, edge})
    # One that is an edge already changes nothing.
    assert otel._bounds(Objectives(ttft_s=0.5, tpot_s=0.1, e2e_s=None, stall_s=2.0)) == {}
    provider.shutdown()


def test_no_attribute_of_a_metric_is_a_caller_s_text() -> None:
    allowed_only_here = {
        semconv.SLO_NAME,
        semconv.PRIORITY,
        semconv.LIMIT,
        semconv.LEDGER_RECORD,
        semconv.CONTRACT,
        semconv.STOP_OUTCOME,
        semconv.SAMPLING_DECISION,
        semconv.DISCONNECT_PHASE,
        semconv.GEN_AI_TOKEN_TYPE,
    }
    used = {name for metric in METRICS for name in metric.attributes}
    assert used <= set(ATTRIBUTES) | allowed_only_here
    callers = {semconv.TENANT, semconv.SUBJECT, semconv.ENDUSER_ID, semconv.REQUEST_ID, semconv.URL_PATH}
    assert not used & (callers | {semconv.USER_AGENT, semconv.GENERATION_ID, semconv.GEN_AI_RESPONSE_ID})
