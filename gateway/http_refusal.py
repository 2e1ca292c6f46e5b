"""What a connection answers to bytes that never become a request."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from gateway.exchange import request_id_from
from gateway.openai.errors import ApiError, invalid_request

__all__ = ["MAX_HEAD_BYTES", "check_host", "head_too_large", "head_too_slow", "response_bytes"]

MAX_HEAD_BYTES: Final = 64 * 1024


def head_too_large() -> ApiError:
    """Return the refusal of headers or trailers above `MAX_HEAD_BYTES`."""
    return invalid_request(
        f"The request's header fields are larger than this server takes ({MAX_HEAD_BYTES} bytes).",
        code="request_header_fields_too_large",
        http_status=431,
    )


def head_too_slow(timeout_s: float) -> ApiError:
    """Return the refusal of a head that does not come to its end."""
    return ApiError(
        408, "invalid_request_error", f"The request's head did not arrive within {timeout_s:g} seconds.",
        code="request_timeout",
    )  # fmt: skip


def check_host(headers: Sequence[tuple[bytes, bytes]], version: str) -> None:
    """ApiError unless a request names its host as it has to (RFC 9112 3.2): once, or in HTTP/1.0 at most once."""
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version != "1.0"):
        raise invalid_request("A request has to have one 'Host' header field.")


def response_bytes(error: ApiError) -> bytes:
    """Return the whole response, which ends its connection."""
    body = error.document().encode("ascii")
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **error.headers(),
        "x-request-id": request_id_from({}),
        "connection": "close",
    }
    reason = HTTPStatus(error.http_status).phrase
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {error.http_status} {reason}\r\n{head}\r\n".encode("ascii") + body
