"""What a request to the Responses API is refused for, and by which name."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai.errors import ApiError
from gateway.openai.responses.call import parse
from gateway.openai.responses.parameters import REFUSED

TOOL = {"type": "function", "name": "f"}


def refused(given: Any = "hi", **members: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(json.dumps({"model": "m", "input": given, **members}).encode())
    assert caught.value.http_status == 400
    return caught.value


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_another_server_has_is_refused_by_name_with_what_to_do_instead(name: str) -> None:
    error = refused(**{name: 2})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert REFUSED[name] in error.message


BAD: Mapping[str, tuple[dict[str, Any], str, str | None]] = {
    "too few tokens": ({"max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value"),
    "hot": ({"temperature": 3}, "temperature", "decimal_above_max_value"),
    "no input": ({"input": None}, "input", "invalid_type"),
    "empty input": ({"input": []}, "input", "empty_array"),
    "number": ({"input": 5}, "input", "invalid_type"),
    "item": ({"input": [5]}, "input[0]", "invalid_type"),
    "part": (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
        "missing_required_parameter",
    ),
    "text": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]},
        "input[0].content[0].text",
        "invalid_type",
    ),
    "image": (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
        "unsupported_value",
    ),
    "role": ({"input": [{"role": "tool", "content": ""}]}, "input[0].role", "invalid_value"),
    "call id": (
        {"input": [{"type": "function_call_output", "output": ""}]},
        "input[0].call_id",
        "missing_required_parameter",
    ),
    "reference": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "unsupported_value"),
    "other item": ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type", "invalid_value"),
    "sealed": (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
        "input[0].encrypted_content",
        "unsupported_value",
    ),
    "built-in tool": ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_value"),
    "tool name": ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
    "choice of none": ({"tool_choice": "required"}, "tool_choice", None),
    "choice of another": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}},
        "tool_choice.name",
        "invalid_value",
    ),
    "built-in choice": (
        {"tools": [TOOL], "tool_choice": {"type": "file_search"}},
        "tool_choice.type",
        "unsupported_value",
    ),
    "mode": ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
    "format": ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
    "schema": (
        {"text": {"format": {"type": "json_schema", "name": "a"}}},
        "text.format.schema",
        "missing_required_parameter",
    ),
    "effort": ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
    "include": ({"include": ["secrets"]}, "include[0]", "invalid_value"),
    "truncation": ({"truncation": "auto"}, "truncation", "invalid_value"),
    "metadata": ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    "options": ({"stream_options": {"include_obfuscation": False}}, "stream_options", None),
    "two constraints": (
        {"text": {"format": {"type": "json_object"}}, "guided_regex": "a"},
        "guided_regex",
        "invalid_value",
    ),
}


@pytest.mark.parametrize(
    "members",
    [
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "custom", "format": {"type": "grammar"}}]},
        {"tools": [TOOL], "tool_choice": {"type": "file_search"}},
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
        {"given": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"given": [{"type": "item_reference", "id": "x"}]},
        {"text": {"format": {"type": "grammar"}}},
    ],
)
def test_what_is_of_another_kind_does_not_lack_the_members_of_ours(members: dict[str, Any]) -> None:
    error = refused(**members)
    assert str(error.param).endswith(".type")
    assert "Missing" not in error.message


@pytest.mark.parametrize(("members", "param", "code"), BAD.values(), ids=BAD)
def test_bad_members_are_named_by_their_path(members: dict[str, Any], param: str, code: str | None) -> None:
    error = refused(**{"given": members["input"]} if "input" in members else members)
    assert (error.param, error.code) == (param, code), error.message


def test_every_problem_is_in_the_message() -> None:
    error = refused([{"role": "user", "content": 5}, {"type": "x"}], temperature=3, tools=[{"type": "mcp"}])
    for word in ("input[0].content", "input[1].type", "temperature", "mcp"):
        assert word in error.message


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["message", "function_call", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "call_id", "output", "name"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(json_values, st.sampled_from(["input", "tools", "tool_choice", "text", "reasoning", "include", "metadata"]))
def test_whatever_is_sent_is_taken_or_refused(value: Any, member: str) -> None:
    try:
        parse(json.dumps({"model": "m", "input": "x", member: value}).encode())
    except ApiError as error:
        told = error
    else:
        return
    assert (told.http_status, bool(told.message)) == (400, True)
