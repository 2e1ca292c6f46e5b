"""Bounds how much structure a request body may hold, before anything is built from it.

A body is bounded in bytes so that it holds any context window as text. As
structure the same bytes would be millions of objects, whose making holds up
every other request of the process for seconds. The count costs about a
millisecond a MiB. It knows nothing of members and their meaning, but for the
one that may hold token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.openai.errors import invalid_request

__all__ = ["check_structure", "is_small"]

# The largest request the contract takes has 2**20 token ids, or 4096 messages
# with some parts each, or schemas of 256 KiB.
MAX_CONTAINERS: Final = 2**16
MAX_STRINGS: Final = 2**17
MAX_ITEMS: Final = 2**17 + 2**16
MAX_TOKEN_IDS: Final = 2**20
# A body this small cannot hold enough of anything to matter.
_SMALL_BYTES: Final = MAX_CONTAINERS
# A request of this size may have something wrong everywhere and be told all of
# it: at about 15 µs a problem that takes some hundredths of a second.
SMALL_CONTAINERS: Final = 2**9
SMALL_ITEMS: Final = 2**11


def check_structure(body: bytes, *, ids_in: str | None = None) -> None:
    """Do nothing if `body`, JSON or not, has a bounded number of arrays, objects, strings and items; else ApiError 400.

    What stands within strings does not count, nor do the numbers of the
    top-level member called `ids_in`, token ids that have a bound of their own.
    """
    if len(body) <= _SMALL_BYTES:
        return
    pieces = _pieces(body, MAX_STRINGS)
    if len(pieces) > 2 * MAX_STRINGS + 1:
        raise _too_much("strings", MAX_STRINGS)
    structure = b"".join(pieces[::2])
    if structure.count(b"[") + structure.count(b"{") > MAX_CONTAINERS:
        raise _too_much("arrays and objects", MAX_CONTAINERS)
    items = structure.count(b",")
    if items > MAX_ITEMS:
        ids = 0 if ids_in is None else _items_of(pieces, ids_in.encode())
        if items - ids > MAX_ITEMS or ids > MAX_TOKEN_IDS + MAX_ITEMS:
            raise _too_much("values", MAX_ITEMS)


def is_small(body: bytes) -> bool:
    """Return whether the structure of `body` is that of a request which people read."""
    pieces = _pieces(body, len(body))
    structure = b"".join(pieces[::2])
    containers = structure.count(b"[") + structure.count(b"{")
    return containers <= SMALL_CONTAINERS and structure.count(b",") <= SMALL_ITEMS


def _pieces(body: bytes, strings: int) -> Sequence[bytes]:
    """Return `body` cut at its quotes, those of `strings` strings at most: every second piece is the inside of one."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # To split is several times faster than to count, and ends where there are too many.
    return body.split(b'"', 2 * strings + 1)


def _items_of(pieces: Sequence[bytes], member: bytes) -> int:
    """Return how many items the longest piece without strings has, if it is the value of the top-level `member`."""
    at = max(range(0, len(pieces), 2), key=lambda place: len(pieces[place]))
    if at == 0 or pieces[at - 1] != member or not _is_top_level(b"".join(pieces[:at:2])):
        return 0
    return pieces[at].count(b",")


def _is_top_level(before: bytes) -> bool:
    return before.count(b"{") - before.count(b"}") == 1 and before.count(b"[") == before.count(b"]")


def _too_much(what: str, limit: int) -> Exception:
    return invalid_request(f"The request body has too many {what}: more than {limit}.", code="request_too_complex")
