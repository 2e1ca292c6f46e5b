"""What a request says of keys and retention, and what is kept so that its stream can be written again.

`Idempotency-Key` makes a repetition safe; `Retain-For-Ms`,
`Continue-On-Disconnect` and `background` ask for retention by themselves. The annotation that
goes with such a request holds what the shape of its answer depends on, and not
what was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.openai.errors import ApiError, invalid_request
from gateway.openai.event_ids import LAST_EVENT_ID
from gateway.openai.requests import Endpoint, GenerationCall, parse
from gateway.openai.responses.call import ResponsesCall
from gateway.openai.responses.call import parse as parse_response

__all__ = [
    "CONTINUE_ON_DISCONNECT",
    "IDEMPOTENCY_KEY",
    "RETAIN_FOR",
    "annotated_call",
    "annotated_response",
    "are_of_one_request",
    "joined_call",
    "of_another_request",
    "retained",
]

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
RETAIN_FOR: Final = "Retain-For-Ms"
CONTINUE_ON_DISCONNECT: Final = "Continue-On-Disconnect"

_KEY: Final = re.compile(r"[\x21-\x7e]{1,128}")
_MAX_DIGITS: Final = 9
_MAX_ANNOTATION_BYTES: Final = 65_536
_PLACEHOLDER: Final = "-"
# What the answer's shape depends on, by endpoint; of the Responses API everything, which its documents repeat.
_SHAPE: Final[Mapping[str, frozenset[str]]] = {
    "chat": frozenset({"model", "n", "logprobs", "top_logprobs", "stream", "stream_options", "service_tier"}),
    "completions": frozenset({"model", "n", "best_of", "logprobs", "stream", "stream_options", "service_tier"}),
}
_PARSERS: Final[Mapping[str, Callable[[bytes], GenerationCall]]] = {
    "chat": lambda body: parse(Endpoint.CHAT, body),
    "completions": lambda body: parse(Endpoint.COMPLETION, body),
    "responses": parse_response,
}


def retained(call: GenerationCall, headers: Mapping[str, str], body: bytes) -> GenerationCall:
    """Return the call with what the headers ask of retention; itself if that is nothing.

    The requests in it are changed in place. ApiError (400) that names every header
    that is wrong.
    """
    problems: list[str] = []
    key = headers.get(IDEMPOTENCY_KEY.lower(), "")
    several = call.plan is not None and len(call.plan.requests) > 1
    if IDEMPOTENCY_KEY.lower() in headers and not _KEY.fullmatch(f"{key}#0000" if several else key):
        most = 123 if several else 128
        problems.append(f"Invalid '{IDEMPOTENCY_KEY}' header: expected 1 to {most} visible ASCII characters.")
    retain_ms = _milliseconds(headers, problems)
    in_background = isinstance(call, ResponsesCall) and call.background
    continues = _flag(headers, problems) or in_background
    if problems:
        names = [name for name in (IDEMPOTENCY_KEY, RETAIN_FOR, CONTINUE_ON_DISCONNECT) if f"'{name}'" in problems[0]]
        raise invalid_request(" ".join(problems), param=names[0], code="invalid_value")
    if not key and retain_ms is None and not continues:
        return call
    if call.plan is not None and several:
        _refuse_retention(is_asked=retain_ms is not None, continues=continues)
        for number, request in enumerate(call.plan.requests):
            request.idempotency_key = f"{key}#{number}"
        return call
    request = call.request if call.plan is None else call.plan.requests[0]
    annotation = _annotation(call, body)
    if in_background and not annotation:
        raise invalid_request(
            "Invalid request: what a response in the background repeats of it (instructions, tools, text and the like, "
            f"not the input) may have {_MAX_ANNOTATION_BYTES} bytes. Shorten it, or leave 'background' away.",
            param="background",
            code="invalid_value",
        )
    request.idempotency_key = key
    request.retention.SetInParent()
    if retain_ms is not None:
        request.retention.retain_for.FromMilliseconds(retain_ms)
    request.retention.continue_on_disconnect = continues
    request.retention.annotation = annotation
    return replace(call, is_retained=True)


def annotated_call(annotation: bytes) -> GenerationCall:
    """Return a call whose reader writes the stream that a retained generation was asked for as.

    ApiError (400) if it was not asked for over HTTP, or with more than is kept.
    """
    try:
        kept = json.loads(annotation)
        call = _PARSERS[kept["api"]](json.dumps(kept["body"]).encode())
    except (ValueError, KeyError, TypeError, ApiError):
        raise invalid_request(
            "This generation cannot be shown as a stream of this API: it was asked for over gRPC, or what its answer's "
            "shape depends on was too long to keep.",
            code="generation_not_streamable",
        ) from None
    return replace(call, stream=True, is_retained=True)


def joined_call(annotation: bytes, call: GenerationCall) -> GenerationCall:
    """Return the call that writes the stream again which `call` repeats: in the shape that it was begun with.

    ApiError (400) if that was another API's, or of another number of choices. Without
    an annotation nothing is known of it, and the repetition says the shape.
    """
    begun = annotated_call(annotation) if annotation else replace(call, is_retained=True)
    is_same_api = (
        isinstance(begun, ResponsesCall) is isinstance(call, ResponsesCall) and begun.endpoint is call.endpoint
    )
    several = call.plan is not None and len(call.plan.requests) > 1
    if several or not is_same_api or begun.choices != call.choices:
        raise of_another_request()
    if annotation and not json.loads(annotation)["body"].get("stream"):
        # It was begun as a whole answer, so that its streams are as their readers ask.
        return replace(begun, include_usage=call.include_usage)
    return begun


def of_another_request() -> ApiError:
    """Return the refusal of a `Last-Event-ID` that does not belong to the request it came with."""
    return invalid_request(
        f"The '{LAST_EVENT_ID}' header is that of another request's stream. Repeat the request that began the stream, "
        f"or leave '{LAST_EVENT_ID}' away to begin anew.",
        param=LAST_EVENT_ID,
        code="invalid_value",
    )


def annotated_response(annotation: bytes) -> ResponsesCall | None:
    """Return a call whose reader writes the response, streamed, that a retained generation is; None if it is none."""
    try:
        call = annotated_call(annotation)
    except ApiError:
        return None
    return call if isinstance(call, ResponsesCall) else None


def are_of_one_request(annotation: bytes, other: bytes) -> bool:
    """Return whether two annotations of responses come from requests with the same content; False if unknown."""
    digest = _digest_in(annotation)
    return digest is not None and digest == _digest_in(other)


def _digest_in(annotation: bytes) -> str | None:
    try:
        digest = json.loads(annotation).get("digest")
    except (ValueError, AttributeError):
        return None
    return digest if isinstance(digest, str) else None


def _annotation(call: GenerationCall, body: bytes) -> bytes:
    """Return the annotation, empty if it would be too long. Of a request without key and policy."""
    asked: dict[str, Any] = json.loads(body)
    beside = {}
    if isinstance(call, ResponsesCall):
        api, shape = "responses", {**asked, "input": _PLACEHOLDER}
        content = call.request.SerializeToString(deterministic=True)
        beside["digest"] = hashlib.blake2b(content, digest_size=16).hexdigest()
    else:
        api = "chat" if call.endpoint is Endpoint.CHAT else "completions"
        shape = {name: value for name, value in asked.items() if name in _SHAPE[api]}
        if api == "chat":
            shape["messages"] = [{"role": "user", "content": _PLACEHOLDER}]
        else:
            shape["prompt"] = asked["prompt"] if asked.get("echo") else _PLACEHOLDER
            shape["echo"] = bool(asked.get("echo"))
    annotation = json.dumps({"api": api, "body": shape, **beside}, separators=(",", ":")).encode()
    return annotation if len(annotation) <= _MAX_ANNOTATION_BYTES else b""


def _refuse_retention(*, is_asked: bool, continues: bool) -> None:
    named = [name for name, given in ((RETAIN_FOR, is_asked), (CONTINUE_ON_DISCONNECT, continues)) if given]
    if named:
        raise invalid_request(
            f"Unsupported header: {' and '.join(map(repr, named))} cannot be used with several prompts in one request, "
            f"whose stream cannot be continued. Send a request for each prompt, or an '{IDEMPOTENCY_KEY}' alone.",
            param=named[0],
            code="unsupported_value",
        )


def _milliseconds(headers: Mapping[str, str], problems: list[str]) -> int | None:
    given = headers.get(RETAIN_FOR.lower())
    if given is None:
        return None
    text = given.strip()
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    problems.append(f"Invalid '{RETAIN_FOR}' header: expected a whole number of milliseconds.")
    return None


def _flag(headers: Mapping[str, str], problems: list[str]) -> bool:
    text = headers.get(CONTINUE_ON_DISCONNECT.lower(), "false").strip().lower()
    if text not in {"true", "false"}:
        problems.append(f"Invalid '{CONTINUE_ON_DISCONNECT}' header: expected true or false.")
    return text == "true"
