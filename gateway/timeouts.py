"""How long a request may take, from what the caller says about its patience. Pure.

`Request-Timeout-Ms` is the caller's word. The official SDKs tell how long they
themselves wait, per read (Python) or in all (Node): with heartbeats only the
second is a bound, but both say that a longer generation is of no use to a
caller who did not say otherwise. `Time-Limit-Ms` asks for an answer of what
there is when it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.openai.errors import ApiError, deadline_exceeded, invalid_request

__all__ = ["REQUEST_TIMEOUT", "TIME_LIMIT", "Budget", "time_limit_s", "timeout_s"]

REQUEST_TIMEOUT: Final = "Request-Timeout-Ms"
TIME_LIMIT: Final = "Time-Limit-Ms"
_SDK_PATIENCE: Final = ("x-stainless-read-timeout", "x-stainless-timeout")
_MAX_DIGITS: Final = 12
# A short deadline must not be eaten by a margin made for long ones.
_MAX_MARGIN_SHARE: Final = 0.05
# A limit that is over by the time a call begins still asks for an answer, if an empty one.
_LEAST_TIME_LIMIT_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The time of one request, from the moment its head has arrived; all of it in seconds on one clock.

    What was spent before a call begins is gone: its body, its parsing, the calls before it.
    """

    began_s: float
    timeout_s: float
    margin_s: float = 0.0  # kept back, so that the gateway's own answer comes before the caller's clock is over
    time_limit_s: float | None = None

    @classmethod
    def of(cls, began_s: float, timeout_s: float, most_margin_s: float, time_limit_s: float | None = None) -> Budget:
        """Return the budget of a request; of a short one the margin is a twentieth."""
        margin_s = min(most_margin_s, timeout_s * _MAX_MARGIN_SHARE)
        return cls(began_s=began_s, timeout_s=timeout_s, margin_s=margin_s, time_limit_s=time_limit_s)

    def left_s(self, now_s: float) -> float:
        """Return the deadline of a call that begins now. ApiError (504) if nothing is left for one."""
        left_s = self.began_s + self.timeout_s - self.margin_s - now_s
        if left_s <= 0:
            raise self.used_up()
        return left_s

    def time_limit_left_s(self, now_s: float) -> float | None:
        """Return the time limit of a call that begins now; None if the caller set none."""
        if self.time_limit_s is None:
            return None
        return max(self.began_s + self.time_limit_s - now_s, _LEAST_TIME_LIMIT_S)

    def used_up(self, how: str = "before the inference service could be asked") -> ApiError:
        """Return what is said when the time is over and no call was made."""
        return deadline_exceeded(f"The deadline of {self.timeout_s * 1000:.0f} ms passed {how}.")


def timeout_s(headers: Mapping[str, str], *, default_s: float, max_s: float) -> float:
    """Return the deadline in seconds: the least of what the caller, its SDK and `max_s` allow.

    `default_s` stands in when the caller says nothing. ApiError (400) for a
    `Request-Timeout-Ms` that is not a positive whole number; what an SDK sends
    by itself is ignored if it is odd, because its user did not write it.
    """
    asked_s = _asked_s(headers, REQUEST_TIMEOUT)
    if asked_s is not None:
        return min(asked_s, max_s)
    patience = [_seconds(headers.get(name)) for name in _SDK_PATIENCE]
    return min([default_s, max_s, *(seconds for seconds in patience if seconds is not None)])


def time_limit_s(headers: Mapping[str, str]) -> float | None:
    """Return the time limit in seconds, None if there is none. ApiError (400) if it is not a positive whole number."""
    return _asked_s(headers, TIME_LIMIT)


def _asked_s(headers: Mapping[str, str], name: str) -> float | None:
    given = headers.get(name.lower())
    if given is None:
        return None
    text = given.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0):
        raise invalid_request(
            f"Invalid '{name}' header: expected a positive whole number of milliseconds.",
            param=name,
            code="invalid_value",
        )
    return int(text) / 1000


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
