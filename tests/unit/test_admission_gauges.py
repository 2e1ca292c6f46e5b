"""What the gauges show of the slots and lines of each model."""

from __future__ import annotations

import gc

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from runtime import semconv
from service.admission.limits import AdmissionLimits
from service.admission.slots import Slots
from service.core.request import Priority
from service.telemetry import instruments


def shown(reader: InMemoryMetricReader, model: str) -> dict[str, dict[str, int | float]]:
    """Return metric → class → number, of one model: others may be alive from other tests."""
    data = reader.get_metrics_data()
    found: dict[str, dict[str, int | float]] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
        for point in metric.data.data_points:
            attributes = dict(point.attributes or {})
            if attributes[semconv.GEN_AI_REQUEST_MODEL] == model:
                found.setdefault(metric.name, {})[str(attributes[semconv.PRIORITY])] = point.value
    return found


def test_slots_and_lines_are_shown_by_model_and_class_until_the_model_is_gone() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    for name, read in (
        (semconv.METRIC_QUEUE_SIZE, instruments.observe_queue_size),
        (semconv.METRIC_SLOTS_USED, instruments.observe_slots_used),
        (semconv.METRIC_SLOTS_LIMIT, instruments.observe_slots_limit),
    ):
        meter.create_observable_gauge(name, [read])
    slots = Slots(AdmissionLimits(running=4, reserved=1))
    instruments.watch_slots("gauged", slots)
    tickets = [
        slots.enter(count, priority=priority)
        for count, priority in ((2, Priority.INTERACTIVE), (1, Priority.BATCH), (4, Priority.INTERACTIVE))
    ]
    tickets += [slots.enter(priority=Priority.BATCH) for _ in range(3)]
    assert shown(reader, "gauged") == {
        "headrace.server.queue.size": {"interactive": 1, "batch": 3},
        "headrace.server.slots.used": {"interactive": 2, "batch": 1},
        "headrace.server.slots.limit": {"interactive": 4, "batch": 3},
    }
    for ticket in tickets:
        ticket.leave()
    assert shown(reader, "gauged")["headrace.server.slots.used"] == {"interactive": 0, "batch": 0}
    del slots, tickets, ticket
    gc.collect()
    assert shown(reader, "gauged") == {}
