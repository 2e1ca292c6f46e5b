"""What a schema may ask of the embedded engine: each limit by its keyword, and what is left alone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from service.backends.llamacpp.schema_bounds import SchemaBoundError, check_schema
from service.backends.llamacpp.schema_nodes import doubtful_keywords

CONTROLS = ("<bos>", "<start_of_turn>")


def objects(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def numbered(count: int, schema: Any) -> dict[str, Any]:
    return {f"p{at}": schema for at in range(count)}


def required(names: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": names, "required": list(names)}


WORST: dict[str, dict[str, Any]] = {
    "integers": {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1},
    "floats": {"type": "number", "exclusiveMinimum": -1e15, "exclusiveMaximum": 1e15},
    "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 10_000},
    "lengths": {"type": "string", "minLength": 10_000, "maxLength": 10_000},
    "multiple": {"type": "integer", "multipleOf": 9973},
    "decimals": {"type": "number", "multipleOf": 1e-9},
    "patterns": required({f"p{at}": {"type": "string", "pattern": f"^a.{{{at}}}b$"} for at in range(100)}),
    "combined": {"type": "string", "allOf": [{"pattern": f"^[a-z]{{{at},90}}$"} for at in range(10)]},
    "optional": objects(**numbered(400, {"type": "integer"})),
    "members": {"anyOf": [required({f"k{at}": {"const": at}}) for at in range(500)]},
    "alternatives": {"anyOf": [objects(**{f"p{at}_{n}": {"const": 1} for n in range(100)}) for at in range(4)]},
    "combinations": {"allOf": [{"anyOf": [objects(**{f"a{at}": {"const": n}}) for n in (1, 2)]} for at in range(4)]},
    "enum": {"enum": [f"v{at}" for at in range(20_000)]},
    "beside": {"type": "string", "enum": [f"v{at}" for at in range(500)], "pattern": "^v[0-9]*$"},
    "const": {"const": 2**53 - 1},
}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "integer", "maximum": -(10**30), "minimum": -(10**30) - 5}, "m(ax|in)imum: at most 9007199254740991"),
    ({"minimum": 2**53}, "minimum: at most 9007199254740991 .* got 9007199254740992"),
    ({"maximum": 10**300}, "maximum: .*\\(301 digits"),
    ({"exclusiveMaximum": -2e15}, "exclusiveMaximum: at most 1000000000000000"),
    ({"exclusiveMinimum": 1e300}, "exclusiveMinimum"),
    ({"const": 2**53}, "const: numbers of at most 9007199254740991"),
    ({"const": {"a": [1, -(2**60)]}}, "const: numbers"),
    ({"enum": ["a", 1e22]}, "enum: numbers"),
    ({"multipleOf": 999_983}, "multipleOf: must be above 0 and at most 10000, got 999983"),
    ({"multipleOf": 2**60}, "multipleOf"),
    ({"multipleOf": 0}, "multipleOf: must be above 0"),
    ({"multipleOf": 1.23456}, "multipleOf: without its decimal point: at most 10000, got 123456"),
    ({"multipleOf": 1e-12}, "multipleOf: at most 9 decimals"),
    ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "least common multiple"),
    (objects(**{f"p{m}": {"multipleOf": m} for m in range(900, 1000)}), "multipleOf: all added up"),
    ({"maxItems": 10_001}, "maxItems: at most 10000, got 10001"),
    ({"minItems": 1e7}, "minItems"),
    ({"maxProperties": 10**5}, "maxProperties"),
    ({"minProperties": 10**5}, "minProperties"),
    ({"minLength": 2**40}, "minLength"),
    ({"maxLength": 10**7}, "maxLength"),
    (objects(a={"maxItems": 6000}, b={"maxItems": 6000}), "all added up: at most 10000, got 12000"),
    (objects(a={"maxItems": 9000}, b={"minItems": -9000}, c={"maxItems": 9000}), "all added up"),
    ({"allOf": [{"pattern": f"a.{{{at}}}b"} for at in range(40)]}, "pattern, format: in a schema with allOf"),
    ({"$defs": numbered(11, {"pattern": "a"}), "allOf": [{"$ref": "#/$defs/p0"}, {"$ref": "#/$defs/p1"}]}, "allOf"),
    (objects(**numbered(101, {"pattern": "a"})), "pattern: in all the schema: at most 100, got 101"),
    ({"patternProperties": numbered(101, {})}, "pattern: in all the schema"),
    (objects(a={"pattern": "a" * 9000}, b={"pattern": "b" * 9000}), "pattern: bytes of all together"),
    ({"pattern": "(a{1,9999}b){1,9999}"}, "the pattern .* repetitions"),
    (objects(**numbered(401, {})), "not required: in one object: at most 400, got 401"),
    ({"allOf": [objects(**numbered(300, {})), objects(**{f"q{n}": {} for n in range(300)})]}, "not required: in a"),
    ({"anyOf": [{}] * 501}, "anyOf: members: at most 500, got 501"),
    ({"oneOf": [{}] * 501}, "oneOf"),
    ({"items": {"anyOf": [{"anyOf": [{}] * 500}] * 5}}, "members in all"),
    ({"allOf": [{"anyOf": [{}, {}]}] * 5}, "combinations .* at most 16, got 32"),
    ({"anyOf": [objects(**numbered(201, {}))] * 2}, "not required, in its members: at most 400, got 402"),
    ({"oneOf": [{"$ref": "#/$defs/a"}] * 2, "$defs": {"a": objects(**numbered(201, {}))}}, "in its members"),
    ({"enum": ["a"] * 501, "pattern": "a"}, "enum: members beside a pattern"),
    (objects(a=required(numbered(2000, {}))), "properties: in all the schema"),
    ({"const": "a<bos>b"}, "const: must not contain '<bos>'"),
    ({"enum": ["x", {"<start_of_turn>": 1}]}, "enum: must not contain '<start_of_turn>'"),
    (objects(**{"<bos>": {}}), "properties: must not contain"),
    ({"pattern": "^<bos>$"}, "pattern: must not contain"),
    # What a reference leads to is a schema, wherever it is.
    ({"$ref": "#/default", "default": {"maxItems": 10**7}}, "maxItems"),
    ({"$ref": "#/%64efault", "default": {"maxItems": 10**7}}, "maxItems"),
    ({"$ref": "#/properties", "properties": {"properties": {"const": {"maxItems": 10**7}}}}, "maxItems"),
    (objects(const={"maxItems": 10**7}), "maxItems"),
    ({"$ref": "#/x", "x": [{"y": {"minimum": 1e300}}]}, "minimum"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "told"), REFUSED)
def test_what_would_hold_up_or_end_the_engine_is_refused_by_name(schema: dict[str, Any], told: str) -> None:
    for nested in (schema, objects(a={"type": "array", "items": schema}) | {"$defs": schema.get("$defs", {})}):
        if "$ref" in json.dumps(schema) and nested is not schema:
            continue
        with pytest.raises(SchemaBoundError, match=told):
            check_schema(nested, CONTROLS)


@pytest.mark.parametrize("name", WORST)
def test_the_worst_within_the_limits_are_left_to_the_engine(name: str) -> None:
    check_schema(WORST[name], CONTROLS)


@pytest.mark.parametrize(
    "schema",
    [
        objects(maxItems={"type": "integer"}, pattern={"type": "string"}, const={"description": "<bos>"}),
        {"default": {"maxItems": 10**7}, "examples": [{"pattern": "(" * 9}], "const": {"maxItems": 50_000}},
        {"multipleOf": 0.01, "minimum": 0},
        {"title": "<bos>", "description": "<bos>"},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": objects(**numbered(60, {"pattern": "a"}))}},
        objects(a={"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "default": None, "title": "A"}),
        {"type": "integer", "minimum": True, "maxItems": "many", "anyOf": {}, "enum": 1, "properties": []},
    ],
)
def test_ordinary_schemas_and_names_that_look_like_keywords_pass(schema: dict[str, Any]) -> None:
    check_schema(schema, CONTROLS)


def test_the_largest_schema_is_read_in_no_time_to_speak_of() -> None:
    begin_s = time.perf_counter()
    controls = [f"<unused{at}>" for at in range(6000)]
    check_schema({"enum": [f"v{at}" for at in range(30_000)]}, controls)
    assert time.perf_counter() - begin_s < 2


@pytest.mark.parametrize(
    ("schema", "keywords"),
    [
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
        (objects(a={"not": {}, "format": "iban"}), ["not", "format 'iban'"]),
        (objects(contains={"type": "string", "format": "uuid"}), []),
        ({"if": {}, "propertyNames": {}, "contains": {}}, ["if", "contains", "propertyNames"]),
        ({"default": {"not": 1}}, []),
    ],
)  # fmt: skip
def test_what_may_be_the_reason_of_a_refusal_is_told(schema: dict[str, Any], keywords: list[str]) -> None:
    assert doubtful_keywords(schema) == keywords
