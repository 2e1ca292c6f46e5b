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
# A double and a 64-bit integer have 20 at most, the next larger ones 40.
MAX_NUMBER_DIGITS: Final = 64
# Of all numbers but token ids; schemas have a quarter of a MiB each.
MAX_DIGITS: Final = 2**21
_AS_ZEROS: Final = bytes.maketrans(b"123456789.", b"0000000000")
_LONG_NUMBER: Final = b"0" * (MAX_NUMBER_DIGITS + 1)
# A body this small cannot hold enough of anything to matter.
_SMALL_BYTES: Final = MAX_CONTAINERS
# A request of this size may have something wrong everywhere and be told all of
# it: at about 15 µs a problem that takes some hundredths of a second.
SMALL_CONTAINERS: Final = 2**9
SMALL_ITEMS: Final = 2**11


def check_structure(body: bytes, *, ids_in: str | None = None) -> None:
    """Do nothing if `body`, JSON or not, has few enough arrays, objects, strings, items and digits; ApiError 400 else.

    What stands within strings does not count, nor does how many numbers the
    top-level member called `ids_in` has, token ids that have a bound of their own.
    """
    if len(body) <= _SMALL_BYTES:
        return
    pieces = _pieces(body, MAX_STRINGS)
    if len(pieces) > 2 * MAX_STRINGS + 1:
        raise _too_much("strings", MAX_STRINGS)
    structure = b"".join(pieces[::2])
    if structure.count(b"[") + structure.count(b"{") > MAX_CONTAINERS:
        raise _too_much("arrays and objects", MAX_CONTAINERS)
    _check_numbers(structure)
    ids = b"" if ids_in is None else _longest_value(pieces, ids_in.encode())
    items, id_items = structure.count(b","), ids.count(b",")
    if items > MAX_ITEMS and (items - id_items > MAX_ITEMS or id_items > MAX_TOKEN_IDS + MAX_ITEMS):
        raise _too_much("values", MAX_ITEMS)
    digits = _digits(structure)
    if digits > MAX_DIGITS and digits - _digits(ids) > MAX_DIGITS:
        raise _too_much("digits", MAX_DIGITS)


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


def _check_numbers(structure: bytes) -> None:
    # To make a number of thousands of digits costs the square of them.
    if _LONG_NUMBER in structure.translate(_AS_ZEROS):
        raise invalid_request(
            f"The request body has a number of more than {MAX_NUMBER_DIGITS} digits.", code="request_too_complex"
        )


def _digits(structure: bytes) -> int:
    return len(structure) - len(structure.translate(None, b"0123456789"))


def _longest_value(pieces: Sequence[bytes], member: bytes) -> bytes:
    """Return the longest piece without strings if it is the value of the top-level `member`, else nothing."""
    at = max(range(0, len(pieces), 2), key=lambda place: len(pieces[place]))
    if at == 0 or pieces[at - 1] != member or not _is_top_level(b"".join(pieces[:at:2])):
        return b""
    return pieces[at]


def _is_top_level(before: bytes) -> bool:
    return before.count(b"{") - before.count(b"}") == 1 and before.count(b"[") == before.count(b"]")


def _too_much(what: str, limit: int) -> Exception:
    return invalid_request(f"The request body has too many {what}: more than {limit}.", code="request_too_complex")
