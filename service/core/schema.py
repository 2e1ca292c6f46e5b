"""The shape of a JSON Schema document: what can be said of it without an engine."""

from __future__ import annotations

import json
import math
import re
from typing import Final, NoReturn

from service.core.errors import Violation

__all__ = ["schema_violations"]

# A deeper schema is refused: engines compile schemas recursively.
MAX_SCHEMA_DEPTH: Final = 64
# The largest double has 309 digits. Python's own limit is higher, and its time grows with the square.
_MAX_DIGITS: Final = 400
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TOO_LARGE: Final = "has a number beyond the range of a double"


class _UnreadableError(ValueError):
    """Python reads it, and other readers of JSON do not; the text says what it is."""


def schema_violations(where: str, source: str) -> list[Violation]:
    """Return what is wrong with `source` as the text of a JSON Schema; `where` is its field."""
    try:
        schema = json.loads(source, parse_constant=_constant, parse_float=_float, parse_int=_int)
    except RecursionError:
        return [Violation(where, f"nested deeper than {MAX_SCHEMA_DEPTH}")]
    except _UnreadableError as error:
        return [Violation(where, str(error))]
    except ValueError as error:
        return [Violation(where, f"is not JSON: {error}")]
    if not isinstance(schema, dict):
        return [Violation(where, "must be a JSON object")]
    return _inside(where, schema)


def _constant(name: str) -> NoReturn:
    raise _UnreadableError(f"is not JSON: {name} is no number")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _UnreadableError(_TOO_LARGE)
    return value


def _int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _UnreadableError(_TOO_LARGE)
    _float(digits)
    return int(digits)


def _inside(where: str, schema: object) -> list[Violation]:
    """Walk through lists and objects, without recursion: they are nested so deep at most, and hold whole characters."""
    deepest, is_whole, stack = 0, True, [(schema, 1)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, str):
            is_whole = is_whole and not _LONE_SURROGATE.search(node)
            continue
        children = [*node, *node.values()] if isinstance(node, dict) else node if isinstance(node, list) else ()
        if children:
            deepest = max(deepest, depth)
            stack += [(child, depth + 1) for child in children]
    found = [Violation(where, f"nested deeper than {MAX_SCHEMA_DEPTH}")] if deepest > MAX_SCHEMA_DEPTH else []
    if not is_whole:
        found.append(Violation(where, "has an escape of half a character: a surrogate without the other one"))
    return found
