"""What an HTTP caller is told when something fails: the error object of the OpenAI API.

A status arrives as the name of a gRPC status code and an ErrorReason, both as
strings: this module knows neither grpc nor the web framework. What they mean
over HTTP is in the tables of `outcomes`. `x-should-retry` is always explicit,
because the official SDKs otherwise repeat 408, 409, 429 and every 5xx twice,
and a repeated generation costs a whole generation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.openai.outcomes import (
    SERVER_FAULT,
    Outcome,
    by_reason,
    by_status,
    fixed_texts,
)

__all__ = [
    "CANCELLED_BY_CALL",
    "ApiError",
    "Naming",
    "Outcome",
    "by_reason",
    "by_status",
    "cancelled",
    "deadline_exceeded",
    "from_upstream",
    "internal",
    "invalid_request",
]


# The reason of the error that stands for a generation that somebody stopped by its id.
CANCELLED_BY_CALL: Final = "CANCELLED_BY_CALL"

# The limit whose refusals OpenAI gives a type of their own.
_TOKENS_LIMIT: Final = "tokens_per_minute"
_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"
# In the metadata of errors that came after output: running it again would cost it all again.
_AFTER_OUTPUT: Final = "lastSequence"


def _is_after_output(metadata: Mapping[str, str]) -> bool:
    """Return whether more than the first event, which only says that the engine began, had been sent."""
    return metadata.get(_AFTER_OUTPUT, "1") not in ("0", "1")


@dataclass(slots=True, eq=False)
class ApiError(Exception):
    """A failure as the caller sees it.

    `param` is the name of the JSON member at fault. `reason` is for logs and
    spans: the service's ErrorReason or gRPC status, never sent by itself. `limits`
    are headers that tell where the caller's limits stand.
    """

    http_status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    should_retry: bool = False
    retry_after_s: float | None = None
    reason: str | None = None
    limits: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.http_status} {self.code or self.type}: {self.message}"

    def document(self) -> str:
        """Return the error object as JSON text, for a body or for an event within a stream."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error})

    def headers(self) -> dict[str, str]:
        """Return the headers that belong to this answer."""
        headers = {"x-should-retry": "true" if self.should_retry else "false", **self.limits}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after_s))
            headers["retry-after-ms"] = str(math.ceil(self.retry_after_s * 1000))
        if self.http_status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


# A field of the contract within a sentence.
_FIELD: Final = re.compile(r"[a-z]+(?:[._][a-z]+)+")
# Members within messages and tools that the API calls otherwise, or keeps one level deeper.
_MEMBER: Final = re.compile(r"(?<=\.)(parameters_json_schema|function_name|arguments_json|reasoning_text)\b")
_MEMBERS: Final[Mapping[str, str]] = {
    "parameters_json_schema": "parameters",
    "function_name": "function.name",
    "arguments_json": "function.arguments",
    "reasoning_text": "reasoning_content",
}


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
                if name == "logit_bias" and rest:
                    # Keys of an object: as the schema's own problems name them.
                    return f"{name}.{rest[1:-1]}"
                return name + _MEMBER.sub(lambda found: _MEMBERS[found[0]], rest)
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
    return ApiError(500, _SERVER, SERVER_FAULT, reason="INTERNAL")


def deadline_exceeded(message: str) -> ApiError:
    """Return what is said when the time of a request is over in the gateway itself."""
    outcome = by_status["DEADLINE_EXCEEDED"]
    return ApiError(outcome.http_status, outcome.type, message, code=outcome.code, reason="DEADLINE_EXCEEDED")


def cancelled() -> ApiError:
    """Return what the reader of a generation is told that somebody stopped by its id."""
    outcome = by_status["CANCELLED"]
    text = "The generation was cancelled by a call of CancelGeneration."
    return ApiError(outcome.http_status, outcome.type, text, code=outcome.code, reason=CANCELLED_BY_CALL)


