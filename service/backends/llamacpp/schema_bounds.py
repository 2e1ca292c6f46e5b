"""What a JSON Schema may ask of the embedded engine. Pure.

The engine compiles schemas on its own loop, between two steps of everything that
decodes, in LLGuidance. That takes some values for a crash of the process, others
for minutes of work, and others wrongly: those are refused here, by name. The
limits are the largest that compiled in about 0.3 s on one slow core.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, TypeGuard

from service.backends.llamacpp.lexical import RegexError, check_size
from service.backends.llamacpp.schema_nodes import json_values, schema_nodes

__all__ = ["SchemaBoundError", "check_schema", "control_text_in"]

# Above it a double no longer tells integers apart, and LLGuidance computes with doubles.
_MAX_INTEGER: Final = 2**53 - 1
_MAX_FLOAT_BOUND: Final = 1e15
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SIZES: Final = ("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength")
_ITEMS: Final = ("minItems", "maxItems")
_LISTS: Final = ("anyOf", "oneOf")
_MAX_SIZE: Final = 10_000
_MAX_ITEMS_TOGETHER: Final = 10_000
# As many states has the automaton of the multiples of a number.
_MAX_MULTIPLE: Final = 10_000
_MAX_DECIMALS: Final = 9
_MAX_MEMBERS: Final = 500
_MAX_MEMBERS_TOGETHER: Final = 2000
# All of them are alive at the opening brace, and LLGuidance gives up with 2,000 items there, 35 for each.
_MAX_COMBINATIONS: Final = 16
# With 501 in one object, or in alternatives together, LLGuidance gives the constraint up in the middle of the output.
_MAX_OPTIONAL: Final = 400
_MAX_PROPERTIES_TOGETHER: Final = 2000
_MAX_PATTERNS: Final = 100
_MAX_PATTERN_BYTES: Final = 16_384
# Intersected, 20 unanchored ones take 7 s; ten take 0.1 s.
_MAX_COMBINED_PATTERNS: Final = 10
# Beside a pattern each text is matched with it while the schema compiles.
_MAX_TEXTS_BESIDE_PATTERN: Final = 500
_START_CHARS: Final = 3
_BY_NAME: Final = re.compile(r"#/(\$defs|definitions)/([^/]+)")
_IN_PLACE: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
_COMBINED: Final = _IN_PLACE | {
    *("pattern", "format", "enum", "multipleOf", "properties", "patternProperties", "additionalProperties"),
    *("items", "prefixItems"),
}


class SchemaBoundError(Exception):
    """The engine must not be given the schema; the text says which keyword, which limit and what was sent."""


def check_schema(schema: dict[str, Any], control_texts: Sequence[str]) -> None:
    """Raise SchemaBoundError for what the engine would take wrongly, or seconds, or not survive.

    `control_texts` are the texts of the model's control tokens. The depth of
    `schema` is bounded by the service.
    """
    totals: Counter[str] = Counter()
    multiples: set[Decimal] = set()
    literals: list[tuple[str, str]] = []
    is_combining = False
    for node, is_named in schema_nodes(schema):
        _check_numbers(node)
        _check_lists(node)
        _check_alternatives(node, schema)
        _check_multiple(node, multiples)
        if not is_named:
            literals += _literals(node)
        patterns = list(_patterns(node))
        for pattern in patterns:
            _check_pattern(pattern)
        literals += [("pattern", pattern) for pattern in patterns]
        is_combining = is_combining or _is_combining(node)
        totals["patterns"] += len(patterns)
        totals["pattern bytes"] += sum(len(pattern.encode()) for pattern in patterns)
        totals["formats"] += isinstance(node.get("format"), str)
        totals["items"] += sum(max(0, math.ceil(node[key])) for key in _ITEMS if _is_number(node.get(key)))
        totals["members"] += sum(len(node[key]) for key in _LISTS if isinstance(node.get(key), list))
        totals["texts"] += len(node["enum"]) if isinstance(node.get("enum"), list) else 0
        totals["properties"] += len(node["properties"]) if isinstance(node.get("properties"), dict) else 0
        totals["optional"] += _optional(node)
    _at_most("pattern: in all the schema", totals["patterns"], _MAX_PATTERNS)
    _at_most("pattern: bytes of all together", totals["pattern bytes"], _MAX_PATTERN_BYTES)
    _at_most("minItems and maxItems: all added up", totals["items"], _MAX_ITEMS_TOGETHER)
    _at_most("anyOf and oneOf: members in all the schema", totals["members"], _MAX_MEMBERS_TOGETHER)
    _at_most("properties: in all the schema", totals["properties"], _MAX_PROPERTIES_TOGETHER)
    _at_most("multipleOf: all added up, without their decimal points", sum(map(_coefficient, multiples)), _MAX_MULTIPLE)
    if is_combining:
        _check_combined(totals, multiples)
    if (found := control_text_in([text for _, text in literals], control_texts)) is not None:
        at, control = found
        raise SchemaBoundError(
            f"{literals[at][0]}: must not contain {control!r}, the text of a control token of this model"
        )


def control_text_in(texts: Sequence[str], control_texts: Sequence[str]) -> tuple[int, str] | None:
    """Return which of `texts` contains the text of a control token, and that: LLGuidance takes it for the token."""
    # There may be thousands of both; those of one model mostly begin alike.
    together = "\x00".join(texts)
    begun = {start for start in {control[:_START_CHARS] for control in control_texts} if start in together}
    for control in control_texts:
        if control[:_START_CHARS] in begun and control in together:
            for at, text in enumerate(texts):
                if control in text:
                    return at, control
    return None


def _check_combined(totals: Counter[str], multiples: set[Decimal]) -> None:
    """Check what schemas that hold at the same time make of each other; which ones do is not looked at."""
    where = "in a schema with allOf, or with $ref, anyOf or oneOf beside other keywords"
    _at_most(f"pattern, format: {where}", totals["patterns"] + totals["formats"], _MAX_COMBINED_PATTERNS)
    _at_most(f"properties that are not required: {where}", totals["optional"], _MAX_OPTIONAL)
    if totals["patterns"]:
        _at_most(f"enum: members beside a pattern, {where}", totals["texts"], _MAX_TEXTS_BESIDE_PATTERN)
    decimals = max((_decimals(multiple) for multiple in multiples), default=0)
    common = math.lcm(*(int(multiple.scaleb(decimals)) for multiple in multiples))
    _at_most(f"multipleOf: the least common multiple, {where}", common, _MAX_MULTIPLE)


def _check_numbers(node: dict[str, Any]) -> None:
    for keyword in _BOUNDS:
        value = node.get(keyword)
        if not _is_number(value):
            continue
        limit = _MAX_INTEGER if isinstance(value, int) else _MAX_FLOAT_BOUND
        if not abs(value) <= limit:
            raise SchemaBoundError(f"{keyword}: at most {limit:.0f} either side of zero, got {_shown(value)}")
    for keyword in _SIZES:
        if _is_number(value := node.get(keyword)):
            _at_most(keyword, value, _MAX_SIZE)


def _check_multiple(node: dict[str, Any], multiples: set[Decimal]) -> None:
    value = node.get("multipleOf")
    if not _is_number(value):
        return
    if not 0 < value <= _MAX_MULTIPLE:
        raise SchemaBoundError(f"multipleOf: must be above 0 and at most {_MAX_MULTIPLE}, got {_shown(value)}")
    multiple = Decimal(repr(value))
    if _decimals(multiple) > _MAX_DECIMALS:
        raise SchemaBoundError(f"multipleOf: at most {_MAX_DECIMALS} decimals, got {_shown(value)}")
    _at_most("multipleOf: without its decimal point", _coefficient(multiple), _MAX_MULTIPLE)
    multiples.add(multiple)


def _check_lists(node: dict[str, Any]) -> None:
    for keyword in _LISTS:
        if isinstance(members := node.get(keyword), list):
            _at_most(f"{keyword}: members", len(members), _MAX_MEMBERS)
    _at_most("properties that are not required: in one object", _optional(node), _MAX_OPTIONAL)
    if isinstance(texts := node.get("enum"), list) and "pattern" in node:
        _at_most("enum: members beside a pattern", len(texts), _MAX_TEXTS_BESIDE_PATTERN)
    if isinstance(members := node.get("allOf"), list):
        alternatives = [
            len(member[key])
            for member in members
            if isinstance(member, dict)
            for key in _LISTS
            if isinstance(member.get(key), list) and member[key]
        ]
        _at_most("allOf: combinations of its anyOf and oneOf", math.prod(alternatives), _MAX_COMBINATIONS)


def _check_alternatives(node: dict[str, Any], root: dict[str, Any]) -> None:
    for keyword in _LISTS:
        if isinstance(members := node.get(keyword), list):
            optional = sum(_optional(_referred(member, root)) for member in members)
            _at_most(f"{keyword}: properties that are not required, in its members", optional, _MAX_OPTIONAL)


def _referred(member: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Return `member`, or what it refers to by name."""
    target = member.get("$ref") if isinstance(member, dict) else None
    if isinstance(target, str) and (match := _BY_NAME.fullmatch(target)):
        named = root.get(match[1])
        member = named.get(match[2]) if isinstance(named, dict) else None
    return member if isinstance(member, dict) else {}


