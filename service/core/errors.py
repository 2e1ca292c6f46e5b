"""The one failure type of the service, with a closed list of reasons.

The mapping from a reason to a gRPC status lives in `service.rpc.status`; this
module must not know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

__all__ = ["Reason", "ServiceError", "Violation", "invalid"]

# A line that somebody reads.
_NAMED_IN_MESSAGE: Final = 10


class Reason(Enum):
    """Why a call failed. The values are those of `headrace.v1.ErrorReason`."""

    INVALID_FIELD = 1
    CONTEXT_LENGTH_EXCEEDED = 2
    CAPABILITY_UNSUPPORTED = 3
    MODEL_NOT_FOUND = 4
    MODEL_NOT_READY = 5
    QUEUE_FULL = 6
    RATE_LIMITED = 7
    QUOTA_EXHAUSTED = 8
    DEADLINE_TOO_SHORT = 9
    DEADLINE_IN_QUEUE = 10
    DEADLINE_IN_DECODE = 11
    DRAINING = 12
    BACKEND_UNAVAILABLE = 13
    BACKEND_ERROR = 14
    CONSUMER_TOO_SLOW = 15
    IDEMPOTENCY_MISMATCH = 16
    GENERATION_NOT_FOUND = 17
    REPLAY_EXPIRED = 18
    UNAUTHENTICATED = 19
    PERMISSION_DENIED = 20
    INTERNAL = 21
    QUEUE_TIMEOUT = 22
    FIRST_TOKEN_TIMEOUT = 23
    TOKEN_GAP_TIMEOUT = 24
    GENERATION_LOST = 25
    STORE_UNAVAILABLE = 26


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong with one field.

    `field` is the proto path (`sampling.temperature`, `stop.sequences[3]`);
    `description` says what is accepted and what was sent. Of a limit that was
    reached, `field` is whose it is (`tenant:NAME`).
    """

    field: str
    description: str


@dataclass(slots=True, eq=False)
class ServiceError(Exception):
    """A failure with a reason that callers can act on.

    `message` is sent to the caller: it says what the caller can do, and holds
    nothing of the server's inside. `detail` is for the log and the span alone.
    `metadata` keys are lowerCamel, after AIP-193. `retry_after_s` becomes
    RetryInfo. `headers` go beside the status as they are: few, short, and with
    names in lower case.
    """

    reason: Reason
    message: str
    violations: Sequence[Violation] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    detail: str | None = None
    headers: Sequence[tuple[str, str]] = ()

    def __str__(self) -> str:
        return f"{self.reason.name}: {self.message}"


def invalid(violations: Sequence[Violation]) -> ServiceError:
    """Return the refusal that names every violation at once; its message names the first ones if they are many."""
    first = violations[:_NAMED_IN_MESSAGE]
    told = [f"{v.field}: {v.description}" if v.field else v.description for v in first]
    if len(violations) > len(first):
        told.append(f"and {len(violations) - len(first)} more")
    message = "; ".join(told)
    return ServiceError(Reason.INVALID_FIELD, message, violations=tuple(violations))
