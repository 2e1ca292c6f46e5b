"""Every span and every attribute, in two tables: documentation is generated from them, and a test holds spans to them.

What has one value per token is not here: no span, event or attribute does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runtime import semconv

__all__ = ["ATTRIBUTES", "SPANS", "SpanKind", "find_span"]

# Set by the client package, which stands alone and has its own constant.
TIME_TO_FIRST_DELTA_S: Final = "headrace.stream.time_to_first_delta_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanKind:
    """One kind of span. `name` has variable parts in angle brackets; `attributes` are all that it may have."""

    name: str
    by: str
    kind: str
    when: str
    attributes: tuple[str, ...] = ()

    @property
    def first_word(self) -> str:
        """What its names begin with."""
        return self.name.partition("<")[0].strip()


_RPC: Final = (
    semconv.RPC_SYSTEM_NAME,
    semconv.RPC_METHOD,
    semconv.RPC_STATUS_CODE,
    semconv.ERROR_TYPE,
    semconv.ERROR_REASON,
)

SPANS: Final = (
    SpanKind(
        name="<method> <route>",
        by="gateway",
        kind="SERVER",
        when="Head of the request to last byte handed over, or to the client's leaving",
        attributes=(
            semconv.HTTP_REQUEST_METHOD,
            semconv.HTTP_ROUTE,
            semconv.HTTP_STATUS_CODE,
            semconv.URL_PATH,
            semconv.URL_SCHEME,
            semconv.USER_AGENT,
            semconv.REQUEST_ID,
            semconv.OUTCOME,
            semconv.ERROR_TYPE,
            semconv.ERROR_REASON,
            semconv.GEN_AI_RESPONSE_MODEL,
            semconv.GEN_AI_RESPONSE_ID,
            semconv.GEN_AI_REQUEST_STREAM,
            semconv.GEN_AI_TTFC,
            semconv.UPSTREAM_TTFT_S,
            semconv.KEEP,
        ),
    ),
    SpanKind(
        name="headrace.v1.<service>/<method>",
        by="gateway, and whoever uses the Python client",
        kind="CLIENT",
        when="Call begun to its status",
        attributes=(
            *_RPC,
            semconv.SERVER_ADDRESS,
            semconv.SERVER_PORT,
            semconv.MESSAGES,
            TIME_TO_FIRST_DELTA_S,
        ),
    ),
    SpanKind(
        name="headrace.v1.<service>/<method>",
        by="service",
        kind="SERVER",
        when="Request received to status given",
        attributes=(
            *_RPC,
            semconv.REQUEST_ID,
            semconv.GENERATION_ID,
            semconv.TENANT,
            semconv.SUBJECT,
            semconv.DEADLINE_S,
            semconv.OUTCOME,
            semconv.MESSAGES,
            semconv.QUEUE_S,
            semconv.PREFILL_S,
            semconv.TTFT_S,
            semconv.DECODE_S,
            semconv.MAX_GAP_S,
            semconv.READER_LAG_S,
            semconv.SLO_TTFT_MET,
            semconv.SLO_MET,
            semconv.KEEP,
            semconv.CANCEL_CAUSE,
            semconv.CANCEL_PHASE,
        ),
    ),
    SpanKind(
        name="wait for a slot",
        by="service",
        kind="INTERNAL",
        when="In line to admitted, or to leaving the line; only of a request that had to wait",
        attributes=(),
    ),
    SpanKind(
        name="<chat or text_completion> <model>",
        by="service",
        kind="CLIENT (INTERNAL for an engine in process)",
        when="Admitted to the engine's end",
        attributes=(
            semconv.GEN_AI_OPERATION,
            semconv.GEN_AI_PROVIDER,
            semconv.GEN_AI_REQUEST_MODEL,
            semconv.GEN_AI_REQUEST_STREAM,
            semconv.GEN_AI_REQUEST_CHOICES,
            semconv.GEN_AI_REQUEST_SEED,
            semconv.GEN_AI_REQUEST_MAX_TOKENS,
            semconv.GEN_AI_REQUEST_TEMPERATURE,
            semconv.GEN_AI_REQUEST_TOP_P,
            semconv.GEN_AI_REQUEST_TOP_K,
            semconv.GEN_AI_REQUEST_FREQUENCY_PENALTY,
            semconv.GEN_AI_REQUEST_PRESENCE_PENALTY,
            semconv.GEN_AI_RESPONSE_ID,
            semconv.GEN_AI_RESPONSE_MODEL,
            semconv.GEN_AI_FINISH_REASONS,
            semconv.GEN_AI_TTFC,
            semconv.GEN_AI_INPUT_TOKENS,
            semconv.GEN_AI_OUTPUT_TOKENS,
            semconv.GEN_AI_CACHED_TOKENS,
            semconv.GEN_AI_REASONING_TOKENS,
            semconv.GEN_AI_LATENCY_QUEUE,
            semconv.GEN_AI_LATENCY_PREFILL,
            semconv.GEN_AI_LATENCY_DECODE,
            semconv.ENDUSER_ID,
            semconv.GENERATION_ID,
            semconv.SERVER_ADDRESS,
            semconv.SERVER_PORT,
            semconv.ERROR_TYPE,
        ),
    ),
    SpanKind(
        name="await first token",
        by="service",
        kind="INTERNAL",
        when="Admitted to first token, or to the end where none came",
    ),
    SpanKind(name="stream tokens", by="service", kind="INTERNAL", when="First to last token"),
)

ATTRIBUTES: Final = {
    semconv.HTTP_REQUEST_METHOD: "HTTP method",
    semconv.HTTP_ROUTE: "Template of the route",
    semconv.HTTP_STATUS_CODE: "HTTP status; 499 where the client left before there was one",
    semconv.URL_PATH: "Path, cut to 256 characters",
    semconv.URL_SCHEME: "http or https",
    semconv.USER_AGENT: "What the client calls itself, cut to 256 characters",
    semconv.RPC_SYSTEM_NAME: "grpc",
    semconv.RPC_METHOD: "Service and method",
    semconv.RPC_STATUS_CODE: "Name of the gRPC status",
    semconv.SERVER_ADDRESS: "Host that was called",
    semconv.SERVER_PORT: "Its port",
    semconv.ERROR_TYPE: "Status or reason of a failure of the server; unset for the caller's own mistakes and cancels",
    semconv.ERROR_REASON: "Reason of a refusal or failure (`ErrorReason`)",
    semconv.REQUEST_ID: "`x-request-id`, also in both logs",
    semconv.GENERATION_ID: "Id of the generation, also in the log and in `started`",
    semconv.TENANT: "Whose request it is, where callers are checked",
    semconv.SUBJECT: "Which key, token or certificate of theirs",
    semconv.ENDUSER_ID: "The end user that the caller named",
    semconv.DEADLINE_S: "Time that the caller gave, seconds",
    semconv.OUTCOME: "completed, client_cancelled, cancelled (by `CancelGeneration`), deadline_exceeded, rejected, "
    "backend_error, consumer_too_slow, internal_error or drained; at the gateway failed for all faults of a server",
    semconv.MESSAGES: "Number of the last event",
    semconv.QUEUE_S: "Received to admitted, the engine's own queue included, seconds",
    semconv.PREFILL_S: "From there to the first token, seconds",
    semconv.TTFT_S: "Received to first token, seconds",
    semconv.UPSTREAM_TTFT_S: "The same as the service told the gateway, seconds",
    semconv.DECODE_S: "First to last token, seconds",
    semconv.MAX_GAP_S: "Longest silence between tokens, seconds",
    semconv.READER_LAG_S: "How long events waited behind others that the reader had not taken, in all, seconds",
    TIME_TO_FIRST_DELTA_S: "Call begun to first output, by the caller's clock, seconds",
    semconv.SLO_TTFT_MET: "Whether the first token came within the objective",
    semconv.SLO_MET: "Whether every objective was met",
    semconv.KEEP: "Why the trace is kept whatever the sampler said: slow, stalled or failed",
    semconv.CANCEL_CAUSE: "What ended a generation before its time ([causes](lifecycle.md#cancelling))",
    semconv.CANCEL_PHASE: "What it was doing then",
    semconv.GEN_AI_OPERATION: "chat or text_completion",
    semconv.GEN_AI_PROVIDER: "Engine; at the gateway headrace",
    semconv.GEN_AI_REQUEST_MODEL: "Served id of the model",
    semconv.GEN_AI_REQUEST_STREAM: "Whether the caller gets a stream",
    semconv.GEN_AI_REQUEST_CHOICES: "Number of choices, where it is not 1",
    semconv.GEN_AI_REQUEST_SEED: "As in effect; parameters that nobody set are unset",
    semconv.GEN_AI_REQUEST_MAX_TOKENS: "As in effect",
    semconv.GEN_AI_REQUEST_TEMPERATURE: "As in effect",
    semconv.GEN_AI_REQUEST_TOP_P: "As in effect",
    semconv.GEN_AI_REQUEST_TOP_K: "As in effect",
    semconv.GEN_AI_REQUEST_FREQUENCY_PENALTY: "As in effect",
    semconv.GEN_AI_REQUEST_PRESENCE_PENALTY: "As in effect",
    semconv.GEN_AI_RESPONSE_ID: "Id of the generation",
    semconv.GEN_AI_RESPONSE_MODEL: "Served id of the model",
    semconv.GEN_AI_FINISH_REASONS: "Of each choice that has ended",
    semconv.GEN_AI_TTFC: "Received to first output, by the clock of the span's own process, seconds",
    semconv.GEN_AI_INPUT_TOKENS: "Prompt tokens, where known",
    semconv.GEN_AI_OUTPUT_TOKENS: "Generated tokens, also of a generation that was cut",
    semconv.GEN_AI_CACHED_TOKENS: "Prompt tokens that the engine had already",
    semconv.GEN_AI_REASONING_TOKENS: "Tokens of reasoning, where they are told apart",
    semconv.GEN_AI_LATENCY_QUEUE: "As the engine reports it, never mixed with our clock, seconds",
    semconv.GEN_AI_LATENCY_PREFILL: "As the engine reports it, seconds",
    semconv.GEN_AI_LATENCY_DECODE: "As the engine reports it, seconds",
}


def find_span(name: str, kind: str) -> SpanKind | None:
    """Return the kind of a recorded span, by its name and the name of its OpenTelemetry kind; None if it has none."""
    for span in SPANS:
        if kind not in span.kind:
            continue
        begins: tuple[str, ...] = (span.first_word,)
        if span.name.startswith("<chat"):
            begins = ("chat ", "text_completion ")
        if span.name.startswith("<method>"):
            begins = ("GET", "POST", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH", "HTTP")
        if name.startswith(begins):
            return span
    return None