def _literals(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what the engine has to write word by word, with its keyword."""
    for keyword in ("const", "enum"):
        for value in json_values(node.get(keyword)):
            if _is_number(value) and not abs(value) <= _MAX_INTEGER:
                raise SchemaBoundError(f"{keyword}: numbers of at most {_MAX_INTEGER}, got {_shown(value)}")
            if isinstance(value, str):
                yield keyword, value
    if isinstance(properties := node.get("properties"), dict):
        yield from (("properties", name) for name in properties)


def _check_pattern(pattern: str) -> None:
    try:
        check_size(pattern)
    except RegexError as error:
        raise SchemaBoundError(f"the pattern {pattern[:64]!r}: {error}") from None


def _patterns(node: dict[str, Any]) -> Iterator[str]:
    pattern, named = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(named, dict):
        yield from named


def _is_combining(node: dict[str, Any]) -> bool:
    keywords = _COMBINED & node.keys()
    members = node.get("allOf")
    return not keywords.isdisjoint(_IN_PLACE) and (
        len(keywords) > 1 or (isinstance(members, list) and len(members) > 1)
    )


def _optional(node: dict[str, Any]) -> int:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(properties, dict):
        return 0
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    return len(properties.keys() - names)


def _coefficient(multiple: Decimal) -> int:
    return int(multiple.scaleb(_decimals(multiple)))


def _decimals(multiple: Decimal) -> int:
    exponent = multiple.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _at_most(what: str, value: float, limit: int) -> None:
    if not value <= limit:
        raise SchemaBoundError(f"{what}: at most {limit}, got {_shown(value)}")


def _shown(value: float) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]}... ({len(text)} digits)"
