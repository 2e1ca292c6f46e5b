"""Parts of a request body that are JSON themselves: schemas, template variables.

They are bounded before they are written again: to write numbers of thousands
of digits takes seconds. How much structure there is at all was bounded before
(`structure`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from google.protobuf.struct_pb2 import Struct
from pydantic import BeforeValidator, JsonValue, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

__all__ = ["ObjectText", "SchemaBudget", "SchemaText", "ToolSchemaText", "least_size", "struct_from_json"]

# A protobuf parser stops at 100 levels, and one level of a Struct takes three.
MAX_STRUCT_DEPTH: Final = 24
# The contract's bound for schemas, tools and grammars.
MAX_SCHEMA_BYTES: Final = 256 * 1024


@dataclass(slots=True)
class SchemaBudget:
    """How many bytes of tools one request may still have; the context in which a body is validated."""

    left: int = MAX_SCHEMA_BYTES


def struct_from_json(value: dict[str, JsonValue]) -> Struct:
    """Return `value` as a protobuf Struct; ValueError with a sentence if it cannot be one."""
    if _depth(value) > MAX_STRUCT_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_STRUCT_DEPTH} levels.")
    struct = Struct()
    try:
        json.dumps(value, allow_nan=False)
        struct.update(value)
    except (OverflowError, ValueError) as error:
        raise ValueError("every number has to be finite and fit a double.") from error
    return struct


def least_size(value: list[Any] | dict[str, Any], enough: int) -> int:
    """Return a lower bound of the bytes of `value` as JSON; stops counting above `enough`."""
    # The least an item takes: one byte and a comma or bracket; a key, quotes and a colon as well.
    size = 1 + 2 * len(value)
    items: Iterable[Any] = value
    if isinstance(value, dict):
        size += 3 * len(value) + sum(map(len, value))
        items = value.values()
    for item in items:
        if size > enough:
            break
        if isinstance(item, str):
            size += 1 + len(item)
        elif isinstance(item, int):
            size += item.bit_length() >> 3
        elif isinstance(item, list | dict):
            size += least_size(item, enough - size) - 1
    return size


def _depth(value: JsonValue) -> int:
    # The parser bounds the nesting of a body to about 200: recursion is safe.
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _object_text(value: Any, most: int = MAX_SCHEMA_BYTES, within: str = "") -> str:
    if not isinstance(value, dict):
        raise PydanticKnownError("dict_type")
    try:
        if least_size(value, most) <= most:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            if len(text.encode()) <= most:
                return text
    except ValueError as error:
        raise PydanticCustomError("invalid_json", "every number has to be finite") from error
    raise PydanticCustomError(
        "invalid_json", "expected at most {size} bytes of JSON{within}", {"size": MAX_SCHEMA_BYTES, "within": within}
    )


def _plain_object_text(value: Any) -> str:
    return _object_text(value)


def _tool_schema_text(value: Any, info: ValidationInfo) -> str:
    if not isinstance(info.context, SchemaBudget):
        return _object_text(value)
    text = _object_text(value, info.context.left, " in all tools together")
    info.context.left -= len(text.encode())
    return text


def _schema_text(value: Any) -> Any:
    return value if isinstance(value, str) else _object_text(value)


# A JSON object, kept as its text with the members in their order.
ObjectText = Annotated[str, BeforeValidator(_plain_object_text), WithJsonSchema({"type": "object"})]
# The same of a tool, whose size counts together with that of the others.
ToolSchemaText = Annotated[str, BeforeValidator(_tool_schema_text), WithJsonSchema({"type": "object"})]
# A JSON object, or the text of one.
SchemaText = Annotated[
    str, BeforeValidator(_schema_text), WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]})
]
