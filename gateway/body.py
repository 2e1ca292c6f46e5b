"""Reads a request body: bounded in size and time, JSON or nothing."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import Receive

from gateway.exchange import client_left
from gateway.openai.errors import ApiError, invalid_request
from gateway.timeouts import Budget

__all__ = ["read_json_body"]


async def read_json_body(
    headers: Headers, receive: Receive, budget: Budget, *, limit_bytes: int, timeout_s: float
) -> bytes:
    """Return the whole body.

    ApiError 415 for a body that says it is something else than JSON, 413 above
    `limit_bytes` (at once if the length is announced), 408 if it is not there
    in time, 504 if the request's own time is over before, 499 if the client left. A
    body without a content type counts as
    JSON, because small clients send none; not from a browser, which could send
    it from any page without a preflight.
    """
    _check_type(headers.get("content-type"), headers.get("content-encoding"), is_browser="origin" in headers)
    announced = headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    left_s = budget.left_s(time.perf_counter())
    try:
        async with asyncio.timeout(min(timeout_s, left_s)):
            return await _read(receive, limit_bytes)
    except TimeoutError:
        if left_s < timeout_s:
            raise budget.used_up("before the request body had arrived; nothing was run") from None
        raise ApiError(
            408, "invalid_request_error", f"The request body did not arrive within {timeout_s:g} seconds.",
            code="request_timeout",
        ) from None  # fmt: skip


async def _read(receive: Receive, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise client_left("The client left before its request was complete.")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _check_type(content_type: str | None, content_encoding: str | None, *, is_browser: bool) -> None:
    if content_encoding not in {None, "", "identity"}:
        raise invalid_request(
            "The request body must not be compressed.", code="unsupported_content_encoding", http_status=415
        )
    default = "none" if is_browser else "application/json"
    media_type = (content_type or default).partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise invalid_request(
            f"Unsupported content type '{media_type[:64]}': the body must be JSON, sent as application/json.",
            code="unsupported_content_type",
            http_status=415,
        )


def _too_large(limit_bytes: int) -> ApiError:
    return invalid_request(
        f"The request body is larger than this server takes ({limit_bytes} bytes).",
        code="request_too_large",
        http_status=413,
    )
