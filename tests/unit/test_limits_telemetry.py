"""What metrics say of limits."""

from __future__ import annotations

import pytest
from opentelemetry.metrics import CallbackOptions
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from service.telemetry import limits


def test_refusals_are_counted_by_limit_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    monkeypatch.setattr(limits, "_limited", meter.create_counter("headrace.server.limited"))
    for limit in ("tokens_per_day", "tokens_per_day", "requests_per_minute"):
        limits.record_limited(limit, "m")
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    found = {
        (point.attributes or {}).get("headrace.limit"): getattr(point, "value", None)
        for point in metric.data.data_points
        if (point.attributes or {}).get("gen_ai.request.model") == "m"
    }
    assert found == {"tokens_per_day": 2, "requests_per_minute": 1}


def test_whether_replicas_count_together_is_told_where_there_is_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_is_shared", [])

    def values() -> list[float]:
        return [observation.value for observation in limits.observe_shared(CallbackOptions())]

    assert values() == []
    limits.record_shared(True)
    assert values() == [1]
    limits.record_shared(False)
    assert values() == [0]
