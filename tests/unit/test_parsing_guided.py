"""Forced calls: what the engine is told to write, and how it is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.core.request import Tool, ToolChoice, ToolChoiceMode
from service.parsing import AnyCalls, GuidedCalls, NamedCall, OutputParser, guided_schema, open_parser
from tests.support.parsed_output import parse

REQUIRED = ToolChoice(mode=ToolChoiceMode.REQUIRED)
ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TREE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.org/tree",
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "again": {"$ref": "#"}, "$ref": {"enum": ["#/a"]}},
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "default": {"$ref": "#/data"},
}


def tool(name: str, parameters: Any = None) -> Tool:
    return Tool(name=name, parameters="" if parameters is None else json.dumps(parameters))


def schema_of(*tools: Tool, choice: ToolChoice = REQUIRED, parallel: bool = False) -> Any:
    return json.loads(guided_schema(tools, choice, parallel=parallel))


def parser(guided: GuidedCalls) -> OutputParser:
    opened = open_parser(
        tools=None,
        guided=guided,
        reasoning=None,
        starts_in_reasoning=False,
        parallel=True,
        tool_names=frozenset({"add", "b"}),
    )
    assert opened is not None
    return opened


def resolve(schema: Any, pointer: str) -> Any:
    for part in pointer.removeprefix("#").split("/")[1:]:
        schema = schema[part]
    return schema


def references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [found for item in schema for found in references(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    return own + [found for key, item in schema.items() if key != "default" for found in references(item)]


def test_a_named_function_forces_its_own_parameters() -> None:
    choice = ToolChoice(function="add")
    assert schema_of(tool("now"), tool("add", ADD), choice=choice) == ADD
    assert schema_of(tool("tree", TREE), choice=ToolChoice(function="tree")) == TREE


@pytest.mark.parametrize(
    ("parameters", "forced"),
    [
        (None, NOTHING),
        ({}, {"type": "object"}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"anyOf": [ADD]}, {"anyOf": [ADD]}),
    ],
)
def test_arguments_are_an_object_and_empty_without_parameters(parameters: Any, forced: Any) -> None:
    assert schema_of(tool("f", parameters), choice=ToolChoice(function="f")) == forced
    assert schema_of(tool("f", parameters))["properties"]["arguments"] == forced


def test_a_required_call_is_one_of_all_functions_with_the_name_first() -> None:
    schema = schema_of(tool("add", ADD), tool("now"))
    assert list(schema) == ["anyOf"]
    add, now = schema["anyOf"]
    assert add == {
        "type": "object",
        "properties": {"name": {"const": "add"}, "arguments": ADD},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    assert list(add["properties"]) == ["name", "arguments"]
    assert now["properties"] == {"name": {"const": "now"}, "arguments": NOTHING}


def test_parallel_calls_are_a_list_of_at_least_one() -> None:
    schema = schema_of(tool("add", ADD), parallel=True)
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    assert schema["items"]["properties"]["name"] == {"const": "add"}


@pytest.mark.parametrize("parallel", [True, False])
def test_references_inside_parameters_still_mean_the_same_place(parallel: bool) -> None:
    schema = schema_of(tool("tree", TREE), tool("add", ADD), parallel=parallel)
    calls = (schema["items"] if parallel else schema)["anyOf"]
    assert calls[0]["properties"]["arguments"] == {"$ref": "#/$defs/tree"}
    hoisted = schema["$defs"]["tree"]
    assert resolve(schema, hoisted["properties"]["root"]["$ref"]) is hoisted["$defs"]["node"]
    assert resolve(schema, hoisted["$defs"]["node"]["properties"]["next"]["$ref"]) is hoisted["$defs"]["node"]
    assert resolve(schema, hoisted["properties"]["again"]["$ref"]) is hoisted
    for reference in references(schema):
        assert resolve(schema, reference) is not None
    # Data that looks like a reference is none, nor is a property of that name.
    assert hoisted["default"] == {"$ref": "#/data"}
    assert hoisted["properties"]["$ref"] == {"enum": ["#/a"]}
    assert not {"$schema", "$id"} & hoisted.keys()


@pytest.mark.parametrize("reference", ["https://example.org/x", "https://example.org/x#", "x", "/x", "#"])
@pytest.mark.parametrize("own", ["https://example.org/x", "https://example.org/x#"])
def test_a_schema_that_refers_to_itself_by_its_id_means_the_same_place(own: str, reference: str) -> None:
    part = f"{reference.rstrip('#')}#/$defs/i"
    whole = {
        "$id": own,
        "type": "object",
        "properties": {"i": {"$ref": part}, "again": {"$ref": reference}, "$id": {"const": "y"}},
        "$defs": {"i": {"type": "integer"}},
    }
    forced = schema_of(tool("f", whole))
    hoisted = forced["$defs"]["f"]
    assert resolve(forced, hoisted["properties"]["i"]["$ref"]) == {"type": "integer"}
    assert resolve(forced, hoisted["properties"]["again"]["$ref"]) is hoisted
    named = schema_of(tool("f", whole), choice=ToolChoice(function="f"))
    assert named["properties"]["i"] == {"$ref": "#/$defs/i"}
    assert named["properties"]["again"] == {"$ref": "#"}


def test_references_to_other_documents_stay() -> None:
    inner = {"$id": "inner", "$ref": "#/$defs/a", "$defs": {"a": {}}}
    whole = {
        "$id": "urn:x",
        "type": "object",
        "properties": {"own": {"$ref": "urn:x#a"}, "other": {"$ref": "https://example.org/y#/a"}, "inner": inner},
    }
    properties = schema_of(tool("f", whole))["$defs"]["f"]["properties"]
    assert properties == {"own": {"$ref": "#a"}, "other": {"$ref": "https://example.org/y#/a"}, "inner": inner}


def test_the_arguments_of_a_named_call_are_the_whole_output_and_complete_with_the_last_brace() -> None:
    for pieces in ([' {"a": "}"} \n more'], list(' {"a": "}"} \n more')):
        found = parse(parser(NamedCall("add")), pieces)
        assert (found.calls, found.text, found.is_complete) == ([("add", '{"a": "}"}')], "", True)
        assert not found.is_call_open


@pytest.mark.parametrize("output", ["[1, 2] x", '{"a": [1}} x', "no JSON", '{"a": 1'])
def test_a_named_call_takes_also_what_is_no_object(output: str) -> None:
    for pieces in ([output], list(output)):
        found = parse(parser(NamedCall("add")), pieces)
        assert (found.calls, found.text, found.is_complete) == ([("add", output)], "", False)
        assert found.is_call_open


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("value", ['"the_"', '"{\\"a\\": 1}"', '""', "[1]"])
def test_forced_arguments_are_never_unquoted(value: str, parallel: bool) -> None:
    call = f'{{"name":"add","arguments":{value}}}'
    output = f"[{call}]" if parallel else call
    for pieces in ([output], list(output)):
        found = parse(parser(AnyCalls(parallel=parallel)), pieces)
        assert (found.calls, found.text) == ([("add", value)], "")


@pytest.mark.parametrize(
    "output", ['[{"name":"add","arguments":{"a":"x', '[{"name":"b","arguments":{}},{"name":"add",']
)
def test_forced_calls_that_are_cut_say_so(output: str) -> None:
    found = parse(parser(AnyCalls(parallel=True)), output)
    assert (found.calls[-1][0], found.is_call_open) == ("add", True)


def test_a_name_that_was_not_offered_is_text_where_an_engine_did_not_keep_to_the_schema() -> None:
    output = '{"name":"functions.add","arguments":{}}'
    found = parse(parser(AnyCalls(parallel=False)), output)
    assert (found.text, found.calls) == (output, [])


def test_no_output_is_no_call() -> None:
    found = parse(parser(NamedCall("add")), [" "])
    assert (found.calls, found.is_call_open) == ([], False)


@pytest.mark.parametrize(
    ("parallel", "output", "calls"),
    [
        (
            True,
            '[{"name":"add","arguments":{"a":1}}, {"name":"b","arguments":{}}] x',
            [("add", '{"a":1}'), ("b", "{}")],
        ),
        (False, '\n{"name": "b", "arguments": {}} x', [("b", "{}")]),
    ],
)
def test_any_calls_are_read_by_their_names_and_complete_with_the_last_bracket(
    parallel: bool, output: str, calls: list[tuple[str, str]]
) -> None:
    for pieces in ([output], list(output)):
        found = parse(parser(AnyCalls(parallel=parallel)), pieces)
        assert (found.calls, found.text, found.is_complete) == (calls, "", True)


def test_output_that_was_not_forced_is_text() -> None:
    found = parse(parser(AnyCalls(parallel=True)), ["I would rather talk."])
    assert (found.calls, found.text, found.is_complete) == ([], "I would rather talk.", False)
