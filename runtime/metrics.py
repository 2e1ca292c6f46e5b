"""Every metric of both processes: its name, kind, unit, attributes and meaning, in one table.

Instruments are made from it, the documentation is generated from it, and a golden
file holds it still: names are what dashboards and alerts of other people stand on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from opentelemetry.metrics import CallbackT, Counter, Histogram, Meter, UpDownCounter

from runtime import semconv

__all__ = ["METRICS", "Kind", "Metric"]


class Kind(Enum):
    """What an instrument does, in the words of the documentation."""

    HISTOGRAM = "histogram"
    COUNTER = "counter"
    UP_DOWN = "up-down counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `attributes` are all that a point of it may have, and each has few values."""

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    by: str = "service"

    @property
    def prometheus(self) -> str:
        """The name under which Prometheus has it; of a histogram, without `_bucket`, `_sum` and `_count`."""
        name = self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")
        return f"{name}_total" if self.kind is Kind.COUNTER else name

    def histogram(self, meter: Meter) -> Histogram:
        """Return the instrument."""
        return meter.create_histogram(
            self.name, self.unit, self.description, explicit_bucket_boundaries_advisory=list(self.bounds)
        )

    def counter(self, meter: Meter) -> Counter:
        """Return the instrument."""
        return meter.create_counter(self.name, self.unit, self.description)

    def up_down_counter(self, meter: Meter) -> UpDownCounter:
        """Return the instrument."""
        return meter.create_up_down_counter(self.name, self.unit, self.description)

    def gauge(self, meter: Meter, callback: CallbackT) -> None:
        """Let `callback` be asked for the value."""
        meter.create_observable_gauge(self.name, [callback], self.unit, self.description)


_MODEL: Final = (semconv.GEN_AI_REQUEST_MODEL,)
_CLASS: Final = (*_MODEL, semconv.PRIORITY)
_GENERATION: Final = (semconv.GEN_AI_OPERATION, semconv.GEN_AI_PROVIDER, *_CLASS)
_STOP: Final = (*_MODEL, semconv.CONTRACT, semconv.STOP_OUTCOME)
_CANCEL: Final = (*_MODEL, semconv.CANCEL_CAUSE, semconv.CANCEL_PHASE)
_HTTP: Final = (semconv.HTTP_REQUEST_METHOD, semconv.URL_SCHEME, semconv.HTTP_STATUS_CODE, semconv.HTTP_ROUTE)
_CLIENT: Final = (semconv.GEN_AI_OPERATION, semconv.GEN_AI_PROVIDER, semconv.GEN_AI_RESPONSE_MODEL)

