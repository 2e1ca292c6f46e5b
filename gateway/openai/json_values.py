"""Parts of a request body that are JSON themselves: schemas, template variables.

They are bounded before they are written again: to write numbers of thousands
of digits takes seconds.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from google.protobuf.struct_pb2 import Struct
from pydantic import BeforeValidator, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

__all__ = ["ObjectText", "SchemaText", "least_size", "struct_from_json"]

# A protobuf parser stops at 100 levels, and one level of a Struct takes three.
MAX_STRUCT_DEPTH: Final = 24
# The contract's bound for schemas, tools and grammars.
MAX_SCHEMA_BYTES: Final = 256 * 1024


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


def least_size(value: Any, enough: int) -> int:
    """Return a lower bound of the bytes of `value` as JSON; stops counting above `enough`."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 4
    size = 2
    if isinstance(value, list | dict):
        if isinstance(value, dict):
            size += sum(map(len, value))
        for item in value.values() if isinstance(value, dict) else value:
            size += 1 + least_size(item, enough)
            if size > enough:
                break
    return size - 1


def _depth(value: JsonValue) -> int:
    # The parser bounds the nesting of a body to about 200: recursion is safe.
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _object_text(value: Any) -> Any:
    if not isinstance(value, dict):
        raise PydanticKnownError("dict_type")
    try:
        if least_size(value, MAX_SCHEMA_BYTES) <= MAX_SCHEMA_BYTES:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            if len(text.encode()) <= MAX_SCHEMA_BYTES:
                return text
    except ValueError as error:
        raise PydanticCustomError("invalid_json", "every number has to be finite") from error
    raise PydanticCustomError("invalid_json", "expected at most {size} bytes of JSON", {"size": MAX_SCHEMA_BYTES})


def _schema_text(value: Any) -> Any:
    return value if isinstance(value, str) else _object_text(value)


# A JSON object, kept as its text with the members in their order.
ObjectText = Annotated[str, BeforeValidator(_object_text), WithJsonSchema({"type": "object"})]
# A JSON object, or the text of one.
SchemaText = Annotated[
    str, BeforeValidator(_schema_text), WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]})
]
