"""Whether and when a call is tried again (gRFC A6). Pure but for the dice.

Two things are as in grpcio and not as in the text: jitter is a fifth around the
backoff, and `-1` as pushback is no failure for the throttle where the status is
none, since the service says it behind any output, whatever ended the call.
"""

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

__all__ = ["RetryThrottle", "pushback_of", "retry_delay_s"]

JITTER: Final = 0.2
RETRIABLE: Final = frozenset(grpc.StatusCode[name] for name in RETRIABLE_STATUSES)
PUSHBACK: Final = "grpc-retry-pushback-ms"


class RetryThrottle:
    """Stops retries while most calls fail; shared by the calls of one channel."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = float(RETRY_TOKENS)

    def note(self, outcome: Outcome) -> bool:
        """Note how an attempt ended; return whether it is a failure that may be tried again."""
        if outcome.status is grpc.StatusCode.OK:
            self._tokens = min(float(RETRY_TOKENS), self._tokens + RETRY_TOKEN_RATIO)
            return False
        if outcome.status not in RETRIABLE:
            return False
        self._tokens = max(0.0, self._tokens - 1)
        return self._tokens > RETRY_TOKENS / 2


def retry_delay_s(outcome: Outcome, attempts: int, throttle: RetryThrottle, *, pushed_back: int = 0) -> float | None:
    """Return how long to wait before the next attempt after `attempts` of them, None for no other.

    `pushed_back` attempts of them ended with a delay that the server chose; after
    such a one the backoff begins anew.
    """
    if not throttle.note(outcome) or attempts >= RETRY_MAX_ATTEMPTS:
        return None
    if (pushback := pushback_of(outcome)) is not None:
        # A negative or unreadable number means: do not come back.
        return int(pushback) / 1000 if pushback.isdecimal() else None
    backoff_s: float = RETRY_FIRST_BACKOFF_S * RETRY_BACKOFF_FACTOR ** (attempts - pushed_back - 1)
    # The dice spread load and hide nothing.
    return min(backoff_s, RETRY_MAX_BACKOFF_S) * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311


def pushback_of(outcome: Outcome) -> str | None:
    """Return what the server says of another attempt, None if it says nothing."""
    values = (value for key, value in outcome.trailers if key == PUSHBACK and isinstance(value, str))
    return next(values, None)
