"""What a JSON Schema must not hold: an engine's JSON reader is stricter than Python's."""

from __future__ import annotations

import json

import pytest

from service.core.errors import Violation
from service.core.schema import schema_violations

TOO_LARGE = "has a number beyond the range of a double"
HALF = "has an escape of half a character: a surrogate without the other one"


@pytest.mark.parametrize(
    ("source", "description"),
    [
        ('{"maximum": 1e999}', TOO_LARGE),
        ('{"maximum": -1e999}', TOO_LARGE),
        ('{"maximum": 1' + "0" * 400 + "}", TOO_LARGE),
        ('{"maximum": -1' + "0" * 309 + "}", TOO_LARGE),
        ('{"maximum": 1' + "0" * 5000 + "}", TOO_LARGE),
        ('{"const": NaN}', "is not JSON: NaN is no number"),
        ('{"const": [Infinity]}', "is not JSON: Infinity is no number"),
        ('{"const": -Infinity}', "is not JSON: -Infinity is no number"),
        (r'{"const": "\ud800"}', HALF),
        (r'{"enum": ["a", {"b": "x\udc00y"}]}', HALF),
        (r'{"properties": {"\udfff": {}}}', HALF),
        (r'{"const": "\ude00\ud83d"}', HALF),
    ],
)
def test_what_engines_cannot_read_is_refused_by_name(source: str, description: str) -> None:
    assert schema_violations("a.b", source) == [Violation("a.b", description)]


@pytest.mark.parametrize(
    "source",
    [
        r'{"const": "\ud83d\ude00 \\ud800"}',
        '{"maximum": 1.7976931348623157e308, "minimum": 1e-999}',
        '{"maximum": 1' + "0" * 308 + "}",
        '{"const": -9007199254740993}',
        "{}",
    ],
)
def test_what_they_can_read_is_taken(source: str) -> None:
    assert schema_violations("a", source) == []


def test_depth_is_bounded_and_both_faults_are_named() -> None:
    def nested(depth: int, inside: str = "1") -> str:
        return '{"a":' * depth + inside + "}" * depth

    assert schema_violations("a", nested(64)) == []
    assert [one.description for one in schema_violations("a", nested(65))] == ["nested deeper than 64"]
    assert len(schema_violations("a", nested(65, json.dumps("\ud800")))) == 2
    assert [one.description for one in schema_violations("a", nested(100_000))] == ["nested deeper than 64"]
