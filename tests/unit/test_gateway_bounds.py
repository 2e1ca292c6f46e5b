"""What one request body may cost: how many problems are told of it, and how much is built from it."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.openai.base import RequestModel
from gateway.openai.chat import ChatRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.errors import ApiError
from gateway.openai.json_values import MAX_SCHEMA_BYTES, SchemaBudget, least_size
from gateway.openai.requests import Endpoint, parse
from gateway.openai.responses.call import parse as parse_response
from gateway.openai.responses.request import ResponseRequest
from gateway.openai.structure import MAX_ITEMS, MAX_TOKEN_IDS, check_structure, is_small
from gateway.openai.tokenize import DetokenizeRequest, TokenizeRequest, parse_detokenize, parse_tokenize

Parse = Callable[[bytes], object]
Path = tuple[str, ...]
# How many items the innermost list has, and about how many bytes the lists around it have: a value as JSON text.
Build = Callable[[int, int], str]

SCHEMAS: Final[dict[type[RequestModel], Parse]] = {
    ChatRequest: lambda body: parse(Endpoint.CHAT, body),
    CompletionRequest: lambda body: parse(Endpoint.COMPLETION, body),
    ResponseRequest: parse_response,
    TokenizeRequest: parse_tokenize,
    DetokenizeRequest: parse_detokenize,
}
NEEDED: Final[dict[type[RequestModel], dict[str, Any]]] = {
    ChatRequest: {"messages": [{"role": "user", "content": "x"}]},
    CompletionRequest: {"prompt": "x"},
    ResponseRequest: {"input": "x"},
    TokenizeRequest: {},
    DetokenizeRequest: {"tokens": [1]},
}
BODY_BYTES: Final = 1_000_000
# A wrong member of everything that can be wrong at once, and no more.
MOST_PROBLEMS: Final = 64
# About 15 µs each.
MOST_TOLD: Final = 4000
WRONG: Final = ("1.5", "{}", "[]")


def wrong_lists(schema: dict[str, Any], node: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, Build]]:
    """Yield what writes a value of `node` for each list within it: wrong everywhere, the lists around it full of it."""
    if "$ref" in node:
        yield from wrong_lists(schema, schema["$defs"][node["$ref"].rpartition("/")[2]], path)
    for branch in node.get("anyOf", []) + node.get("oneOf", []):
        yield from wrong_lists(schema, branch, path)
    if node.get("type") == "array":
        for wrong in WRONG:
            yield (*path, wrong), partial(_full_list, wrong)
        for where, build in wrong_lists(schema, node.get("items", {}), (*path, "[]")):
            yield where, partial(_list_of, build)
    names = node.get("properties", {})
    kinds = {name: _only(member) for name, member in names.items() if _only(member) is not None}
    for name, member in names.items():
        for where, build in wrong_lists(schema, member, (*path, name)):
            yield where, partial(_object_with, kinds, name, build)


def _only(member: dict[str, Any]) -> Any:
    return member.get("const", member.get("enum", [None])[0] if "default" not in member else None)


def _full_list(wrong: str, inner: int, _size: int) -> str:
    return f"[{','.join([wrong] * inner)}]"


def _list_of(build: Build, inner: int, size: int) -> str:
    item = build(inner, size)
    return f"[{','.join([item] * max(size // (len(item) + 1), 1))}]"


def _object_with(kinds: dict[str, Any], name: str, build: Build, inner: int, size: int) -> str:
    return f'{json.dumps(kinds)[:-1]}{", " if kinds else ""}"{name}":{build(inner, size)}}}'


def cases() -> Iterator[Any]:
    for model in SCHEMAS:
        schema = model.model_json_schema()
        for path, build in wrong_lists(schema, schema):
            yield pytest.param(model, build, id=f"{model.__name__}-{'.'.join(path)}")


CASES: Final = list(cases())


def body_of(model: type[RequestModel], members: dict[str, Any]) -> bytes:
    return json.dumps({"model": "m", **NEEDED[model], **members}).encode()


def body_with(model: type[RequestModel], members: str) -> bytes:
    return f"{body_of(model, {}).decode()[:-1]},{members[1:]}".encode()


def refusal(model: type[RequestModel], body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        SCHEMAS[model](body)
    return caught.value


def problems(model: type[RequestModel], body: bytes) -> int:
    """Return how many problems are found in a body whose structure is bounded."""
    try:
        check_structure(body)
        model.model_validate_json(body, context=SchemaBudget())
    except ValidationError as error:
        return error.error_count()
    except ApiError:
        return 1
    return 0


def told(model: type[RequestModel], body: bytes) -> int:
    """Return of how many problems a caller is told, in words and as a number."""
    try:
        SCHEMAS[model](body)
    except ApiError as error:
        more = re.search(r"And (\d+) more\.$", error.message)
        return 20 + int(more[1]) if more else 20
    return 0


def test_the_walk_finds_the_lists_that_people_know() -> None:
    found = {case.id for case in CASES}
    for known in (
        "ChatRequest-messages.[].tool_calls.1.5", "ChatRequest-messages.[].content.1.5", "ChatRequest-modalities.1.5",
        "ChatRequest-tool_choice.allowed_tools.tools.1.5", "ChatRequest-stop.1.5", "CompletionRequest-prompt.[].1.5",
        "ResponseRequest-input.[].summary.1.5", "ResponseRequest-input.[].output.1.5", "ResponseRequest-tools.1.5",
        "ResponseRequest-tool_choice.tools.1.5", "ChatRequest-structured_outputs.choice.1.5",
        "DetokenizeRequest-tokens.1.5", "TokenizeRequest-messages.1.5",
    ):  # fmt: skip
        assert known in found


@pytest.mark.parametrize(("model", "build"), CASES)
def test_a_list_that_is_wrong_everywhere_has_few_problems(model: type[RequestModel], build: Build) -> None:
    for inner in (1, 1024, BODY_BYTES // 8):
        body = body_with(model, build(inner, BODY_BYTES))
        assert problems(model, body) <= MOST_PROBLEMS
        # Where people would read it, all is told, up to a bound.
        small = body_with(model, build(min(inner, 300), 1000))
        assert told(model, small) <= MOST_TOLD


@pytest.mark.parametrize("model", SCHEMAS)
def test_every_list_of_every_request_ends_at_its_first_problem_and_has_an_end(model: type[RequestModel]) -> None:
    def check(schema: Any) -> None:
        if isinstance(schema, dict):
            if schema.get("type") == "list" and "items_schema" in schema:
                assert schema["fail_fast"] is True
                assert schema["max_length"] > 0
            for inner in schema.values():
                check(inner)
        elif isinstance(schema, list | tuple):
            for inner in schema:
                check(inner)

    check(TypeAdapter(model).core_schema)


def test_of_a_request_that_people_read_every_problem_is_told() -> None:
    call = {"id": "c", "type": "function"}
    messages = [
        {"role": "user", "content": [{"type": "text"}, {"type": "audio"}, {"type": "text", "text": "x"}, 5]},
        {"role": "user", "content": "fine"},
        {"role": "assistant", "tool_calls": [call, {**call, "function": {"name": "f", "arguments": "{}"}}, {}]},
        {"role": "nobody"},
    ]
    body = body_of(ChatRequest, {"messages": messages, "stop": [1, "", "x"], "tools": [{}, {"type": "function"}]})
    told = refusal(ChatRequest, body).message
    for name in (
        "messages[0].content[0].text", "messages[0].content[1].type", "messages[0].content[3]",
        "messages[2].tool_calls[0].function", "messages[2].tool_calls[2].id", "messages[2].tool_calls[2].type",
        "messages[3].role", "stop[0]", "stop[1]", "tools[0].type", "tools[0].function", "tools[1].function",
    ):  # fmt: skip
        assert f"'{name}'" in told


def test_a_long_request_names_the_first_wrong_item_of_a_list_and_everything_else() -> None:
    long = [{"role": "user", "content": "x"}] * 1000
    wrong = {"role": "user"}
    told = refusal(ChatRequest, body_of(ChatRequest, {"messages": [*long, wrong, wrong], "temperature": 3})).message
    assert "'messages[1000].content'" in told
    assert "'temperature'" in told
    assert "messages[1001]" not in told


def test_token_ids_may_be_many_where_they_belong_and_nowhere_else() -> None:
    ids = [1] * (MAX_ITEMS + 10)
    assert SCHEMAS[CompletionRequest](body_of(CompletionRequest, {"prompt": ids}))
    assert SCHEMAS[DetokenizeRequest](body_of(DetokenizeRequest, {"tokens": ids}))
    nested = [[1] * (2**18)] * 4
    assert SCHEMAS[CompletionRequest](body_of(CompletionRequest, {"prompt": nested, "stop": ["a", "b"]}))
    for model, members in [
        (CompletionRequest, {"guided_json": {"prompt": ids}}),
        (CompletionRequest, {"metadata": ["prompt", *ids]}),
        (CompletionRequest, {"prompt": [1] * (MAX_TOKEN_IDS + 2 * MAX_ITEMS)}),
        (ChatRequest, {"prompt": ids}),
        (DetokenizeRequest, {"prompt": ids}),
    ]:
        assert refusal(model, body_of(model, members)).code == "request_too_complex"


def flat_tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": parameters}


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(("model", "make"), [(ChatRequest, tool), (ResponseRequest, flat_tool)])
def test_tools_have_one_budget_together_and_the_rest_is_not_written(model: type[RequestModel], make: Any) -> None:
    quarter = {"a": "x" * (MAX_SCHEMA_BYTES // 4 - 8)}
    assert SCHEMAS[model](body_of(model, {"tools": [make(f"f{at}", quarter) for at in range(4)]}))
    error = refusal(model, body_of(model, {"tools": [make(f"f{at}", quarter) for at in range(6)]}))
    assert str(error.param).startswith("tools[4].")
    assert f"at most {MAX_SCHEMA_BYTES} bytes of JSON in all tools together" in error.message
    assert "tools[5]" not in error.message or is_small(body_of(model, {"tools": [make("f", quarter)] * 6}))
    # The next request begins anew.
    assert SCHEMAS[model](body_of(model, {"tools": [make("f", quarter)]}))


@pytest.mark.parametrize("value", [[1] * 140_000, ["x"] * 70_000, {str(at): 1 for at in range(40_000)}, "x" * 262_145])
def test_a_schema_is_bounded_before_it_is_written(value: Any) -> None:
    for members in (
        {"guided_json": {"enum": value}},
        {"structured_outputs": {"json": {"enum": value}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": value}}}},
        {"tools": [tool("f", {"enum": value})]},
        {"chat_template_kwargs": {"enum": value}},
    ):
        assert str(refusal(ChatRequest, body_of(ChatRequest, members)).param).startswith(next(iter(members)))


def test_a_schema_travels_as_it_is() -> None:
    schema = {"type": "object", "x-guidance": {"whitespace_flexible": True}, "$defs": {"\u00e9": {"maximum": 1e300}}}
    body = body_of(ChatRequest, {"tools": [tool("f", schema)], "guided_json": schema})
    request = parse(Endpoint.CHAT, body).request
    assert json.loads(request.chat.tools[0].function.parameters_json_schema) == schema
    assert json.loads(request.constraint.json_schema) == schema


numbers = st.integers(-(10**30), 10**30) | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(st.lists(json_values) | st.dictionaries(st.text(), json_values))
def test_the_least_size_of_a_value_is_never_above_its_size(value: Any) -> None:
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert 1 <= least_size(value, 10**9) <= len(written)
    assert least_size(value, 10) <= len(written)


@pytest.mark.parametrize("number", [b"9" * 4000, b"0." + b"9" * 4000, b"-" + b"1" * 65])
@pytest.mark.parametrize(
    "members", [b'"prompt":[%s]', b'"prompt":"x","guided_json":{"enum":[%s]}', b'"prompt":"x","unknown":[%s]']
)
def test_a_large_body_has_no_number_of_many_digits(number: bytes, members: bytes) -> None:
    body = b'{"model":"m",%s}' % (members % b",".join([number] * (100_000 // len(number))))
    error = refusal(CompletionRequest, body)
    assert (error.code, "64 digits" in error.message) == ("request_too_complex", True)


def test_digits_in_texts_and_token_ids_do_not_count() -> None:
    assert SCHEMAS[CompletionRequest](body_of(CompletionRequest, {"prompt": "9" * 3_000_000}))
    assert SCHEMAS[CompletionRequest](body_of(CompletionRequest, {"prompt": [2_000_000_000] * 300_000}))
    error = refusal(CompletionRequest, body_of(CompletionRequest, {"unknown": [10**50] * 50_000}))
    assert (error.code, "digits" in error.message) == ("request_too_complex", True)
