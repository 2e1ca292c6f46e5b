"""Messages and tools of a chat request: what reaches the contract, and what is refused by which name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.errors import ApiError, from_upstream
from gateway.openai.requests import Endpoint, GenerationCall, parse
from headrace.v1 import chat_pb2

USER = {"role": "user", "content": "hi"}


def tool(name: str = "f", **members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **members}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(*names: str, mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def chat(*messages: Any, **members: Any) -> GenerationCall:
    body = {"model": "m", "messages": list(messages) or [USER], **members}
    return parse(Endpoint.CHAT, json.dumps(body).encode())


def refusal(*messages: Any, **members: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(*messages, **members)
    assert (caught.value.http_status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


def message(given: dict[str, Any]) -> chat_pb2.ChatMessage:
    (sent,) = chat(given).request.chat.messages
    return sent


def test_texts_of_every_role_arrive_in_order() -> None:
    sent = chat(
        {"role": "system", "content": [{"type": "text", "text": "S"}]},
        {"role": "developer", "content": "D", "name": "dev"},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "C"}, {"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "refusal": "never"},
        {"role": "user", "content": ""},
    ).request.chat.messages
    assert [(chat_pb2.Role.Name(m.role), [part.text for part in m.content]) for m in sent] == [
        ("ROLE_SYSTEM", ["S"]),
        ("ROLE_DEVELOPER", ["D"]),
        ("ROLE_USER", ["A", "B"]),
        ("ROLE_ASSISTANT", ["C", "no"]),
        ("ROLE_ASSISTANT", ["never"]),
        ("ROLE_USER", [""]),
    ]
    assert sent[1].name == "dev"


def test_an_assistant_turn_with_calls_and_the_results_of_them() -> None:
    arguments = '{"city": "K\\u00f6ln",  "x": 1'  # as the model wrote them, faults and all
    sent = chat(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}},
                {"id": "c2", "type": "function", "function": {"name": "now", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {
            "role": "tool",
            "tool_call_id": "c2",
            "content": [{"type": "text", "text": "5"}, {"type": "text", "text": "am"}],
        },
    ).request.chat.messages
    assert [(call.id, call.function_name, call.arguments_json) for call in sent[0].tool_calls] == [
        ("c1", "weather", arguments),
        ("c2", "now", ""),
    ]
    assert not sent[0].content
    assert [(m.tool_call_id, "".join(part.text for part in m.content)) for m in sent[1:]] == [
        ("c1", "sunny"),
        ("c2", "5am"),
    ]


def test_reasoning_of_an_earlier_turn_travels_under_either_name() -> None:
    turn = {"role": "assistant", "content": "x"}
    assert message({**turn, "reasoning_content": "r"}).reasoning_text == "r"
    assert message({**turn, "reasoning": "r"}).reasoning_text == "r"
    assert message({**turn, "reasoning": "a", "reasoning_content": "r"}).reasoning_text == "r"


def test_what_sdks_write_into_an_answer_can_be_sent_back() -> None:
    dumped = {
        "role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "function_call": None,
        "tool_calls": None, "reasoning_content": None,
    }  # fmt: skip
    assert message(dumped) == message({"role": "assistant", "content": "x"})


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"role": "user"}, "messages[0].content", "missing_required_parameter"),
        ({"role": "user", "content": None}, "messages[0].content", "invalid_type"),
        ({"role": "user", "content": 5}, "messages[0].content", "invalid_type"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]", "invalid_type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text", "missing_required_parameter"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id", "missing_required_parameter"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "messages[0].tool_call_id", "string_below_min_length"),
        ({"role": "tool", "tool_call_id": "c"}, "messages[0].content", "missing_required_parameter"),
        ({"role": "function", "name": "f", "content": "x"}, "messages[0].role", "unsupported_value"),
        ({"role": 5, "content": "x"}, "messages[0].role", "invalid_value"),
        ({"role": None, "content": "x"}, "messages[0].role", "invalid_value"),
        (5, "messages[0]", "invalid_type"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call", "unsupported_parameter"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[0].audio", "unsupported_parameter"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {}}]},
            "messages[0].tool_calls[0].type",
            "unsupported_value",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]},
            "messages[0].tool_calls[0].function.arguments",
            "missing_required_parameter",
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}],
            },
            "messages[0].tool_calls[0].function.arguments",
            "invalid_type",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_the_path_of_its_member(given: Any, param: str, code: str) -> None:
    error = refusal(given)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_parts_that_are_no_text_are_refused_by_name(kind: str, role: str) -> None:
    error = refusal({"role": role, "content": [{"type": "text", "text": "x"}, {"type": kind, kind: {}}]})
    assert (error.param, error.code) == ("messages[0].content[1].type", "unsupported_value")
    assert f"does not support '{kind}' with this model. Supported values are: 'text'" in error.message


def test_tools_travel_with_their_schemas_as_they_were_written() -> None:
    schema = {"type": "object", "properties": {"b": {"const": "\u00e9"}, "a": {}}}
    given = chat(tools=[tool("f", description="d", parameters=schema, strict=True), tool("g-2_X")]).request.chat
    first, second = (sent.function for sent in given.tools)
    assert (first.name, first.description, first.strict) == ("f", "d", True)
    assert first.parameters_json_schema == '{"type":"object","properties":{"b":{"const":"\u00e9"},"a":{}}}'
    assert (second.name, second.parameters_json_schema, second.strict) == ("g-2_X", "", False)
    assert not given.HasField("tool_choice")
    assert not given.HasField("parallel_tool_calls")


@pytest.mark.parametrize(
    ("choice", "mode", "function"),
    [
        ("none", chat_pb2.TOOL_CHOICE_MODE_NONE, ""),
        ("auto", chat_pb2.TOOL_CHOICE_MODE_AUTO, ""),
        ("required", chat_pb2.TOOL_CHOICE_MODE_REQUIRED, ""),
        (named("g"), chat_pb2.TOOL_CHOICE_MODE_UNSPECIFIED, "g"),
        (allowed("f", "g"), chat_pb2.TOOL_CHOICE_MODE_AUTO, ""),
        (allowed("f", "g", mode="required"), chat_pb2.TOOL_CHOICE_MODE_REQUIRED, ""),
    ],
)
def test_every_choice_among_tools_travels(choice: Any, mode: int, function: str) -> None:
    given = chat(tools=[tool("f"), tool("g")], tool_choice=choice, parallel_tool_calls=False, n=2).request
    assert len(given.chat.tools) == given.choice_count == 2
    assert (given.chat.tool_choice.mode, given.chat.tool_choice.function_name) == (mode, function)
    assert given.chat.HasField("parallel_tool_calls")
    assert not given.chat.parallel_tool_calls


def test_of_allowed_tools_only_those_are_shown_and_their_numbers_are_those_of_the_request() -> None:
    call = chat(tools=[tool("a"), tool("b"), tool("c")], tool_choice=allowed("c", "b"))
    assert [sent.function.name for sent in call.request.chat.tools] == ["b", "c"]
    assert call.naming.json_name("chat.tools[0].function.name") == "tools[1].function.name"
    assert call.naming.json_name("chat.tools[1].function.parameters_json_schema") == "tools[2].function.parameters"


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": "required", "tools": []}, "tool_choice", None),
        ({"tool_choice": named("f")}, "tool_choice", None),
        ({"tool_choice": named("x"), "tools": [tool()]}, "tool_choice.function.name", "invalid_value"),
        (
            {"tool_choice": allowed("f", "x"), "tools": [tool()]},
            "tool_choice.allowed_tools.tools[1].function.name",
            "invalid_value",
        ),
        ({"tool_choice": allowed(), "tools": [tool()]}, "tool_choice.allowed_tools.tools", "empty_array"),
        ({"tool_choice": "any", "tools": [tool()]}, "tool_choice", "invalid_value"),
        ({"tool_choice": 5, "tools": [tool()]}, "tool_choice", "invalid_type"),
        ({"tool_choice": {}, "tools": [tool()]}, "tool_choice.type", "missing_required_parameter"),
        ({"tool_choice": {"type": "custom"}, "tools": [tool()]}, "tool_choice.type", "unsupported_value"),
        ({"tools": [tool("a"), tool("b"), tool("a")]}, "tools[2].function.name", "invalid_value"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [tool("")]}, "tools[0].function.name", "string_below_min_length"),
        ({"tools": [tool("x" * 65)]}, "tools[0].function.name", "string_above_max_length"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "invalid_type"),
        ({"tools": [tool(parameters="{}")]}, "tools[0].function.parameters", "invalid_type"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [tool(str(i)) for i in range(129)]}, "tools", "array_above_max_length"),
        ({"tools": {}}, "tools", "invalid_type"),
    ],
)
def test_tools_that_contradict_themselves_are_refused_by_the_path_of_the_member(
    members: dict[str, Any], param: str, code: str | None
) -> None:
    error = refusal(**members)
    assert (error.param, error.code) == (param, code)


def test_a_choice_without_tools_is_refused_in_openais_words() -> None:
    text = "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
    assert refusal(tool_choice="required").message == text


def test_problems_of_messages_tools_and_choice_are_told_together() -> None:
    error = refusal({"role": "tool"}, tools=[tool("a"), tool("a"), {"type": "x"}], tool_choice="any", temperature=3)
    for name in ("messages[0].tool_call_id", "messages[0].content", "tools[2].type", "tool_choice", "temperature"):
        assert f"'{name}'" in error.message


def test_violations_of_the_service_name_members_of_the_body() -> None:
    name = chat(tools=[tool()]).naming.json_name
    assert name("chat.tools") == "tools"
    assert name("chat.tools[0].function.parameters_json_schema") == "tools[0].function.parameters"
    assert name("chat.tool_choice") == "tool_choice"
    assert name("chat.tool_choice.function_name") == "tool_choice.function.name"
    assert name("chat.messages[3].tool_calls[1].function_name") == "messages[3].tool_calls[1].function.name"
    assert name("chat.messages[3].tool_calls[1].arguments_json") == "messages[3].tool_calls[1].function.arguments"
    assert name("chat.messages[3].reasoning_text") == "messages[3].reasoning_content"
    assert name("chat.messages[3].tool_call_id") == "messages[3].tool_call_id"


def test_a_forced_call_that_cannot_be_enforced_is_a_matter_of_the_tools() -> None:
    naming = chat(tools=[tool()], tool_choice=named("f")).naming
    found = [("chat.tools", "the parameters of 'f' cannot be enforced")]
    error = from_upstream("FAILED_PRECONDITION", "CAPABILITY_UNSUPPORTED", "", naming=naming, violations=found)
    assert (error.param, error.code) == ("tools", "unsupported_parameter")
    error = from_upstream("INVALID_ARGUMENT", "INVALID_FIELD", "", naming=naming, violations=found)
    assert (error.param, error.code) == ("tools", "invalid_value")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["text", "function", "tool", "assistant", "f", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "tool_calls", "tool_call_id", "id", "function", "name", "arguments",
                 "parameters", "allowed_tools", "mode", "tools", "refusal"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)  # fmt: skip


@given(st.lists(values, max_size=3), values, values)
def test_no_messages_and_tools_raise_anything_but_a_refusal(messages: list[Any], tools: Any, choice: Any) -> None:
    try:
        call = chat(*messages, tools=tools, tool_choice=choice)
    except ApiError as error:
        assert error.http_status == 400  # noqa: PT017 - either a request or a refusal
        json.loads(error.document())
    else:
        assert len(call.request.chat.messages) == max(len(messages), 1)