TTFT: Final = Metric(
    name="gen_ai.server.time_to_first_token",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Received to first generated token: queue and prefill. Recorded when it is there, for every stream "
    "that has one.",
    attributes=_GENERATION,
    bounds=semconv.TTFT_BOUNDS,
)
TPOT: Final = Metric(
    name="gen_ai.server.time_per_output_token",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Decode time per token after the first.",
    attributes=_GENERATION,
    bounds=semconv.TPOT_BOUNDS,
)
DURATION: Final = Metric(
    name="gen_ai.server.request.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Received to last token, of generations that were admitted.",
    attributes=(*_GENERATION, semconv.ERROR_TYPE),
    bounds=semconv.DURATION_BOUNDS,
)
QUEUE: Final = Metric(
    name="headrace.server.queue.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Received to admitted, plus the engine's own queue where it reports one before the first token.",
    attributes=_CLASS,
    bounds=semconv.TTFT_BOUNDS,
)
PREFILL: Final = Metric(
    name="headrace.server.prefill.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Admitted to first generated token, without the engine's own queue.",
    attributes=_CLASS,
    bounds=semconv.TTFT_BOUNDS,
)
MAX_GAP: Final = Metric(
    name="headrace.server.stream.max_gap",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Longest silence between two tokens of a stream, one value a stream.",
    attributes=_CLASS,
    bounds=semconv.GAP_BOUNDS,
)
READER_LAG: Final = Metric(
    name="headrace.server.reader.lag",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="How long events waited because the reader had not taken those before them, in all, one value a "
    "stream. A retained generation has none.",
    attributes=_CLASS,
    bounds=semconv.GAP_BOUNDS,
)
OUTPUT_TOKENS: Final = Metric(
    name="headrace.server.output_tokens",
    kind=Kind.COUNTER,
    unit="{token}",
    description="Generated tokens, those of cancelled requests included; of a stream that goes on, every few seconds.",
    attributes=_GENERATION,
)
INPUT_TOKENS: Final = Metric(
    name="headrace.server.input_tokens",
    kind=Kind.COUNTER,
    unit="{token}",
    description="Prompt tokens of admitted generations, where they are known.",
    attributes=_GENERATION,
)
FIRST_TOKEN_MISSING: Final = Metric(
    name="headrace.server.first_token.missing",
    kind=Kind.COUNTER,
    unit="{request}",
    description="Admitted generations that ended without a token.",
    attributes=(*_GENERATION, semconv.OUTCOME),
)
SLO: Final = Metric(
    name="headrace.slo.evaluations",
    kind=Kind.COUNTER,
    unit="{evaluation}",
    description="Interactive generations held against an objective (ttft, tpot, e2e; all for every one that is set), "
    "by whether it was met.",
    attributes=(*_MODEL, semconv.SLO_NAME, semconv.SLO_MET),
)
RPC_DURATION: Final = Metric(
    name="rpc.server.call.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Message received to status sent.",
    attributes=(semconv.RPC_SYSTEM_NAME, semconv.RPC_METHOD, semconv.RPC_STATUS_CODE, semconv.ERROR_TYPE),
    bounds=semconv.RPC_BOUNDS,
)
GENERATIONS: Final = Metric(
    name="headrace.server.generations",
    kind=Kind.COUNTER,
    unit="{request}",
    description="Generations by how they ended, refused ones included.",
    attributes=(*_CLASS, semconv.OUTCOME, semconv.ERROR_REASON),
)
CANCELLED: Final = Metric(
    name="headrace.server.cancelled",
    kind=Kind.COUNTER,
    unit="{request}",
    description="Generations that were ended before their time, by cause and by what they were doing.",
    attributes=_CANCEL,
)
CANCEL_DURATION: Final = Metric(
    name="headrace.server.cancel.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="From the cause to the engine told and the slot free.",
    attributes=_CANCEL,
    bounds=semconv.STOP_BOUNDS,
)
ENGINE_STOP: Final = Metric(
    name="headrace.server.engine_stop.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Cancel of a running generation to the engine's acknowledgement. Only engines that answer count.",
    attributes=_STOP,
    bounds=semconv.STOP_BOUNDS,
)
ENGINE_STOPS: Final = Metric(
    name="headrace.server.engine_stops",
    kind=Kind.COUNTER,
    unit="{generation}",
    description="Generations that were left before their end, by how far the cancel went.",
    attributes=_STOP,
)
WASTED_TOKENS: Final = Metric(
    name="headrace.server.wasted_tokens",
    kind=Kind.COUNTER,
    unit="{token}",
    description="At most how many tokens engines made for nobody after a cancel.",
    attributes=_STOP,
)
ACTIVE: Final = Metric(
    name="headrace.server.requests.active",
    kind=Kind.UP_DOWN,
    unit="{request}",
    description="Generate calls being served, waiting ones included.",
)
QUEUE_SIZE: Final = Metric(
    name="headrace.server.queue.size",
    kind=Kind.GAUGE,
    unit="{request}",
    description="Requests that wait for a slot.",
    attributes=_CLASS,
)
QUEUE_AGE: Final = Metric(
    name="headrace.server.queue.age",
    kind=Kind.GAUGE,
    unit="s",
    description="How long the one that has waited longest has waited; 0 where nobody waits.",
    attributes=_CLASS,
)
SLOTS_USED: Final = Metric(
    name="headrace.server.slots.used",
    kind=Kind.GAUGE,
    unit="{slot}",
    description="Slots in use.",
    attributes=_CLASS,
)
SLOTS_LIMIT: Final = Metric(
    name="headrace.server.slots.limit",
    kind=Kind.GAUGE,
    unit="{slot}",
    description="Slots that a class may use. Those of batch are among those of interactive.",
    attributes=_CLASS,
)
MODELS: Final = Metric(
    name="headrace.server.model.ready",
    kind=Kind.GAUGE,
    unit="",
    description="1 while the model takes requests, 0 while its engine does not work or is not there yet.",
    attributes=(*_MODEL, semconv.GEN_AI_PROVIDER),
)
LIMITED: Final = Metric(
    name="headrace.server.limited",
    kind=Kind.COUNTER,
    unit="{request}",
    description="Generations that were refused because a limit of their tenant was reached.",
    attributes=(semconv.LIMIT, *_MODEL),
)
LIMITS_SHARED: Final = Metric(
    name="headrace.server.limits.shared",
    kind=Kind.GAUGE,
    unit="",
    description="1 while the store of limits answers, 0 while each process counts for itself; only where one is set.",
)
LEDGER_LOST: Final = Metric(
    name="headrace.server.ledger.lost",
    kind=Kind.COUNTER,
    unit="{record}",
    description="Records that the usage ledger could not take: its queue was full, or its store failed to the end.",
    attributes=(semconv.LEDGER_RECORD,),
)
TRACES: Final = Metric(
    name="headrace.telemetry.traces",
    kind=Kind.COUNTER,
    unit="{trace}",
    description="Requests by what became of their spans: sampled, kept (dropped by the sampler, and slow, stalled or "
    "failed), dropped, or lost (notable, and above the bounds). Only where a sampler drops some.",
    attributes=(semconv.SAMPLING_DECISION,),
    by="both",
)
HTTP_DURATION: Final = Metric(
    name="http.server.request.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Request received to the last byte of the answer handed over, or to the client's leaving.",
    attributes=(*_HTTP, semconv.ERROR_TYPE),
    bounds=semconv.RPC_BOUNDS,
    by="gateway",
)
HTTP_ACTIVE: Final = Metric(
    name="http.server.active_requests",
    kind=Kind.UP_DOWN,
    unit="{request}",
    description="Requests being served.",
    attributes=(semconv.HTTP_REQUEST_METHOD,),
    by="gateway",
)
CLIENT_DURATION: Final = Metric(
    name="gen_ai.client.operation.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Whole generation as the gateway sees it.",
    attributes=(*_CLIENT, semconv.ERROR_TYPE),
    bounds=semconv.DURATION_BOUNDS,
    by="gateway",
)
CLIENT_TTFC: Final = Metric(
    name="gen_ai.client.operation.time_to_first_chunk",
    kind=Kind.HISTOGRAM,
    unit="s",
    description="Request received to the first text handed over; streams only.",
    attributes=_CLIENT,
    bounds=semconv.TTFT_BOUNDS,
    by="gateway",
)
CLIENT_TOKENS: Final = Metric(
    name="gen_ai.client.token.usage",
    kind=Kind.HISTOGRAM,
    unit="{token}",
    description="Tokens of a generation that completed, where they are known.",
    attributes=(*_CLIENT, semconv.GEN_AI_TOKEN_TYPE),
    bounds=semconv.TOKEN_BOUNDS,
    by="gateway",
)
GATEWAY_GENERATIONS: Final = Metric(
    name="headrace.gateway.generations",
    kind=Kind.COUNTER,
    unit="{request}",
    description="Generations by how they ended.",
    attributes=(semconv.GEN_AI_OPERATION, semconv.OUTCOME),
    by="gateway",
)
DISCONNECTS: Final = Metric(
    name="headrace.gateway.disconnects",
    kind=Kind.COUNTER,
    unit="{request}",
    description="Clients who left before the end of a generation, by whether they had seen output.",
    attributes=(semconv.GEN_AI_OPERATION, semconv.DISCONNECT_PHASE),
    by="gateway",
)

METRICS: Final[tuple[Metric, ...]] = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
