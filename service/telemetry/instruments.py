"""The service's metrics, recorded once per request."""

from __future__ import annotations

from opentelemetry import metrics
from opentelemetry.context import Context

from runtime import semconv
from service.backends.base import EngineStop

__all__ = ["active_requests", "record_engine_stop", "record_generation", "record_rpc"]

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
