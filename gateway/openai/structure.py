"""Bounds how much structure a request body may hold, before anything is built from it.

A body is bounded in bytes so that it holds any context window as text. As
structure the same bytes would be millions of objects, whose making holds up
every other request of the process for seconds. The count costs about a
millisecond a MiB. It knows nothing of members and their meaning.
"""

from __future__ import annotations

from typing import Final

from gateway.openai.errors import invalid_request

__all__ = ["check_structure"]

# The largest request the contract takes has 2**20 token ids, or 4096 messages
# with some parts each.
MAX_CONTAINERS: Final = 2**16
MAX_STRINGS: Final = 2**17
MAX_ITEMS: Final = 2**20 + 2**18
# A body this small cannot hold enough of anything to matter.
_SMALL_BYTES: Final = MAX_CONTAINERS


def check_structure(body: bytes) -> None:
    """Do nothing if `body`, JSON or not, has a bounded number of arrays, objects, strings and items; else ApiError 400.

    What stands within strings does not count.
    """
    if len(body) <= _SMALL_BYTES:
        return
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # To split is several times faster than to count, and ends where there are too many.
    pieces = body.split(b'"', 2 * MAX_STRINGS + 1)
    if len(pieces) > 2 * MAX_STRINGS + 1:
        raise _too_much("strings", MAX_STRINGS)
    structure = b"".join(pieces[::2])
    if structure.count(b"[") + structure.count(b"{") > MAX_CONTAINERS:
        raise _too_much("arrays and objects", MAX_CONTAINERS)
    if structure.count(b",") > MAX_ITEMS:
        raise _too_much("values", MAX_ITEMS)


def _too_much(what: str, limit: int) -> Exception:
    return invalid_request(f"The request body has too many {what}: more than {limit}.", code="request_too_complex")
