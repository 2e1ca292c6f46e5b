"""What a number from an engine may be: counts, token ids and log-probs that fit our own wire.

Everything that a response says passes here once, where it is read. Knows no
tensor and no contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["MOST", "NEVER", "to_count", "to_logprob", "to_token_ids"]

# Counts and token ids are int32 on the service's wire.
MOST: Final = 2**31 - 1
# The contract's log-prob of what does not happen.
NEVER: Final = -9999.0
_FLOAT32_MAX: Final = 3.4028234663852886e38


def to_count(number: float) -> int:
    """Return a count of tokens; ValueError for what cannot be one."""
    if not 0 <= number <= MOST:  # NaN compares as false
        raise ValueError(f"{number:g} cannot be a count")
    return int(number)


def to_token_ids(ids: Sequence[int]) -> tuple[int, ...]:
    """Return token ids; ValueError if one cannot be."""
    if ids and not (min(ids) >= 0 and max(ids) <= MOST):
        raise ValueError(f"no token has an id like one of {min(ids)} to {max(ids)}")
    return tuple(ids)


def to_logprob(number: float | None) -> float:
    """Return a log-prob as a finite float32, `NEVER` for None, NaN, an infinity, and what is less."""
    if number is None or not NEVER < number < float("inf"):
        return NEVER
    return float(min(number, _FLOAT32_MAX))