def from_upstream(
    status: str,
    reason: str | None,
    message: str,
    *,
    naming: Naming | None = None,
    violations: Sequence[tuple[str, str]] = (),
    metadata: Mapping[str, str] | None = None,
    retry_after_s: float | None = None,
    limits: Mapping[str, str] | None = None,
    has_key: bool = True,
) -> ApiError:
    """Return what the caller is told about a call that ended with a non-OK status.

    `violations` are (contract path, description) pairs, all of which end up in
    the message; `param` is the first one's JSON name. `metadata` is that of the
    ErrorInfo, `limits` the headers about the caller's limits. `has_key` says whether
    the caller sent credentials.
    """
    outcome = _outcome(status, reason, is_about_fields=bool(violations))
    text = message if reason is not None and message else fixed_texts.get(status, SERVER_FAULT)
    code, param = outcome.code, None
    found = violations
    if reason == "CAPABILITY_UNSUPPORTED" and not found:
        # An engine that found it out late names the fields only there.
        found = [(path, _UNSUPPORTED) for path in (metadata or {}).get("capability", "").split(",") if path]
    if found:
        naming = naming or Naming(fields={}, prompt="prompt")
        worded = [_word(naming, path, description, code) for path, description in found]
        param, code = worded[0].param, worded[0].code
        text = " ".join(dict.fromkeys(sentence.text for sentence in worded))
    elif naming is not None and reason == "CONTEXT_LENGTH_EXCEEDED":
        param = naming.prompt
        text = _context_text(naming.prompt, metadata or {}) or text
    elif naming is not None and naming.model is not None and reason == "MODEL_NOT_FOUND":
        text = f"The model `{naming.model[:128]}` does not exist or you do not have access to it."
    elif outcome.http_status == 401 and not has_key:
        text, code = _NO_KEY, None
    is_of_tokens = reason == "RATE_LIMITED" and (metadata or {}).get("limit") == _TOKENS_LIMIT
    return ApiError(
        outcome.http_status,
        "tokens" if is_of_tokens else outcome.type,
        text,
        param=param,
        code=code,
        should_retry=outcome.should_retry and not _is_after_output(metadata or {}),
        retry_after_s=retry_after_s,
        reason=reason or status,
        limits=limits or {},
    )


def _outcome(status: str, reason: str | None, *, is_about_fields: bool) -> Outcome:
    known = by_reason.get(reason or "")
    if known is not None:
        return known
    if reason is not None and status == "RESOURCE_EXHAUSTED":
        # A limit that this version does not know; nothing says that haste helps.
        return Outcome(429, "requests", "rate_limit_exceeded")
    if status == "UNIMPLEMENTED" and is_about_fields:
        return by_reason["CAPABILITY_UNSUPPORTED"]
    return by_status.get(status) or by_status["UNKNOWN"]


class _Sentence(NamedTuple):
    text: str
    param: str
    code: str | None


_UNSUPPORTED: Final = "not supported"
_NO_KEY: Final = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header "
    "using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
)


def _word(naming: Naming, path: str, description: str, code: str | None) -> _Sentence:
    name, said = naming.json_name(path), naming.spell(description).rstrip(".")
    if not path:  # of no field: how many more there are
        return _Sentence(f"{said[:1].upper()}{said[1:]}.", name, code)
    if code == "unsupported_parameter":
        text = f"Unsupported parameter: '{name}' is not supported with this model."
        return _Sentence(text if said.startswith(_UNSUPPORTED) else f"{text} {said[:1].upper()}{said[1:]}.", name, code)
    if said == "required":
        return _Sentence(f"Missing required parameter: '{name}'.", name, "missing_required_parameter")
    return _Sentence(f"Invalid '{name}': {said}.", name, code)


def _context_text(prompt: str, metadata: Mapping[str, str]) -> str | None:
    """Return OpenAI's sentence about a full context window; None if the numbers for it are not known."""
    limit, got, wanted = (metadata.get(key) for key in ("maxContextTokens", "promptTokens", "requestedOutputTokens"))
    if limit is None or not all(number is None or number.isdigit() for number in (got, wanted)):
        return None
    start = f"This model's maximum context length is {limit} tokens. However, "
    if got is None:  # a prompt far too long is not counted to its end; clients know the sentence by its start
        return f"{start}your {prompt} resulted in more tokens. Please reduce the length of the {prompt}."
    if wanted is None:
        return f"{start}your {prompt} resulted in {got} tokens. Please reduce the length of the {prompt}."
    return (
        f"{start}you requested {int(got) + int(wanted)} tokens ({got} in the {prompt}, {wanted} in the completion). "
        f"Please reduce the length of the {prompt} or completion."
    )
