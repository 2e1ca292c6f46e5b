"""What the gauges show of the slots and lines of each model."""

from __future__ import annotations

import asyncio
import gc

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from runtime import metrics, semconv
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
    for metric, read in (
        (metrics.QUEUE_SIZE, instruments.observe_queue_size),
        (metrics.QUEUE_AGE, instruments.observe_queue_age),
        (metrics.SLOTS_USED, instruments.observe_slots_used),
        (metrics.SLOTS_LIMIT, instruments.observe_slots_limit),
    ):
        metric.gauge(meter, read)
    slots = Slots(AdmissionLimits(running=4, reserved=1))
    instruments.watch_slots("gauged", slots)
    tickets = [
        slots.enter(count, priority=priority)
        for count, priority in ((2, Priority.INTERACTIVE), (1, Priority.BATCH), (4, Priority.INTERACTIVE))
    ]
    tickets += [slots.enter(priority=Priority.BATCH) for _ in range(3)]
    assert shown(reader, "gauged") == {
        "headrace.server.queue.size": {"interactive": 1, "batch": 3},
        "headrace.server.queue.age": {"interactive": 0, "batch": 0},  # nobody awaits these tickets
        "headrace.server.slots.used": {"interactive": 2, "batch": 1},
        "headrace.server.slots.limit": {"interactive": 4, "batch": 3},
    }
    for ticket in tickets:
        ticket.leave()
    assert shown(reader, "gauged")["headrace.server.slots.used"] == {"interactive": 0, "batch": 0}
    del slots, tickets, ticket
    gc.collect()
    assert shown(reader, "gauged") == {}


async def test_the_age_of_a_line_is_that_of_whoever_waits_longest() -> None:
    now_s = 100.0
    slots = Slots(AdmissionLimits(running=1), clock=lambda: now_s)
    running = slots.enter()
    tickets = []
    for arrives_s in (101.0, 103.0):
        now_s = arrives_s
        tickets.append(slots.enter())
    waits = [asyncio.create_task(ticket.wait()) for ticket in tickets]
    await asyncio.sleep(0)
    now_s = 107.5
    assert (slots.oldest_wait_s(Priority.INTERACTIVE), slots.oldest_wait_s(Priority.BATCH)) == (6.5, 0.0)
    running.leave()
    await waits[0]
    assert slots.oldest_wait_s(Priority.INTERACTIVE) == 4.5
    tickets[0].leave()
    await waits[1]
    assert slots.oldest_wait_s(Priority.INTERACTIVE) == 0.0
