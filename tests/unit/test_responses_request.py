"""What a request to the Responses API means, what is refused, and by which name."""

import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from gateway.openai.errors import from_upstream
from gateway.openai.responses.call import ResponsesCall, parse
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen


def call(given: Any = "hi", **members: Any) -> ResponsesCall:
    return parse(json.dumps({"model": "m", "input": given, **members}).encode())


def messages(given: Any, **members: Any) -> list[dict[str, Any]]:
    """Return the messages of the contract: role, joined text, and what else is set."""
    found = []
    for message in call(given, **members).request.chat.messages:
        shown = MessageToDict(message, preserving_proto_field_name=True)
        shown["role"] = shown["role"].removeprefix("ROLE_").lower()
        shown["content"] = "".join(part["text"] for part in shown.get("content", []))
        found.append(shown)
    return found


def test_a_text_is_the_user_s_message_and_instructions_come_before_it() -> None:
    assert messages("hi") == [{"role": "user", "content": "hi"}]
    assert messages("hi", instructions="Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
    ]


def test_messages_are_taken_in_the_short_form_and_with_parts() -> None:
    given = [
        {"role": "developer", "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {
            "type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "phase": "final_answer",
            "content": [
                {"type": "output_text", "text": "c", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "d"},
            ],
        },
        {"type": None, "role": "system", "content": "e"},
    ]  # fmt: skip
    assert messages(given) == [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "cd"},
        {"role": "system", "content": "e"},
    ]


def test_the_items_of_one_turn_are_one_message() -> None:
    given = [
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "Let me look."},
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "sun"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "assistant", "content": "Both."},
        {"role": "assistant", "content": "Truly."},
    ]
    assert messages(given) == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant", "content": "Let me look.", "reasoning_text": "hm",
            "tool_calls": [
                {"id": "a", "function_name": "f", "arguments_json": "{}"},
                {"id": "b", "function_name": "g", "arguments_json": "{}"},
            ],
        },
        {"role": "tool", "content": "sun", "tool_call_id": "a"},
        {"role": "tool", "content": "rain", "tool_call_id": "b"},
        {"role": "assistant", "content": "Both."},
        {"role": "assistant", "content": "Truly."},
    ]  # fmt: skip


def test_a_turn_ends_where_another_answer_begins() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    given = [thought, {"role": "assistant", "content": "a"}, thought, {"role": "assistant", "content": "b"}]
    assert messages(given) == [
        {"role": "assistant", "content": "a", "reasoning_text": "hm"},
        {"role": "assistant", "content": "b", "reasoning_text": "hm"},
    ]


def test_reasoning_in_pieces_is_one_turn_s_reasoning() -> None:
    pieces = [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]} for text in "abc"]
    call_ = {"type": "function_call", "call_id": "x", "name": "f", "arguments": ""}
    (turn, user) = messages([*pieces, call_, pieces[0], {"role": "user", "content": "d"}])
    assert turn["reasoning_text"] == "abca"
    assert user["content"] == "d"


def test_reasoning_without_a_text_says_nothing() -> None:
    assert messages([{"type": "reasoning", "id": "r", "summary": []}, {"role": "user", "content": "a"}]) == [
        {"role": "user", "content": "a"}
    ]


TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
OTHER = {"type": "function", "name": "g", "parameters": None, "strict": None}


def test_tools_and_the_choice_among_them_reach_the_service() -> None:
    made = call(tools=[TOOL, OTHER], tool_choice="required", parallel_tool_calls=False)
    chat = made.request.chat
    assert [tool.function.name for tool in chat.tools] == ["f", "g"]
    assert chat.tools[0].function == chat_pb2.FunctionTool(
        name="f", description="d", parameters_json_schema='{"type":"object"}', strict=True
    )
    assert chat.tool_choice.mode == chat_pb2.TOOL_CHOICE_MODE_REQUIRED
    assert chat.parallel_tool_calls is False
    named = call(tools=[TOOL, OTHER], tool_choice={"type": "function", "name": "g"})
    assert named.request.chat.tool_choice.function_name == "g"
    assert not call(tools=[TOOL]).request.chat.HasField("tool_choice")


def test_allowed_tools_are_the_only_ones_the_model_sees() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    made = call(tools=[TOOL, OTHER], tool_choice=choice)
    assert [tool.function.name for tool in made.request.chat.tools] == ["g"]
    assert made.request.chat.tool_choice.mode == chat_pb2.TOOL_CHOICE_MODE_AUTO
    assert made.naming.json_name("chat.tools[0].function.parameters_json_schema") == "tools[1].parameters"
    assert json.loads(f"{{{made.echo}}}")["tool_choice"] == choice


