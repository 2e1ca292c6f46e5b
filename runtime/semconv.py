"""Names of spans' attributes, and boundaries of histograms, in one place; metrics stand in `runtime.metrics`.

OpenTelemetry's GenAI conventions are still in development and have moved out
of the main repository; the Python constants are marked as deprecated. So the
strings stand here, and a rename is one line.
"""

from __future__ import annotations

from typing import Final

# General and RPC conventions (release candidate).
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
RPC_SYSTEM_NAME: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS_CODE: Final = "rpc.response.status_code"

# HTTP conventions (stable).
HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS_CODE: Final = "http.response.status_code"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
USER_AGENT: Final = "user_agent.original"

# GenAI conventions (development).
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"
GEN_AI_REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
GEN_AI_REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_TTFC: Final = "gen_ai.response.time_to_first_chunk"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
ENDUSER_ID: Final = "enduser.pseudo.id"
# Keys that three engines already share, in seconds; engine-reported numbers only.
GEN_AI_LATENCY_QUEUE: Final = "gen_ai.latency.time_in_queue"
GEN_AI_LATENCY_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
GEN_AI_LATENCY_DECODE: Final = "gen_ai.latency.time_in_model_decode"

GEN_AI_TOKEN_TYPE: Final = "gen_ai.token.type"

# Our own.
REQUEST_ID: Final = "headrace.request.id"
TENANT: Final = "headrace.tenant"
SUBJECT: Final = "headrace.subject"
GENERATION_ID: Final = "headrace.generation.id"
DEADLINE_S: Final = "headrace.deadline_s"
OUTCOME: Final = "headrace.stream.outcome"
MESSAGES: Final = "headrace.stream.messages"
MAX_GAP_S: Final = "headrace.stream.max_gap_s"
TTFT_S: Final = "headrace.ttft_s"
# The service's, on the gateway's span: another name, so that nobody counts it twice.
UPSTREAM_TTFT_S: Final = "headrace.upstream.ttft_s"
QUEUE_S: Final = "headrace.queue_s"
ERROR_REASON: Final = "headrace.error.reason"
CONTRACT: Final = "headrace.engine.contract"
CANCEL_CAUSE: Final = "headrace.cancel.cause"
CANCEL_PHASE: Final = "headrace.cancel.phase"
LEDGER_RECORD: Final = "headrace.ledger.record"
STOP_OUTCOME: Final = "headrace.engine.stop_outcome"
PRIORITY: Final = "headrace.priority"
LIMIT: Final = "headrace.limit"
READER_LAG_S: Final = "headrace.reader.lag_s"
PREFILL_S: Final = "headrace.prefill_s"
DECODE_S: Final = "headrace.decode_s"
SLO_NAME: Final = "headrace.slo.name"
SLO_MET: Final = "headrace.slo.met"
SLO_TTFT_MET: Final = "headrace.slo.ttft_met"
# Why a trace is worth to be kept whatever the sampler said: slow, stalled or failed.
KEEP: Final = "headrace.sampling.keep"
SAMPLING_DECISION: Final = "headrace.sampling.decision"
DISCONNECT_PHASE: Final = "headrace.disconnect.phase"

# Histogram boundaries, seconds. The conventions' own, extended to the length
# of real generations; TTFT is a superset of the conventions' and of the edges
# that engines use, with the common SLO values among them.
DURATION_BOUNDS: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68,
)  # fmt: skip
# From the engine's next look at a queue to a poll of 100 ms, and what is worth an alarm.
STOP_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
RPC_BOUNDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 320.0, 640.0,
)  # fmt: skip
TTFT_BOUNDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75,
    1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
# Between tokens, from a fast engine's step to a stall.
GAP_BOUNDS: Final = (
    0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
TOKEN_BOUNDS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
TPOT_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
