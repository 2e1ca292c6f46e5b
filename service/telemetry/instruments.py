"""The service's metrics, recorded once per request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakValueDictionary

from opentelemetry import metrics
from opentelemetry.context import Context

from runtime import semconv
from service.admission.slots import Slots
from service.backends.base import EngineStop
from service.core.request import Priority

__all__ = [
    "active_requests",
    "record_cancel",
    "record_engine_stop",
    "record_generation",
    "record_ledger_lost",
    "record_rpc",
    "watch_slots",
]

_meter = metrics.get_meter("headrace.service")

_rpc_duration = _meter.create_histogram(
    semconv.METRIC_RPC_SERVER_DURATION,
    unit="s",
    description="Message received to status sent.",
    explicit_bucket_boundaries_advisory=list(semconv.RPC_BOUNDS),
)
_duration = _meter.create_histogram(
    semconv.METRIC_SERVER_DURATION,
    unit="s",
    description="Received to last token.",
    explicit_bucket_boundaries_advisory=list(semconv.DURATION_BOUNDS),
)
_ttft = _meter.create_histogram(
    semconv.METRIC_SERVER_TTFT,
    unit="s",
    description="Received to first generated token: queue and prefill. Every stream that produced a token counts.",
    explicit_bucket_boundaries_advisory=list(semconv.TTFT_BOUNDS),
)
_tpot = _meter.create_histogram(
    semconv.METRIC_SERVER_TPOT,
    unit="s",
    description="Decode time per token after the first.",
    explicit_bucket_boundaries_advisory=list(semconv.TPOT_BOUNDS),
)
_output_tokens = _meter.create_counter(
    "headrace.server.output_tokens",
    unit="{token}",
    description="Generated tokens, those of cancelled requests included.",
)
_first_token_missing = _meter.create_counter(
    "headrace.server.first_token.missing", unit="{request}", description="Generations that ended without a token."
)
_engine_stop = _meter.create_histogram(
    semconv.METRIC_ENGINE_STOP,
    unit="s",
    description="Cancel of a running generation to the engine's acknowledgement. Only engines that answer count.",
    explicit_bucket_boundaries_advisory=list(semconv.STOP_BOUNDS),
)
_engine_stops = _meter.create_counter(
    "headrace.server.engine_stops",
    unit="{generation}",
    description="Generations that were left before their end, by how far the cancel went.",
)
_wasted_tokens = _meter.create_counter(
    "headrace.server.wasted_tokens",
    unit="{token}",
    description="At most how many tokens engines made for nobody after a cancel.",
)
_cancelled = _meter.create_counter(
    "headrace.server.cancelled",
    unit="{request}",
    description="Generations that were ended before their time, by cause and by what they were doing.",
)
_cancel = _meter.create_histogram(
    semconv.METRIC_CANCEL,
    unit="s",
    description="From the cause to the engine told and the slot free.",
    explicit_bucket_boundaries_advisory=list(semconv.STOP_BOUNDS),
)
_ledger_lost = _meter.create_counter(
    "headrace.server.ledger.lost",
    unit="{record}",
    description="Records that the usage ledger could not take: its queue was full, or its store failed to the end.",
)
active_requests = _meter.create_up_down_counter(
    "headrace.server.requests.active",
    unit="{request}",
    description="Generate calls being served, waiting ones included.",
)


def record_rpc(method: str, status: str, duration_s: float, error_type: str | None, context: Context) -> None:
    """Record one call. `method` is fully qualified, `status` a gRPC status name."""
    attributes = {semconv.RPC_SYSTEM_NAME: "grpc", semconv.RPC_METHOD: method, semconv.RPC_STATUS_CODE: status}
    if error_type is not None:
        attributes[semconv.ERROR_TYPE] = error_type
    _rpc_duration.record(duration_s, attributes, context=context)


def record_generation(
    *,
    operation: str,
    provider: str,
    model: str,
    outcome: str,
    duration_s: float,
    ttft_s: float | None,
    decode_s: float | None,
    output_tokens: int | None,
    choices: int,
    error_type: str | None,
    context: Context,
) -> None:
    """Record one generation that was admitted. `model` is a served id, never a caller's text."""
    attributes = {
        semconv.GEN_AI_OPERATION: operation,
        semconv.GEN_AI_PROVIDER: provider,
        semconv.GEN_AI_REQUEST_MODEL: model,
    }
    if ttft_s is None:
        _first_token_missing.add(1, {**attributes, semconv.OUTCOME: outcome}, context=context)
    else:
        _ttft.record(ttft_s, attributes, context=context)
    if decode_s and output_tokens is not None and output_tokens > choices:
        _tpot.record(decode_s / (output_tokens - choices), attributes, context=context)
    if output_tokens:
        _output_tokens.add(output_tokens, attributes, context=context)
    if error_type is not None:
        attributes = {**attributes, semconv.ERROR_TYPE: error_type}
    _duration.record(duration_s, attributes, context=context)


