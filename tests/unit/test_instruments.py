"""The service's metrics as they are exported."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from service.backends.base import EngineStop, StopOutcome
from service.telemetry import instruments


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    """The module's own instruments, made again on a provider of this test."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    for name, kind in (("_engine_stop", "histogram"), ("_engine_stops", "counter"), ("_wasted_tokens", "counter")):
        proxy = getattr(instruments, name)
        monkeypatch.setattr(instruments, name, getattr(meter, f"create_{kind}")(proxy._name, unit=proxy._unit))
    return reader


def points(reader: InMemoryMetricReader) -> dict[str, dict[str, float]]:
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, dict[str, float]] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            assert point.attributes is not None
            key = f"{point.attributes['headrace.engine.contract']}/{point.attributes['headrace.engine.stop_outcome']}"
            found.setdefault(metric.name, {})[key] = getattr(point, "value", None) or getattr(point, "sum", 0)
    return found


def test_stops_are_counted_by_contract_and_outcome_and_only_answers_have_a_duration(
    reader: InMemoryMetricReader,
) -> None:
    instruments.record_engine_stop("m", EngineStop("ensemble", StopOutcome.ACKNOWLEDGED, 0.004, 2))
    instruments.record_engine_stop("m", EngineStop("bls", StopOutcome.UNREACHABLE, None, 300))
    instruments.record_engine_stop("m", EngineStop("bls", StopOutcome.UNREACHABLE, None, 100))
    assert points(reader) == {
        "headrace.server.engine_stops": {"ensemble/acknowledged": 1, "bls/unreachable": 2},
        "headrace.server.wasted_tokens": {"ensemble/acknowledged": 2, "bls/unreachable": 400},
        "headrace.server.engine_stop.duration": {"ensemble/acknowledged": 0.004},
    }
