"""How long a request may take, from what the caller says about its patience. Pure.

`Request-Timeout-Ms` is the caller's word. The official SDKs tell how long they
themselves wait, per read (Python) or in all (Node): with heartbeats only the
second is a bound, but both say that a longer generation is of no use to a
caller who did not say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.openai.errors import invalid_request

__all__ = ["REQUEST_TIMEOUT", "timeout_s"]

REQUEST_TIMEOUT: Final = "request-timeout-ms"
_SDK_PATIENCE: Final = ("x-stainless-read-timeout", "x-stainless-timeout")
_MAX_DIGITS: Final = 12


def timeout_s(headers: Mapping[str, str], *, default_s: float, max_s: float) -> float:
    """Return the deadline in seconds: the least of what the caller, its SDK and `max_s` allow.

    `default_s` stands in when the caller says nothing. ApiError (400) for a
    `Request-Timeout-Ms` that is not a positive whole number; what an SDK sends
    by itself is ignored if it is odd, because its user did not write it.
    """
    asked = headers.get(REQUEST_TIMEOUT)
    if asked is not None:
        text = asked.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0):
            raise invalid_request(
                "Invalid 'Request-Timeout-Ms' header: expected a positive whole number of milliseconds.",
                param="Request-Timeout-Ms",
                code="invalid_value",
            )
        return min(int(text) / 1000, max_s)
    patience = [_seconds(headers.get(name)) for name in _SDK_PATIENCE]
    return min([default_s, max_s, *(seconds for seconds in patience if seconds is not None)])


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
