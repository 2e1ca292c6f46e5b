"""Triton's failures as `ServiceError`: one table over the texts, one over the status codes.

Triton's texts carry server paths and tracebacks, so they go to `detail`; the
caller gets a fixed sentence. Texts were collected from a real server 2.51.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import grpc

from service.core.errors import Reason, ServiceError, Violation

__all__ = [
    "fault_from_status",
    "fault_from_text",
    "fault_of_stream",
    "is_configuration_fault",
    "is_death",
    "is_misfit",
    "is_refusal",
    "is_retriable",
    "misfit",
]

_RETRY_AFTER_S: Final = 1.0

_Build = Callable[[re.Match[str]], ServiceError]


def _unavailable(message: str) -> _Build:
    return lambda _: ServiceError(Reason.BACKEND_UNAVAILABLE, message, retry_after_s=_RETRY_AFTER_S)


def _failed(message: str) -> _Build:
    return lambda _: ServiceError(Reason.BACKEND_ERROR, message)


def _too_long(match: re.Match[str]) -> ServiceError:
    numbers = match.groupdict()
    names = {"prompt": "promptTokens", "context": "maxContextTokens"}
    metadata = {names[key]: value for key, value in numbers.items() if value is not None}
    return ServiceError(
        Reason.CONTEXT_LENGTH_EXCEEDED,
        "The prompt does not fit into the model's context; shorten it or ask for less output.",
        metadata=metadata,
    )


def _bad_guide(match: re.Match[str]) -> ServiceError:
    # The compiler's own words help the caller; only their first line, without what quotes the server.
    reason = (match.groupdict().get("reason") or "").split("\n", 1)[0].strip()[:300]
    description = f"the model cannot use it: {reason}" if reason else "the model cannot use it"
    violation = Violation("constraint", description)
    return ServiceError(Reason.INVALID_FIELD, f"constraint: {description}", violations=(violation,))


def _bad_words(match: re.Match[str]) -> ServiceError:
    description = f"the model cannot ban it: {match['reason'].strip()[:300]}"
    violation = Violation("sampling.bad_words", description)
    return ServiceError(Reason.INVALID_FIELD, f"sampling.bad_words: {description}", violations=(violation,))


def _least_with_guide(_: re.Match[str]) -> ServiceError:
    description = "the model cannot combine it with a constraint"
    violation = Violation("sampling.min_output_tokens", description)
    return ServiceError(Reason.INVALID_FIELD, f"sampling.min_output_tokens: {description}", violations=(violation,))


_UNREACHABLE_MESSAGE: Final = "The inference server cannot be reached; try again shortly."
_MISFIT_MESSAGE: Final = "The model on the inference server does not have the interface that the service expects."
_DEAD_PROCESS_MESSAGE: Final = "The inference server's model process has died; it has to load the model again."
_EXITING_MESSAGE: Final = "The inference server is shutting down; try again shortly."
_CONFIGURATION_MESSAGE: Final = "The model's interface does not fit the service's configuration."
_CONFIGURATION: Final = _failed(_CONFIGURATION_MESSAGE)

# Searched in order; the first that matches decides.
_TEXTS: Final[tuple[tuple[re.Pattern[str], _Build], ...]] = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), build)
    for pattern, build in (
        (r"prompt length:? \(?(?P<prompt>\d+)\)? exceeds [a-z ]*\(?(?P<context>\d+)", _too_long),
        (r"request \((?P<prompt>\d+) tokens\) exceeds the available context size \((?P<context>\d+)", _too_long),
        (r"exceeds the (?:maximum|model'?s?)[^.]*(?:sequence|context|input) length", _too_long),
        (r"maximum context length is (?P<context>\d+)", _too_long),
        (r"prompt \(length (?P<prompt>\d+)\) is longer than the maximum model length of (?P<context>\d+)", _too_long),
        (r"sum of prompt length \((?P<prompt>\d+)[^)]*\).* should not exceed", _too_long),
        (r"bad_words(?:_list)?'?:? (?P<reason>[^\n]*(?:supported|tokens)[^\n]*)", _bad_words),
        (r"min_tokens cannot be combined with guided", _least_with_guide),
        (r"(?:guided_decoding_guide|structured_outputs)[^\n]* does not compile: (?P<reason>.*)", _bad_guide),
        (r"guided_decoding_guide|failed to parse grammar|guided decoding", _bad_guide),
        (
            r"request was cancelled|cancelled by the (?:server|engine)",
            _unavailable("The inference server gave the request up."),
        ),
        (r"exceeds maximum queue size", _unavailable("The inference server's queue is full; try again shortly.")),
        (
            # An id of ours is never used twice: whoever has it now came from elsewhere, or was not yet forgotten.
            r"is already in progress",
            _unavailable("The inference server did not take the request; try again."),
        ),
        (
            r"request timeout expired",
            _unavailable("The inference server did not get to the request in time; try again."),
        ),
        (r"stub process .* is not healthy", _unavailable(_DEAD_PROCESS_MESSAGE)),
        (
            r"request for unknown model|has no available versions|is not found|not ready",
            _unavailable("The model is not loaded on the inference server; try again once it is."),
        ),
        (
            r"server is stopping|server exiting|has stopped accepting new",
            _unavailable(_EXITING_MESSAGE),
        ),
        (
            (
                r"'NoneType' object has no attribute 'lora_name'"  # vLLM: parameters that it could not read
                r"|streaming is only supported|doesn't support models with decoupled"
                r"|unexpected inference (?:input|output)|missing required input|data-type is|unexpected shape"
                r"|byte size mismatch|already exists in request|unable to find data|contents field must"
                r"|batch-size must be|incomplete string data|input '[^']*' is required"
            ),
            _CONFIGURATION,
        ),
    )
)

_STATUSES: Final = {
    grpc.StatusCode.UNAVAILABLE: _unavailable(_UNREACHABLE_MESSAGE),
    grpc.StatusCode.NOT_FOUND: _unavailable("The model is not loaded on the inference server; try again once it is."),
    grpc.StatusCode.RESOURCE_EXHAUSTED: _failed(
        "A message to or from the inference server is too large; shorten the prompt or ask for less at once."
    ),
}
_ANY: Final = _failed("The inference server failed to generate.")
_NO_MATCH: Final = re.compile("")


def fault_from_text(text: str, *, has_output: bool) -> ServiceError:
    """Return the fault behind an in-band `error_message`.

    The caller's own mistakes count as such only before any output: after it
    they cannot be, and become BACKEND_ERROR.
    """
    error = _search(text) or _ANY(_match(text))
    if has_output and is_refusal(error):
        error = _ANY(_match(text))
    error.detail = text
    return error


def fault_from_status(error: Any, *, has_output: bool) -> ServiceError:
    """Return the fault behind a gRPC status (`grpc.aio.AioRpcError`): its text first, then its code."""
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        fault = ServiceError(Reason.DEADLINE_IN_DECODE, "The deadline passed while the model generated.")
    else:
        # "Not ready" and the like are Triton's words; the code alone says less.
        fault = _search(text) or _STATUSES.get(code, _ANY)(_match(text))
        if has_output and is_refusal(fault):
            fault = _ANY(_match(text))
    fault.detail = f"{code.name}: {text}"
    return fault


def fault_of_stream(what: str) -> ServiceError:
    """Return the fault of a stream that ended or went silent against the protocol; `what` is for the log."""
    fault = ServiceError(
        Reason.BACKEND_UNAVAILABLE,
        "The inference server stopped answering before the generation was complete; try again.",
        retry_after_s=_RETRY_AFTER_S,
    )
    fault.detail = what
    return fault


def misfit(what: str) -> ServiceError:
    """Return the fault of a model that cannot be served; `what` is for the log."""
    return ServiceError(
        Reason.BACKEND_ERROR,
        _MISFIT_MESSAGE,
        detail=what,
    )


def is_misfit(error: ServiceError) -> bool:
    """Whether waiting cannot mend it: the model on that server has to change."""
    return error.message == _MISFIT_MESSAGE


def is_retriable(error: ServiceError) -> bool:
    """Whether another server may take the request, given that this one has sent no output."""
    return error.reason is Reason.BACKEND_UNAVAILABLE or is_misfit(error)


def is_refusal(error: ServiceError) -> bool:
    """Whether the engine refused the request itself, so that nothing runs."""
    return error.reason in (Reason.INVALID_FIELD, Reason.CONTEXT_LENGTH_EXCEEDED)


def is_death(error: ServiceError, contract: str) -> bool:
    """Whether what is silent there stays silent: the model's process is gone, or the server of an ensemble is going.

    A server that shuts down lets other streams run to their end, a long prefill
    included; its port may be closed by then, and the process still be there.
    """
    is_going = error.message in (_EXITING_MESSAGE, _UNREACHABLE_MESSAGE)
    return error.message == _DEAD_PROCESS_MESSAGE or (is_going and contract == "ensemble")


def is_configuration_fault(error: ServiceError) -> bool:
    """Whether the model no longer looks as it was described: its description has to be read again."""
    return error.message == _CONFIGURATION_MESSAGE or error.reason is Reason.BACKEND_UNAVAILABLE


def _search(text: str) -> ServiceError | None:
    for pattern, build in _TEXTS:
        match = pattern.search(text)
        if match is not None:
            return build(match)
    return None


def _match(text: str) -> re.Match[str]:
    match = _NO_MATCH.match(text)
    assert match is not None
    return match
