"""One HTTP exchange: what is known of a request and its answer, for headers, logs, spans and metrics.

Made by the outermost layer, filled in by whoever learns something, read once
at the end. Holds no text of prompts or answers and no credentials.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.context import Context
from starlette.types import ASGIApp, Scope, Send

from gateway.openai.answers import GenerationReader
from gateway.openai.errors import CANCELLED_BY_CALL, ApiError
from gateway.openai.requests import GenerationCall

__all__ = ["Exchange", "client_left", "exchange_of", "request_id_from"]

# The reason of the error that stands for a client who left.
CLIENT_LEFT: Final = "CLIENT_LEFT"

_KEY: Final = "headrace.exchange"
# Longer or stranger ids are replaced: they come back in a header and in logs.
_SANE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """One request and its answer. Times are `time.perf_counter()`."""

    request_id: str
    abort: Callable[[], None] | None = None  # cuts the connection, if the server can
    send: Send  # the server's own, below all middleware: for the body of a stream
    context: Context  # holds the SERVER span: the parent of what follows
    began_s: float  # when its head had arrived
    status: int | None = None  # of the response that began; None if none did
    error: ApiError | None = None  # as told, in the status or within the stream
    outcome: str = "completed"
    call: GenerationCall | None = None
    reader: GenerationReader | None = None
    first_output_s: float | None = None
    last_output_s: float = 0.0
    max_gap_s: float = 0.0  # between two pieces of output, as they were handed over
    trailers: dict[str, str] = field(default_factory=dict)  # that calls to the service ended with
    work: ASGIApp | None = None  # what makes the response behind the framework; `gateway.handover` has the reason

    def elapsed_s(self) -> float:
        """Return the seconds since the head of the request had arrived."""
        return time.perf_counter() - self.began_s

    def on_output(self) -> None:
        """Note that output is being handed over."""
        now_s = self.elapsed_s()
        if self.first_output_s is None:
            self.first_output_s = now_s
        elif now_s - self.last_output_s > self.max_gap_s:
            self.max_gap_s = now_s - self.last_output_s
        self.last_output_s = now_s

    def fail(self, error: ApiError) -> None:
        """Note the failure that the caller is told."""
        self.error = error
        if error.reason is not None and error.reason.startswith("DEADLINE"):
            self.outcome = "deadline_exceeded"
        elif error.reason == CLIENT_LEFT:
            self.outcome = "client_cancelled"
        elif error.reason == CANCELLED_BY_CALL:
            self.outcome = "cancelled"
        else:
            # 499 is a call that somebody behind the gateway cancelled.
            self.outcome = "failed" if error.http_status >= 499 else "rejected"

    async def cut(self) -> None:
        """Cut the connection without an end of the response, so that nobody takes it for one."""
        if self.abort is not None:
            self.abort()
            # The server learns of it in the next turn of the loop.
            await asyncio.sleep(0)

    def put_into(self, scope: Scope) -> None:
        """Make this the exchange of `scope`."""
        scope[_KEY] = self

    def let_go(self, scope: Scope) -> None:
        """Take it out of `scope` at its end, so that all of it is free at once, and not when cycles are collected.

        The server's `send` holds the scope, and an error the frames that it passed.
        """
        scope.pop(_KEY, None)
        self.error = None


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange of a request that came through the outermost layer."""
    exchange: Exchange = scope[_KEY]
    return exchange


def client_left(text: str) -> ApiError:
    """Return the error that stands for a client who left; nobody reads it but log and span."""
    return ApiError(499, "invalid_request_error", text, reason=CLIENT_LEFT)


def request_id_from(headers: Mapping[str, str]) -> str:
    """Return the caller's X-Request-Id if it is sane, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
