"""Calls that are forced: the JSON Schema that an engine has to follow, and the reader of what it then writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from service.core.request import Tool, ToolChoice
from service.parsing.base import Piece
from service.parsing.json_values import ValueScanner, skip_whitespace
from service.parsing.writer import PieceWriter

__all__ = ["AnyCalls", "GuidedCalls", "NamedCall", "NamedCallParser", "guided_schema"]

_ANY_OBJECT: Final = {"type": "object"}
# OpenAI: a function without a schema has an empty parameter list.
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
# With one of these a schema says by itself what it takes.
_TYPED_BY: Final = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"})
# Keywords whose value maps names to schemas, and those whose value is data and no schema.
_NAMED_SCHEMAS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_DATA: Final = frozenset({"const", "enum", "default", "examples", "example"})
# They say what a whole document is, and would change what a reference in a part of one means.
_DOCUMENT_KEYS: Final = frozenset({"$schema", "$id"})


@dataclass(frozen=True, slots=True)
class NamedCall:
    """The output is the arguments of this function."""

    name: str


@dataclass(frozen=True, slots=True)
class AnyCalls:
    """The output is `{"name": ..., "arguments": ...}`, or with `parallel` a list of them."""

    parallel: bool


GuidedCalls = NamedCall | AnyCalls


def guided_schema(tools: Iterable[Tool], choice: ToolChoice, *, parallel: bool) -> str:
    """Return the JSON Schema, as text, of an output that makes the calls which `choice` forces.

    The parameters of the named function as they are, or calls of any of `tools`:
    a list of at least one with `parallel`, else one. A function's schema that refers
    to parts of itself goes as a whole to `$defs` of the new root under its name, and
    its references get the longer path, also those that name it by its `$id`; others
    stand where they are needed. A function without parameters takes an empty object.

    The parameters have been checked to be JSON objects; the named tool is among `tools`.
    """
    parameters = {tool.name: json.loads(tool.parameters) if tool.parameters else _NO_PARAMETERS for tool in tools}
    if choice.function is not None:
        named = parameters[choice.function]
        return json.dumps(_as_object(_rebased(named, "#", of=_id_of(named))), ensure_ascii=False)
    hoisted: dict[str, Any] = {}
    calls = [_call(name, schema, hoisted) for name, schema in parameters.items()]
    one: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    whole = {"type": "array", "minItems": 1, "items": one} if parallel else one
    return json.dumps({**whole, "$defs": hoisted} if hoisted else whole, ensure_ascii=False)


def _call(name: str, parameters: Mapping[str, Any], hoisted: dict[str, Any]) -> dict[str, Any]:
    schema = {key: value for key, value in _as_object(parameters).items() if key not in _DOCUMENT_KEYS}
    # Names of functions need no escape in a JSON pointer.
    moved = _rebased(schema, f"#/$defs/{name}", of=_id_of(parameters))
    if moved != schema:
        hoisted[name] = moved
        schema = {"$ref": f"#/$defs/{name}"}
    return {
        "type": "object",
        # Written in this order, so that the name is known before the arguments begin.
        "properties": {"name": {"const": name}, "arguments": schema},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _as_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments are an object, also where the schema leaves that open."""
    return dict(schema) if _TYPED_BY & schema.keys() else {**_ANY_OBJECT, **schema}


def _id_of(schema: Any) -> str:
    """Return the URI by which a schema can be referred to, "" if it has none."""
    own = schema.get("$id") if isinstance(schema, dict) else None
    return urldefrag(own).url if isinstance(own, str) else ""


def _rebased(schema: Any, root: str, *, of: str, base: str | None = None) -> Any:
    """Return `schema` with every reference into the document `of` led through `root`.

    `base` is what references in `schema` are relative to: a part with an `$id` of
    its own is a document in the document.
    """
    base = of if base is None else base
    if isinstance(schema, list):
        return [_rebased(item, root, of=of, base=base) for item in schema]
    if not isinstance(schema, dict):
        return schema
    base = _joined(base, _id_of(schema))
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            moved[key] = _led(value, root, of, base)
        elif key in _NAMED_SCHEMAS and isinstance(value, dict):
            moved[key] = {name: _rebased(item, root, of=of, base=base) for name, item in value.items()}
        else:
            moved[key] = value if key in _DATA else _rebased(value, root, of=of, base=base)
    return moved


def _led(reference: str, root: str, of: str, base: str) -> str:
    document, _, place = reference.partition("#")
    if _joined(base, document) != of:
        return reference
    # An anchor means the same in every document that it stands in.
    return root + place if not place or place.startswith("/") else f"#{place}"


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference) if reference else base
    except ValueError:
        # No URI, so that it refers to nothing here.
        return reference


class NamedCallParser:
    """An `OutputParser` for output that is the arguments of the function `name`.

    All of it is, also where it is no JSON; an object is complete with its last brace.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._writer = PieceWriter()
        self._scanner: ValueScanner | None = None
        self._is_complete = False

    @property
    def calls(self) -> int:
        """Tool calls begun so far."""
        return self._writer.calls

    @property
    def is_call_open(self) -> bool:
        """True while the arguments are no whole object."""
        return bool(self._writer.calls) and not self._is_complete

    @property
    def is_complete(self) -> bool:
        """True once the arguments are whole."""
        return self._is_complete

    @property
    def is_reasoning(self) -> bool:
        """False: this parser knows none."""
        return False

    def feed(self, text: str) -> list[Piece]:
        """Return what is certain now that `text` has arrived."""
        at = 0
        if not self._writer.calls:
            at = skip_whitespace(text, 0)
            if at == len(text):
                return []
            self._writer.begin(self._name)
            self._scanner = ValueScanner() if text[at] == "{" else None
        if self._is_complete or at == len(text):
            return []
        end = -1 if self._scanner is None else self._scanner.feed(text, at)
        if self._scanner is not None and self._scanner.is_broken:
            self._scanner, end = None, -1
        self._is_complete = end >= 0
        to = end if end >= 0 else len(text)
        self._writer.arguments(text[at:to])
        self._writer.place(0, len(text) - to)
        return self._writer.take()

    def flush(self) -> list[Piece]:
        """Return nothing: nothing is held back."""
        return []
