"""The service's metrics, recorded once per request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakValueDictionary

from opentelemetry import metrics
from opentelemetry.context import Context

from runtime import metrics as table
from runtime import semconv
from service.admission.slots import Slots
from service.backends.base import Backend, EngineStop, Health
from service.core.events import Timing
from service.core.request import Priority

__all__ = [
    "Recorded",
    "active_requests",
    "record_cancel",
    "record_end",
    "record_engine_stop",
    "record_first_token",
    "record_generation",
    "record_ledger_lost",
    "record_progress",
    "record_rpc",
    "watch_model",
    "watch_slots",
]

_meter = metrics.get_meter("headrace.service")

_rpc_duration = table.RPC_DURATION.histogram(_meter)
_duration = table.DURATION.histogram(_meter)
_ttft = table.TTFT.histogram(_meter)
_tpot = table.TPOT.histogram(_meter)
_queue = table.QUEUE.histogram(_meter)
_prefill = table.PREFILL.histogram(_meter)
_max_gap = table.MAX_GAP.histogram(_meter)
_reader_lag = table.READER_LAG.histogram(_meter)
_generations = table.GENERATIONS.counter(_meter)
_input_tokens = table.INPUT_TOKENS.counter(_meter)
_output_tokens = table.OUTPUT_TOKENS.counter(_meter)
_first_token_missing = table.FIRST_TOKEN_MISSING.counter(_meter)
_slo = table.SLO.counter(_meter)
_engine_stop = table.ENGINE_STOP.histogram(_meter)
_engine_stops = table.ENGINE_STOPS.counter(_meter)
_wasted_tokens = table.WASTED_TOKENS.counter(_meter)
_cancelled = table.CANCELLED.counter(_meter)
_cancel = table.CANCEL_DURATION.histogram(_meter)
_ledger_lost = table.LEDGER_LOST.counter(_meter)
active_requests = table.ACTIVE.up_down_counter(_meter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What metrics have of one generation. `model` is a served id, never a caller's text; times in seconds."""

    operation: str
    provider: str
    model: str
    priority: Priority
    outcome: str
    error_type: str | None
    timing: Timing
    max_gap_s: float
    reader_lag_s: float | None
    prompt_tokens: int | None
    more_output_tokens: int  # than were recorded while it ran
    tpot_s: float | None


def _of_class(model: str, priority: Priority) -> dict[str, str]:
    return {semconv.GEN_AI_REQUEST_MODEL: model, semconv.PRIORITY: priority.value}


def _of_generation(operation: str, provider: str, of_class: Mapping[str, str]) -> dict[str, str]:
    return {semconv.GEN_AI_OPERATION: operation, semconv.GEN_AI_PROVIDER: provider, **of_class}


def record_rpc(method: str, status: str, duration_s: float, error_type: str | None, context: Context) -> None:
    """Record one call. `method` is fully qualified, `status` a gRPC status name."""
    attributes = {semconv.RPC_SYSTEM_NAME: "grpc", semconv.RPC_METHOD: method, semconv.RPC_STATUS_CODE: status}
    if error_type is not None:
        attributes[semconv.ERROR_TYPE] = error_type
    _rpc_duration.record(duration_s, attributes, context=context)


def record_end(model: str, priority: Priority, outcome: str, reason: str | None, met: Mapping[str, bool]) -> None:
    """Record how a generation ended, also one that was refused, and which objectives it met."""
    attributes = {**_of_class(model, priority), semconv.OUTCOME: outcome}
    if reason is not None:
        attributes[semconv.ERROR_REASON] = reason
    _generations.add(1, attributes)
    for name, is_met in met.items():
        _slo.add(1, {semconv.GEN_AI_REQUEST_MODEL: model, semconv.SLO_NAME: name, semconv.SLO_MET: is_met})


def record_first_token(
    *,
    operation: str,
    provider: str,
    model: str,
    priority: Priority,
    ttft_s: float,
    queue_s: float,
    prefill_s: float,
    context: Context,
) -> None:
    """Record what lies before the first token of a generation, which is there now."""
    of_class = _of_class(model, priority)
    attributes = _of_generation(operation, provider, of_class)
    _ttft.record(ttft_s, attributes, context=context)
    _queue.record(queue_s, of_class, context=context)
    _prefill.record(prefill_s, of_class, context=context)


def record_progress(operation: str, provider: str, model: str, priority: Priority, tokens: int) -> None:
    """Record output tokens of generations that go on."""
    _output_tokens.add(tokens, _of_generation(operation, provider, _of_class(model, priority)))


def record_generation(told: Recorded, context: Context) -> None:
    """Record one generation that was admitted."""
    timing = told.timing
    of_class = _of_class(told.model, told.priority)
    attributes = _of_generation(told.operation, told.provider, of_class)
    if timing.ttft_s is None:
        _queue.record(timing.queue_s, of_class, context=context)
        _first_token_missing.add(1, {**attributes, semconv.OUTCOME: told.outcome}, context=context)
    else:
        _max_gap.record(told.max_gap_s, of_class, context=context)
    if told.reader_lag_s is not None:
        _reader_lag.record(told.reader_lag_s, of_class, context=context)
    if told.tpot_s is not None:
        _tpot.record(told.tpot_s, attributes, context=context)
    if told.prompt_tokens:
        _input_tokens.add(told.prompt_tokens, attributes, context=context)
    if told.more_output_tokens > 0:  # an engine may count fewer at its end
        _output_tokens.add(told.more_output_tokens, attributes, context=context)
    if told.error_type is not None:
        attributes = {**attributes, semconv.ERROR_TYPE: told.error_type}
    _duration.record(timing.total_s, attributes, context=context)


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


class _Served(Protocol):
    """What gauges show of a model; `service.catalog.model` has one."""

    @property
    def id(self) -> str: ...
    @property
    def health(self) -> Health: ...
    @property
    def backend(self) -> Backend: ...


_models: Final[WeakValueDictionary[str, _Served]] = WeakValueDictionary()


def watch_model(model: _Served) -> None:
    """Let a gauge show whether a model takes requests, as long as it exists."""
    _models[model.id] = model


def observe_models(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    """Return 1 for each model that takes requests, 0 for every other one."""
    return [
        metrics.Observation(
            int(model.health is Health.READY),
            {semconv.GEN_AI_REQUEST_MODEL: model.id, semconv.GEN_AI_PROVIDER: model.backend.info.provider},
        )
        for model in list(_models.values())
    ]


def _observe(read: Callable[[Slots, Priority], float]) -> Iterable[metrics.Observation]:
    return [
        metrics.Observation(read(slots, priority), _of_class(model, priority))
        for model, slots in list(_watched.items())
        for priority in Priority
    ]


def observe_queue_size(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    """Return how many requests wait, by model and class."""
    return _observe(lambda slots, priority: slots.waiting_of(priority))


def observe_queue_age(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    """Return how long the one has waited that waits longest, by model and class."""
    return _observe(lambda slots, priority: slots.oldest_wait_s(priority))


def observe_slots_used(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    """Return how many slots are in use, by model and class."""
    return _observe(lambda slots, priority: slots.running_of(priority))


def observe_slots_limit(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    """Return how many slots a class may use, by model and class."""
    return _observe(lambda slots, priority: slots.limits.running_of(priority))


table.MODELS.gauge(_meter, observe_models)
table.QUEUE_SIZE.gauge(_meter, observe_queue_size)
table.QUEUE_AGE.gauge(_meter, observe_queue_age)
table.SLOTS_USED.gauge(_meter, observe_slots_used)
table.SLOTS_LIMIT.gauge(_meter, observe_slots_limit)
