"""What a file of JSON Lines tells a process that starts: whether it is a ledger, and what was left open in it.

It looks at the first bytes of lines alone, as `service.ledger.jsonl` writes them, and so reads a gigabyte in a few
seconds: parsing every line would hold up a start.
"""

from __future__ import annotations

import json
import mmap
import os
from typing import Final

from service.ledger.records import SCHEMA_VERSION

__all__ = ["STARTED_MARK", "left_open", "refusal"]

STARTED_MARK: Final = b'{"type":"process","state":"started"'
_BEGUN: Final = b'{"type":"begun","generation_id":"'
_ENDED: Final = b'{"type":"ended","generation_id":"'
_FIRST_BYTES: Final = 64 * 1024


def refusal(file: int) -> str | None:
    """Return why nothing must be appended to this file; None if it is a ledger, or empty."""
    head = os.pread(file, _FIRST_BYTES, 0)
    first, is_whole, _ = head.partition(b"\n")
    # A first line that a crash has torn says nothing, and is the only one.
    if head and (is_whole or len(head) == _FIRST_BYTES) and not first.startswith(b'{"type":'):
        return "is no usage ledger, so nothing is appended to it"
    with os.fdopen(os.dup(file), "rb") as reader:
        reader.seek(_last_start(file))
        line = reader.readline()
    if not line.startswith(STARTED_MARK) or not line.endswith(b"\n"):
        return None
    version = json.loads(line)["schema"]
    if version > SCHEMA_VERSION:
        return f"has schema {version}, of a newer Headrace; this one writes {SCHEMA_VERSION}"
    return None


def left_open(file: int) -> dict[str, dict[str, object]]:
    """Return the begun lines that have no end, by generation id. Everything before the last start is settled."""
    lines: dict[bytes, bytes] = {}
    with os.fdopen(os.dup(file), "rb") as reader:
        reader.seek(_last_start(file))
        for line in reader:
            if not line.endswith(b"}\n"):  # torn
                continue
            if line.startswith(_BEGUN):
                lines[_id_of(line, _BEGUN)] = line
            elif line.startswith(_ENDED):
                lines.pop(_id_of(line, _ENDED), None)
    return {id_.decode(): json.loads(line) for id_, line in lines.items()}


def _id_of(line: bytes, head: bytes) -> bytes:
    return line[len(head) : line.index(b'"', len(head))]


def _last_start(file: int) -> int:
    """Return where the line of the last start begins; 0 if there is none."""
    if not os.fstat(file).st_size:
        return 0
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as view:
        # No text can hold the mark: quotes within a string are escaped.
        return max(view.rfind(b"\n" + STARTED_MARK) + 1, 0)
