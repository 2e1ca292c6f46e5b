"""The shape of a JSON Schema document: what can be said of it without an engine."""

from __future__ import annotations

import json
from typing import Final

from service.core.errors import Violation

__all__ = ["schema_violations"]

# A deeper schema is refused: engines compile schemas recursively.
MAX_SCHEMA_DEPTH: Final = 64


def schema_violations(where: str, source: str) -> list[Violation]:
    """Return what is wrong with `source` as the text of a JSON Schema; `where` is its field."""
    try:
        schema = json.loads(source)
    except RecursionError:
        return [Violation(where, f"nested deeper than {MAX_SCHEMA_DEPTH}")]
    except ValueError as error:
        return [Violation(where, f"is not JSON: {error}")]
    if not isinstance(schema, (dict, bool)):
        return [Violation(where, "must be a JSON object or a boolean")]
    return [Violation(where, f"nested deeper than {MAX_SCHEMA_DEPTH}")] if _depth(schema) > MAX_SCHEMA_DEPTH else []


def _depth(value: object) -> int:
    """Return how deep lists and objects are nested, without recursion."""
    deepest, stack = 0, [(value, 1)]
    while stack:
        node, depth = stack.pop()
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        if children:
            deepest = max(deepest, depth)
            stack += [(child, depth + 1) for child in children]
    return deepest
