"""How a call ended, from what the peer sent: trailers, an HTTP answer, a reset. Pure.

The tables are those of gRPC over HTTP/2 ("Errors" and "HTTP to gRPC status
code mapping").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import grpc

from headrace._http2.frames import ErrorCode
from headrace._http2.metadata import Field, Metadata, decode_message, metadata_of

__all__ = ["OK", "Outcome", "end_without_trailers", "outcome_of_refusal", "outcome_of_reset", "outcome_of_trailers"]

Code = grpc.StatusCode

CODES: Final = {code.value[0]: code for code in Code}
STATUS_BY_HTTP: Final[Mapping[int, grpc.StatusCode]] = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}
STATUS_BY_RESET: Final[Mapping[int, grpc.StatusCode]] = {
    ErrorCode.NO_ERROR: Code.INTERNAL,
    ErrorCode.PROTOCOL_ERROR: Code.INTERNAL,
    ErrorCode.INTERNAL_ERROR: Code.INTERNAL,
    ErrorCode.FLOW_CONTROL_ERROR: Code.INTERNAL,
    ErrorCode.SETTINGS_TIMEOUT: Code.INTERNAL,
    ErrorCode.STREAM_CLOSED: Code.INTERNAL,
    ErrorCode.FRAME_SIZE_ERROR: Code.INTERNAL,
    ErrorCode.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.COMPRESSION_ERROR: Code.INTERNAL,
    ErrorCode.CONNECT_ERROR: Code.INTERNAL,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A status, its text, and the trailing metadata."""

    status: grpc.StatusCode
    message: str = ""
    trailers: Metadata = ()


OK: Final = Outcome(Code.OK)


def outcome_of_trailers(fields: list[Field]) -> Outcome:
    """Return the outcome that trailers tell, or a response that is headers only."""
    found = dict(fields)
    raw = found.get(b"grpc-status")
    if raw is None:
        return _outcome_of_http(found) or Outcome(Code.UNKNOWN, "the server's trailers have no grpc-status")
    status = CODES.get(int(raw), Code.UNKNOWN) if raw.isdigit() else Code.UNKNOWN
    told = tuple(pair for pair in metadata_of(fields) if pair[0] not in _NOT_METADATA)
    if status is Code.OK:
        return Outcome(Code.OK, trailers=told) if told else OK
    message = decode_message(found.get(b"grpc-message", b""))
    return Outcome(status, message, told)


def outcome_of_refusal(fields: list[Field]) -> Outcome | None:
    """Return why headers that are not the last ones do not begin a gRPC response, or None if they do."""
    found = dict(fields)
    if b"grpc-status" in found and found.get(b":status") != b"200":
        return outcome_of_trailers(fields)
    refusal = _outcome_of_http(found)
    if refusal is not None:
        return refusal
    content_type = found.get(b"content-type", b"")
    if content_type != b"application/grpc" and not content_type.startswith(
        (b"application/grpc+", b"application/grpc;")
    ):
        return Outcome(Code.UNKNOWN, f"the answer is not gRPC: content-type {content_type.decode('latin-1')!r}")
    return None


def outcome_of_reset(code: int) -> Outcome:
    """Return the outcome of a stream that the peer reset."""
    name = ErrorCode(code).name if code in STATUS_BY_RESET or code == ErrorCode.HTTP_1_1_REQUIRED else str(code)
    return Outcome(STATUS_BY_RESET.get(code, Code.UNKNOWN), f"the server reset the stream: {name}")


def end_without_trailers() -> Outcome:
    """Return the outcome of a stream that just ended."""
    return Outcome(Code.INTERNAL, "the server ended the stream without trailers")


_NOT_METADATA: Final = frozenset({"grpc-status", "grpc-message", "content-type"})


def _outcome_of_http(found: Mapping[bytes, bytes]) -> Outcome | None:
    raw = found.get(b":status")
    if raw is None or raw == b"200":
        return None
    status = int(raw) if raw.isdigit() else 0
    return Outcome(STATUS_BY_HTTP.get(status, Code.UNKNOWN), f"the server answered with HTTP status {status}")
