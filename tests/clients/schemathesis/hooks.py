"""Hooks of schemathesis: what a valid request of its own making cannot be held to."""

from __future__ import annotations

from typing import Any

import schemathesis

NAME = "Request-Timeout-Ms"
# The name that schemathesis gives to a header of its own invention.
INVENTED = "x-schemathesis-unknown-property"


@schemathesis.hook
def map_case(_context: Any, case: Any) -> Any:
    """Give a request time: a valid deadline of a millisecond would say 504 to all of them, wrong ones included."""
    if case.headers and str(case.headers.get(NAME, "")).isdigit() and int(case.headers[NAME]) > 0:
        case.headers[NAME] = "20000"
    return case


@schemathesis.hook
def filter_case(_context: Any, case: Any) -> bool:
    """Leave out requests whose fault is to be a header that nobody knows: a server has to ignore it (RFC 9110 5.1)."""
    return INVENTED not in (case.headers or {})
