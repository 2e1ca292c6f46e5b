"""A hook of schemathesis: gives its requests time. A valid deadline of a millisecond would say 504 to all of them."""

from __future__ import annotations

from typing import Any

import schemathesis

NAME = "Request-Timeout-Ms"


@schemathesis.hook
def map_headers(_context: Any, headers: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the headers of a generated request with a deadline that can be met."""
    if headers and str(headers.get(NAME, "")).isdigit() and int(headers[NAME]) > 0:
        headers[NAME] = "20000"
    return headers
