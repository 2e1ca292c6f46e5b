"""Whether and when a call is tried again (gRFC A6). Pure but for the dice."""

from __future__ import annotations

import random
from typing import Final

import grpc

from headrace._channel import (
    RETRIABLE_STATUSES,
    RETRY_BACKOFF_FACTOR,
    RETRY_FIRST_BACKOFF_S,
    RETRY_MAX_ATTEMPTS,
    RETRY_MAX_BACKOFF_S,
    RETRY_TOKEN_RATIO,
    RETRY_TOKENS,
)
from headrace._http2.outcome import Outcome

__all__ = ["RetryThrottle", "retry_delay_s"]

JITTER: Final = 0.2
RETRIABLE: Final = frozenset(grpc.StatusCode[name] for name in RETRIABLE_STATUSES)
PUSHBACK: Final = "grpc-retry-pushback-ms"


class RetryThrottle:
    """Stops retries while most calls fail; shared by the calls of one channel."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = float(RETRY_TOKENS)

    def on_success(self) -> None:
        """Note a call that ended well."""
        self._tokens = min(float(RETRY_TOKENS), self._tokens + RETRY_TOKEN_RATIO)

    def on_failure(self) -> bool:
        """Note a failure that could be tried again; return whether it may be."""
        self._tokens = max(0.0, self._tokens - 1)
        return self._tokens > RETRY_TOKENS / 2


def retry_delay_s(outcome: Outcome, attempts: int, throttle: RetryThrottle) -> float | None:
    """Return how long to wait before the next attempt after `attempts` of them, None for no other."""
    if outcome.status is grpc.StatusCode.OK:
        throttle.on_success()
        return None
    pushback = next((value for key, value in outcome.trailers if key == PUSHBACK), None)
    is_retriable = outcome.status in RETRIABLE
    if not is_retriable and pushback is None:
        return None
    is_allowed = throttle.on_failure()
    if not is_retriable or not is_allowed or attempts >= RETRY_MAX_ATTEMPTS:
        return None
    if pushback is not None:
        # A negative or unreadable number means: do not come back.
        return int(pushback) / 1000 if isinstance(pushback, str) and pushback.isdecimal() else None
    backoff_s: float = min(RETRY_FIRST_BACKOFF_S * RETRY_BACKOFF_FACTOR ** (attempts - 1), RETRY_MAX_BACKOFF_S)
    return backoff_s * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - spreads load, hides nothing