def test_limits_formats_and_reasoning_reach_the_service() -> None:
    schema = {"type": "object", "properties": {"ü": {"type": "string"}}}
    made = call(
        max_output_tokens=16, temperature=0, top_p=0.5, top_k=3, seed=1, service_tier="flex",
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"}, safety_identifier="s", user="u",
        chat_template_kwargs={"enable_thinking": False},
    )  # fmt: skip
    assert made.request.sampling.max_output_tokens == 16
    assert made.request.sampling.top_k == 3
    assert json.loads(made.request.constraint.json_schema) == schema
    assert made.request.chat.reasoning_effort == chat_pb2.REASONING_EFFORT_LOW
    assert dict(made.request.chat.template_args) == {"enable_thinking": False}
    assert made.request.priority == gen.PRIORITY_BATCH
    assert made.request.end_user == "s"
    echo = json.loads(f"{{{made.echo}}}")
    assert made.echo.isascii()
    assert echo["text"]["format"]["schema"] == schema
    assert (echo["service_tier"], echo["max_output_tokens"], echo["user"]) == ("flex", 16, "u")
    assert call(text={"format": {"type": "json_object"}}).request.constraint.HasField("json_object")
    assert not call(text={"format": {"type": "text"}}).request.HasField("constraint")


@pytest.mark.parametrize(
    ("members", "tops"),
    [
        ({}, None),
        ({"include": ["reasoning.encrypted_content"]}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 5}, 5),
        ({"top_logprobs": 5}, 5),
        ({"top_logprobs": 0}, None),
    ],
)
def test_log_probs_are_asked_for_by_include_or_by_a_number(members: dict[str, Any], tops: int | None) -> None:
    output = call(**members).request.output
    assert output.logprobs is (tops is not None)
    assert (output.top_logprobs if output.HasField("top_logprobs") else None) == tops


def test_what_changes_nothing_is_accepted_and_null_is_nothing() -> None:
    everything = dict.fromkeys(
        ["instructions", "max_output_tokens", "include", "tools", "tool_choice", "text", "reasoning", "stream",
         "stream_options", "metadata", "user", "store", "truncation", "previous_response_id", "conversation",
         "background", "prompt", "max_tool_calls", "top_logprobs", "temperature", "top_p", "parallel_tool_calls"]
    )  # fmt: skip
    assert call(**everything).request == call().request
    hints = {
        "store": True, "truncation": "disabled", "background": False, "max_tool_calls": 3, "prompt_cache_key": "k",
        "prompt_cache_retention": "24h", "metadata": {"a": "b"}, "n": 1, "a_member_of_tomorrow": 1,
    }  # fmt: skip
    assert call(**hints).request == call().request


def test_paths_of_the_contract_are_told_as_paths_of_the_request() -> None:
    naming = call(
        [
            {"role": "user", "content": "a"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "b"}]},
            {"role": "assistant", "content": "c"},
            {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "d", "output": "e"},
        ],
        instructions="z",
        tools=[TOOL],
        max_output_tokens=20,
        text={"format": {"type": "json_schema", "name": "n", "schema": {}}},
    ).naming
    told = {
        "chat.messages[0]": "instructions",
        "chat.messages[1].content[0].text": "input[0].content",
        "chat.messages[2].reasoning_text": "input[1]",
        "chat.messages[2].content": "input[2].content",
        "chat.messages[2].tool_calls[0].function_name": "input[3].name",
        "chat.messages[2].tool_calls[0].id": "input[3].call_id",
        "chat.messages[2].tool_calls": "input[1]",
        "chat.messages[3].tool_call_id": "input[4].call_id",
        "chat.messages": "input",
        "chat.tools[0].function.name": "tools[0].name",
        "chat.tools": "tools",
        "chat.tool_choice": "tool_choice",
        "sampling.max_output_tokens": "max_output_tokens",
        "sampling.top_k": "top_k",
        "constraint.json_schema": "text.format.schema",
        "output.top_logprobs": "top_logprobs",
        "output.logprobs": "include",
    }
    assert {path: naming.json_name(path) for path in told} == told


def test_a_forced_call_that_cannot_be_enforced_is_a_matter_of_the_tools() -> None:
    naming = call(tools=[TOOL], tool_choice="required").naming
    for found in [("chat.tools", "not supported"), ("chat.tools", "no schema to be enforced: too deep")]:
        error = from_upstream("FAILED_PRECONDITION", "CAPABILITY_UNSUPPORTED", "", naming=naming, violations=[found])
        assert (error.param, error.code) == ("tools", "unsupported_parameter")
    error = from_upstream(
        "INVALID_ARGUMENT", "INVALID_FIELD", "", naming=naming, violations=[("chat.tools", "too big")]
    )
    assert (error.param, error.code) == ("tools", "invalid_value")
