"""Finds the line of a TOML file on which a value stands.

The standard library's parser keeps no positions. This one reads table headers
and keys only, which is enough to point a person at the right place; anything
it does not understand falls back to the enclosing table's line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["line_of"]

_ARRAY_TABLE: Final = re.compile(r"^\s*\[\[\s*(?P<path>[^\]]+?)\s*\]\]")
_TABLE: Final = re.compile(r"^\s*\[\s*(?P<path>[^\[\]]+?)\s*\]")
_KEY: Final = re.compile(
    r"""^\s*(?P<key>(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"))*)\s*="""
)


def line_of(text: str, path: Sequence[str | int]) -> int:
    """Return the 1-based line of the deepest part of `path` that is found; 1 if none is.

    `path` is like ("models", 1, "options", "n_ctx"): names, and numbers into
    arrays of tables.
    """
    wanted = tuple(path)
    best, best_depth = 1, 0
    table: tuple[str | int, ...] = ()
    counts: dict[tuple[str | int, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _ARRAY_TABLE.match(line):
            base = _numbered(_parts(match["path"]), counts, is_array=True)
            counts[base] = counts.get(base, -1) + 1
            table = (*base, counts[base])
            here = table
        elif match := _TABLE.match(line):
            table = _numbered(_parts(match["path"]), counts, is_array=False)
            here = table
        elif match := _KEY.match(line):
            here = (*table, *_parts(match["key"]))
        else:
            continue
        if len(here) > best_depth and wanted[: len(here)] == here:
            best, best_depth = number, len(here)
    return best


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in path.split("."))


def _numbered(
    names: tuple[str, ...], counts: dict[tuple[str | int, ...], int], *, is_array: bool
) -> tuple[str | int, ...]:
    """Insert the number of the current element after each name that is an array of tables."""
    path: tuple[str | int, ...] = ()
    for at, name in enumerate(names):
        path = (*path, name)
        if path in counts and not (is_array and at == len(names) - 1):
            path = (*path, counts[path])
    return path