def record_cancel(model: str, *, cause: str, phase: str, stop_s: float | None) -> None:
    """Record a generation that was ended before its time. `stop_s` is None where the engine had ended by itself."""
    attributes = {semconv.GEN_AI_REQUEST_MODEL: model, semconv.CANCEL_CAUSE: cause, semconv.CANCEL_PHASE: phase}
    _cancelled.add(1, attributes)
    if stop_s is not None:
        _cancel.record(stop_s, attributes)


def record_ledger_lost(beginnings: int, ends: int) -> None:
    """Record that the usage ledger has lost so many records; from any thread."""
    for record, count in (("begun", beginnings), ("ended", ends)):
        if count:
            _ledger_lost.add(count, {semconv.LEDGER_RECORD: record})


def record_engine_stop(model: str, stop: EngineStop) -> None:
    """Record what became of a generation that was left. `model` is a served id."""
    attributes = {
        semconv.GEN_AI_REQUEST_MODEL: model,
        semconv.CONTRACT: stop.contract,
        semconv.STOP_OUTCOME: stop.outcome.value,
    }
    _engine_stops.add(1, attributes)
    _wasted_tokens.add(stop.wasted_tokens, attributes)
    if stop.stop_s is not None:
        _engine_stop.record(stop.stop_s, attributes)


# Weak: a model that is closed is no longer observed. Read by the exporter's thread; plain numbers, each true by itself.
_watched: Final[WeakValueDictionary[str, Slots]] = WeakValueDictionary()


def watch_slots(model: str, slots: Slots) -> None:
    """Let the gauges show the slots of a model, as long as they exist. `model` is a served id."""
    _watched[model] = slots


def _observe(read: Callable[[Slots, Priority], int]) -> Iterable[metrics.Observation]:
    return [
        metrics.Observation(
            read(slots, priority), {semconv.GEN_AI_REQUEST_MODEL: model, semconv.PRIORITY: priority.value}
        )
        for model, slots in list(_watched.items())
        for priority in Priority
    ]


def observe_queue_size(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    """Return how many requests wait, by model and class."""
    return _observe(lambda slots, priority: slots.waiting_of(priority))


def observe_slots_used(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    """Return how many slots are in use, by model and class."""
    return _observe(lambda slots, priority: slots.running_of(priority))


def observe_slots_limit(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    """Return how many slots a class may use, by model and class."""
    return _observe(lambda slots, priority: slots.limits.running_of(priority))


_meter.create_observable_gauge(
    semconv.METRIC_QUEUE_SIZE,
    [observe_queue_size],
    unit="{request}",
    description="Requests that wait for a slot.",
)
_meter.create_observable_gauge(
    semconv.METRIC_SLOTS_USED,
    [observe_slots_used],
    unit="{slot}",
    description="Slots in use.",
)
_meter.create_observable_gauge(
    semconv.METRIC_SLOTS_LIMIT,
    [observe_slots_limit],
    unit="{slot}",
    description="Slots that a class may use. Those of batch are among those of interactive.",
)
