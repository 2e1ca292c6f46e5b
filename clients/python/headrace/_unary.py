"""Unary calls: a timeout, metadata, a span, and an exception for each that fails.

It owns what every call of a client sends with it. It must not know which calls
there are (`_aio`) or what they go over (`_connection`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from opentelemetry.context import Context
from opentelemetry.trace import Tracer

from headrace._telemetry import CallSpan
from headrace.errors import error_from_rpc

__all__ = ["UNARY_TIMEOUT_S", "CallMetadata", "UnaryCaller", "finite_s", "metadata_pairs"]

CallMetadata = Sequence[tuple[str, str]] | Mapping[str, str]
Pairs = tuple[tuple[str, str | bytes], ...]
UnaryCall = Callable[..., Awaitable[Any]]

UNARY_TIMEOUT_S: Final = 10.0
# https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, Header-Name and ASCII-Value
KEY: Final = re.compile(r"[0-9a-z_.-]+")
VALUE: Final = re.compile(r"[\x20-\x7e]*")


class UnaryCaller:
    """Makes the unary calls of one client. `metadata` goes with every one of them."""

    __slots__ = ("_target", "_tracer", "metadata")

    def __init__(self, target: str, metadata: CallMetadata, tracer: Tracer) -> None:
        self._target = target
        self._tracer = tracer
        self.metadata = metadata_pairs(metadata)

    def span(self, method: str, context: Context | None) -> CallSpan:
        """Begin the span of one call."""
        return CallSpan(self._tracer, method, self._target, context)

    def metadata_of(self, own: Pairs, span: CallSpan) -> Pairs:
        """Return all metadata of one call: the client's, its own, and the trace context."""
        return (*self.metadata, *own, *span.metadata)

    async def call(
        self,
        method: str,
        call: UnaryCall,
        request: Message,
        timeout_s: float | None,
        metadata: CallMetadata = (),
        context: Context | None = None,
    ) -> Any:
        """Make a call and return its answer; None as a timeout is 10 s.

        Raises HeadraceError if it fails, and ValueError for a timeout that is not
        a finite number and metadata that cannot be sent. Cancelling the awaiting
        task cancels the call.
        """
        limit_s, own = finite_s(timeout_s, UNARY_TIMEOUT_S), metadata_pairs(metadata)
        span = self.span(method, context)
        try:
            response = await call(request, timeout=limit_s, metadata=self.metadata_of(own, span))
        except grpc.aio.AioRpcError as failure:
            error = error_from_rpc(failure)
            span.end_error(error)
            raise error from failure
        except BaseException:
            span.end_cancelled()
            raise
        span.end_ok()
        return response


def finite_s(timeout_s: float | None, default_s: float) -> float:
    """Return the timeout of a call. Raises ValueError for one that is not a finite number."""
    if timeout_s is None:
        return default_s
    if not math.isfinite(timeout_s):
        raise ValueError(f"timeout_s has to be a finite number of seconds, got {timeout_s}")
    return timeout_s


def metadata_pairs(metadata: CallMetadata) -> Pairs:
    """Return metadata as gRPC takes it. Raises ValueError for a key or value that it does not, and names the key."""
    items = metadata.items() if isinstance(metadata, Mapping) else metadata
    return tuple(_pair(key.lower(), value) for key, value in items)  # gRPC refuses upper case


def _pair(key: str, value: str | bytes) -> tuple[str, str | bytes]:
    if not KEY.fullmatch(key):
        raise ValueError(f"metadata key {key!r}: letters, digits, and _ . - are possible")
    if key.endswith("-bin"):
        return key, value.encode() if isinstance(value, str) else value
    # The value stays out of the message: it may be a secret.
    if not isinstance(value, str) or not VALUE.fullmatch(value):
        raise ValueError(f"metadata key {key!r}: its value has to be text of printable ASCII characters")
    return key, value
