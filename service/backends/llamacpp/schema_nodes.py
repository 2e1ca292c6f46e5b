"""Walks through JSON Schemas, without following their references. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

__all__ = ["doubtful_keywords", "json_values", "schema_nodes"]

# Their members are schemas by name, whatever the name is.
_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_DATA: Final = frozenset({"const", "enum", "default", "examples", "example"})
_PLAIN_REFERENCE: Final = re.compile(r"#(/(\$defs|definitions)/[^/]+)?")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
# What LLGuidance does not enforce, or only in parts.
_DOUBTFUL: Final = (
    *("uniqueItems", "not", "if", "contains", "minContains", "maxContains", "propertyNames", "unevaluatedProperties"),
    *("unevaluatedItems", "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef"),
    *("minProperties", "maxProperties", "patternProperties", "oneOf"),
)
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)


def schema_nodes(schema: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield every object that may be read as a schema, and whether its keys are names of others.

    Data is left out, unless the schema has a reference that might lead there.
    """
    is_plain = all(
        not isinstance(value, dict)
        or all(
            isinstance(target := value.get(key, "#"), str) and _PLAIN_REFERENCE.fullmatch(unquote(target))
            for key in _REFERENCES
        )
        for value in json_values(schema)
    )
    stack: list[tuple[Any, bool]] = [(schema, False)]
    while stack:
        node, is_named = stack.pop()
        if isinstance(node, list):
            stack += [(item, False) for item in node]
        elif isinstance(node, dict):
            yield node, is_named and is_plain
            for key, value in node.items():
                if is_named or not is_plain or key not in _DATA:
                    stack.append((value, not is_named and key in _BY_NAME))


def json_values(value: Any) -> Iterator[Any]:
    """Yield `value` and everything in it, the names in objects too."""
    stack = [value]
    while stack:
        item = stack.pop()
        yield item
        if isinstance(item, (dict, list)):
            stack += [*item, *item.values()] if isinstance(item, dict) else item


def doubtful_keywords(schema: Any) -> list[str]:
    """Return what is in `schema` that the engine may be unable to enforce, as a caller would name it."""
    found: dict[str, None] = {}
    for node, is_named in schema_nodes(schema):
        if is_named:
            continue
        found |= dict.fromkeys(keyword for keyword in _DOUBTFUL if keyword in node)
        if isinstance(name := node.get("format"), str) and name not in _FORMATS:
            found[f"format {name[:64]!r}"] = None
    return list(found)
