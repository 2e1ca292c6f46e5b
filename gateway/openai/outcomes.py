"""What a failed call means over HTTP: one table each for reasons, statuses and fixed texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["SERVER_FAULT", "Outcome", "by_reason", "by_status", "fixed_texts"]


class Outcome(NamedTuple):
    """The HTTP side of one failure."""

    http_status: int
    type: str
    code: str | None = None
    should_retry: bool = False


_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_UNAVAILABLE: Final = "service_unavailable_error"

by_reason: Final[Mapping[str, Outcome]] = {
    "INVALID_FIELD": Outcome(400, _INVALID, "invalid_value"),
    "CONTEXT_LENGTH_EXCEEDED": Outcome(400, _INVALID, "context_length_exceeded"),
    "CAPABILITY_UNSUPPORTED": Outcome(400, _INVALID, "unsupported_parameter"),
    "MODEL_NOT_FOUND": Outcome(404, _INVALID, "model_not_found"),
    "MODEL_NOT_READY": Outcome(503, _UNAVAILABLE, "model_not_ready", should_retry=True),
    "QUEUE_FULL": Outcome(503, _UNAVAILABLE, "server_is_overloaded", should_retry=True),
    # The same patience would be too short again; in the queue it was bad luck,
    # and nothing was run.
    "DEADLINE_TOO_SHORT": Outcome(504, _SERVER, "deadline_exceeded"),
    "DEADLINE_IN_QUEUE": Outcome(504, _SERVER, "deadline_exceeded", should_retry=True),
    "DEADLINE_IN_DECODE": Outcome(504, _SERVER, "deadline_exceeded"),
    "DRAINING": Outcome(503, _UNAVAILABLE, "draining", should_retry=True),
    "BACKEND_UNAVAILABLE": Outcome(503, _UNAVAILABLE, "backend_unavailable", should_retry=True),
    "BACKEND_ERROR": Outcome(500, _SERVER, "backend_error"),
    "CONSUMER_TOO_SLOW": Outcome(503, _UNAVAILABLE, "consumer_too_slow"),
    "GENERATION_NOT_FOUND": Outcome(404, _INVALID, "generation_not_found"),
    "INTERNAL": Outcome(500, _SERVER),
    "QUEUE_TIMEOUT": Outcome(503, _UNAVAILABLE, "queue_timeout", should_retry=True),
    # The engine had its minutes, and the service asks that nobody comes back by himself.
    "FIRST_TOKEN_TIMEOUT": Outcome(504, _SERVER, "first_token_timeout"),
    "TOKEN_GAP_TIMEOUT": Outcome(504, _SERVER, "token_gap_timeout"),
    "RATE_LIMITED": Outcome(429, "requests", "rate_limit_exceeded", should_retry=True),
    # Waiting does not help.
    "QUOTA_EXHAUSTED": Outcome(429, "insufficient_quota", "insufficient_quota"),
    # 409 would be repeated by the SDKs.
    "IDEMPOTENCY_MISMATCH": Outcome(422, _INVALID, "idempotency_key_reused"),
    "REPLAY_EXPIRED": Outcome(410, _INVALID, "replay_expired"),
    "UNAUTHENTICATED": Outcome(401, _INVALID, "invalid_api_key"),
    "PERMISSION_DENIED": Outcome(403, "permission_error"),
    "GENERATION_LOST": Outcome(503, _SERVER, "generation_lost"),
    "STORE_UNAVAILABLE": Outcome(503, _UNAVAILABLE, "store_unavailable", should_retry=True),
}

# For calls that ended without a reason this table knows: the gRPC library's own
# refusals, proxies between, and services newer than this gateway.
by_status: Final[Mapping[str, Outcome]] = {
    "CANCELLED": Outcome(499, _SERVER, "cancelled"),
    "UNKNOWN": Outcome(500, _SERVER),
    "INVALID_ARGUMENT": Outcome(400, _INVALID),
    "DEADLINE_EXCEEDED": Outcome(504, _SERVER, "deadline_exceeded"),
    "NOT_FOUND": Outcome(404, _INVALID),
    # 409 would be repeated by the SDKs.
    "ALREADY_EXISTS": Outcome(422, _INVALID),
    "PERMISSION_DENIED": Outcome(403, "permission_error"),
    "UNAUTHENTICATED": Outcome(401, _INVALID, "invalid_api_key"),
    # Without a reason it is the library's "message larger than max".
    "RESOURCE_EXHAUSTED": Outcome(413, _INVALID, "request_too_large"),
    "FAILED_PRECONDITION": Outcome(400, _INVALID),
    "ABORTED": Outcome(409, _SERVER),
    "OUT_OF_RANGE": Outcome(400, _INVALID),
    "UNIMPLEMENTED": Outcome(501, _SERVER, "not_implemented"),
    "INTERNAL": Outcome(500, _SERVER),
    "UNAVAILABLE": Outcome(503, _UNAVAILABLE, should_retry=True),
    "DATA_LOSS": Outcome(500, _SERVER),
}

# A text that comes without an ErrorInfo was written by a library and tells of
# addresses and internals: the caller gets ours.
fixed_texts: Final[Mapping[str, str]] = {
    "CANCELLED": "The request was cancelled.",
    "INVALID_ARGUMENT": "The inference service refused the request.",
    "DEADLINE_EXCEEDED": "The request did not finish within its deadline.",
    "NOT_FOUND": "The inference service does not know what was asked for.",
    "ALREADY_EXISTS": "What was to be made exists already.",
    "PERMISSION_DENIED": "You are not allowed to make this request.",
    "UNAUTHENTICATED": "Incorrect API key provided.",
    "RESOURCE_EXHAUSTED": "The request or its answer is larger than the inference service takes.",
    "FAILED_PRECONDITION": "The inference service cannot serve this request in its present state.",
    "ABORTED": "The inference service gave up the request. Please try again.",
    "OUT_OF_RANGE": "The inference service refused the request.",
    "UNIMPLEMENTED": "The inference service does not offer this operation.",
    "UNAVAILABLE": "The inference service cannot be reached. Please try again later.",
}
SERVER_FAULT: Final = "The server had an error while processing your request."
