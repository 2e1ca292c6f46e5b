"""What an HTTP caller is told when something fails: one table each for reasons and statuses.

A status arrives as the name of a gRPC status code and an ErrorReason, both as
strings: this module knows neither grpc nor the web framework. The body is the
error object of the OpenAI API; `x-should-retry` is always explicit, because
the official SDKs otherwise repeat 408, 409, 429 and every 5xx twice, and a
repeated generation costs a whole generation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = [
    "ApiError",
    "Naming",
    "Outcome",
    "by_reason",
    "by_status",
    "from_upstream",
    "internal",
    "invalid_request",
]


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
    "INTERNAL": Outcome(500, _SERVER),
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
_FIXED_TEXT: Final[Mapping[str, str]] = {
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
_SERVER_FAULT: Final = "The server had an error while processing your request."


@dataclass(slots=True, eq=False)
class ApiError(Exception):
    """A failure as the caller sees it.

    `param` is the name of the JSON member at fault. `reason` is for logs and
    spans: the service's ErrorReason or gRPC status, never sent by itself.
    """

    http_status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    should_retry: bool = False
    retry_after_s: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.http_status} {self.code or self.type}: {self.message}"

    def document(self) -> str:
        """Return the error object as JSON text, for a body or for an event within a stream."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error})

    def headers(self) -> dict[str, str]:
        """Return the headers that belong to this answer."""
        headers = {"x-should-retry": "true" if self.should_retry else "false"}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after_s))
            headers["retry-after-ms"] = str(math.ceil(self.retry_after_s * 1000))
        if self.http_status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


# A field of the contract within a sentence.
_FIELD: Final = re.compile(r"[a-z]+(?:[._][a-z]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How one request spells what the contract calls otherwise.

    `fields` maps contract paths to JSON names; the longest matching prefix
    counts and what follows it is kept: `stop.sequences[3]` becomes `stop[3]`.
    """

    fields: Mapping[str, str]
    prompt: str
    model: str | None = None

    def json_name(self, path: str) -> str:
        """Return the JSON name of a contract path; the path itself if it is unknown."""
        head = path
        while head:
            if head in self.fields:
                name, rest = self.fields[head], path[len(head) :]
                # Keys of an object: as the schema's own problems name them.
                return name + (f".{rest[1:-1]}" if name == "logit_bias" and rest else rest)
            head = head[: max(head.rfind("."), head.rfind("["), 0)]
        return path

    def spell(self, description: str) -> str:
        """Return a sentence of the service with the fields it mentions under their JSON names."""
        return _FIELD.sub(lambda found: self._spelled(found[0]), description)

    def _spelled(self, word: str) -> str:
        return self.fields.get(word) or self.fields.get(f"sampling.{word}") or word


def invalid_request(
    message: str, *, param: str | None = None, code: str | None = None, http_status: int = 400
) -> ApiError:
    """Return the refusal of a request that is wrong in itself."""
    return ApiError(http_status, _INVALID, message, param=param, code=code)


def internal() -> ApiError:
    """Return what is said about a fault of our own: nothing of its inside."""
    return ApiError(500, _SERVER, _SERVER_FAULT, reason="INTERNAL")


def from_upstream(
    status: str,
    reason: str | None,
    message: str,
    *,
    naming: Naming | None = None,
    violations: Sequence[tuple[str, str]] = (),
    retry_after_s: float | None = None,
) -> ApiError:
    """Return what the caller is told about a call that ended with a non-OK status.

    `violations` are (contract path, description) pairs, all of which end up in
    the message; `param` is the first one's JSON name.
    """
    known = by_reason.get(reason or "")
    outcome = known or by_status.get(status) or by_status["UNKNOWN"]
    if known is None and reason is not None and status == "RESOURCE_EXHAUSTED":
        # A limit that this version does not know; nothing says that haste helps.
        outcome = Outcome(429, "requests", "rate_limit_exceeded")
    text = message if reason is not None and message else _FIXED_TEXT.get(status, _SERVER_FAULT)
    param = None
    if violations:
        named = [
            (naming.json_name(path), naming.spell(description)) if naming else (path, description)
            for path, description in violations
        ]
        param = named[0][0]
        text = " ".join(_sentence(name, description) for name, description in named)
    elif naming is not None and reason == "CONTEXT_LENGTH_EXCEEDED":
        param = naming.prompt
    elif naming is not None and naming.model is not None and reason == "MODEL_NOT_FOUND":
        text = f"The model `{naming.model[:128]}` does not exist or you do not have access to it."
    return ApiError(
        outcome.http_status,
        outcome.type,
        text,
        param=param,
        code=outcome.code,
        should_retry=outcome.should_retry,
        retry_after_s=retry_after_s,
        reason=reason or status,
    )


def _sentence(name: str, description: str) -> str:
    return f"Invalid '{name}': {description.rstrip('.')}."
