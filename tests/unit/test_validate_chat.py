"""Bounds of a conversation with tools: both sides of each, and all violations at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.core.request import (
    Chat,
    ChatMessage,
    Constraint,
    ConstraintKind,
    GenerationRequest,
    Prompt,
    Role,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)
from service.core.validate import violations
from service.core.validate_chat import chat_violations

HELLO = ChatMessage(role=Role.USER, content="hi")
TOOL = Tool(name="get_weather", parameters='{"type":"object"}')
CALL = ToolCall(id="call_1", name="get_weather", arguments="{}")


def fields(*messages: ChatMessage, **chat: Any) -> list[str]:
    return [violation.field for violation in chat_violations(Chat(messages=messages or (HELLO,), **chat))]


def test_a_conversation_with_calls_and_results_is_right() -> None:
    assert (
        fields(
            HELLO,
            ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(CALL,), reasoning="hm"),
            ChatMessage(role=Role.TOOL, content="sunny", tool_call_id="call_1"),
            tools=(TOOL, Tool(name="x" * 64)),
            tool_choice=ToolChoice(function="get_weather"),
        )
        == []
    )


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "é", "a.b", "a\n"])
def test_a_tool_needs_a_proper_name(name: str) -> None:
    assert fields(tools=(Tool(name=name),)) == ["chat.tools[0].function.name"]
    bad_call = ToolCall(id="1", name=name, arguments="{}")
    assert fields(ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(bad_call,))) == [
        "chat.messages[0].tool_calls[0].function_name"
    ]


@pytest.mark.parametrize("parameters", ["[]", "true", "3", "{", '{"a":' * 65 + "1" + "}" * 65])
def test_parameters_are_an_object_of_bounded_depth(parameters: str) -> None:
    assert fields(tools=(Tool(name="a", parameters=parameters),)) == ["chat.tools[0].function.parameters_json_schema"]


def test_tools_have_different_names_and_bounded_numbers_and_sizes() -> None:
    assert fields(tools=(TOOL, TOOL)) == ["chat.tools[1].function.name"]
    assert fields(tools=tuple(Tool(name=f"t{n}") for n in range(128))) == []
    assert fields(tools=tuple(Tool(name=f"t{n}") for n in range(129))) == ["chat.tools"]
    assert fields(tools=(Tool(name="a", description="x" * (256 * 1024 - 1)),)) == []
    assert fields(tools=(Tool(name="a", description="x" * (256 * 1024)),)) == ["chat.tools"]


def test_a_forced_choice_needs_the_tool_that_it_names() -> None:
    assert fields(tool_choice=ToolChoice(mode=ToolChoiceMode.REQUIRED)) == ["chat.tool_choice"]
    assert fields(tools=(TOOL,), tool_choice=ToolChoice(mode=ToolChoiceMode.REQUIRED)) == []
    assert fields(tools=(TOOL,), tool_choice=ToolChoice(function="other")) == ["chat.tool_choice"]
    assert fields(tool_choice=ToolChoice(mode=ToolChoiceMode.NONE)) == []
    assert fields(tool_choice=ToolChoice(mode=ToolChoiceMode.AUTO)) == []


@pytest.mark.parametrize(
    ("message", "want"),
    [
        (ChatMessage(role=Role.TOOL, content="x"), "tool_call_id"),
        (ChatMessage(role=Role.TOOL, content="x", tool_call_id="y" * 257), "tool_call_id"),
        (ChatMessage(role=Role.USER, content="x", tool_call_id="1"), "tool_call_id"),
        (ChatMessage(role=Role.USER, content="x", tool_calls=(CALL,)), "tool_calls"),
        (ChatMessage(role=Role.ASSISTANT, content="x", tool_calls=(CALL,) * 129), "tool_calls"),
        (
            ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(ToolCall(id="", name="a", arguments=""),)),
            "tool_calls[0].id",
        ),
    ],
)
def test_calls_and_results_stand_where_they_belong(message: ChatMessage, want: str) -> None:
    assert fields(HELLO, message) == [f"chat.messages[1].{want}"]


def test_everything_is_named_at_once() -> None:
    assert fields(
        ChatMessage(role=Role.TOOL, content=""),
        tools=(Tool(name="!"), Tool(name="a", parameters="[")),
        tool_choice=ToolChoice(function="b"),
    ) == [
        "chat.messages[0].tool_call_id",
        "chat.tools[0].function.name",
        "chat.tools[1].function.parameters_json_schema",
        "chat.tool_choice",
    ]


@pytest.mark.parametrize(
    ("texts", "want"),
    [
        (["yes", "no"], []),
        ([], ["constraint.choice.choices"]),
        (["a", "a"], ["constraint.choice.choices"]),
        (["a", ""], ["constraint.choice.choices[1]"]),
        (["x" * 4096], []),
        (["x" * 4097], ["constraint.choice.choices[0]"]),
        ([str(n) for n in range(1024)], []),
        ([str(n) for n in range(1025)], ["constraint.choice.choices"]),
    ],
)
def test_choices_are_bounded(texts: list[str], want: list[str]) -> None:
    constraint = Constraint(kind=ConstraintKind.CHOICE, source=json.dumps(texts))
    request = GenerationRequest(model="m", input=Prompt(text="hi"), constraint=constraint)
    assert [violation.field for violation in violations(request)] == want


def test_an_end_user_is_bounded() -> None:
    def end_user(size: int) -> list[str]:
        request = GenerationRequest(model="m", input=Prompt(text="hi"), end_user="é" * (size // 2))
        return [violation.field for violation in violations(request)]

    assert end_user(512) == []
    assert end_user(514) == ["end_user"]


@pytest.mark.parametrize("kind", ["string", None, 3, ["object", "null"], {}, "Object", []])
def test_parameters_of_another_type_than_object_are_refused(kind: Any) -> None:
    tools = (TOOL, Tool(name="a", parameters=json.dumps({"type": kind})))
    assert fields(tools=tools) == ["chat.tools[1].function.parameters_json_schema"]


@pytest.mark.parametrize(
    "schema", [{}, {"type": "object"}, {"type": ["object"]}, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}]
)
def test_parameters_without_a_type_are_objects(schema: dict[str, Any]) -> None:
    assert fields(tools=(Tool(name="a", parameters=json.dumps(schema)),)) == []


def test_parameters_with_half_a_character_name_their_tool() -> None:
    tools = (TOOL, Tool(name="a", parameters=r'{"type":"object","description":"\ud800"}'))
    assert fields(tools=tools) == ["chat.tools[1].function.parameters_json_schema"]


def test_the_arguments_of_all_calls_are_bounded_in_all() -> None:
    def calling(sizes: list[int]) -> list[str]:
        calls = tuple(ToolCall(id="c", name="f", arguments="é" * (size // 2)) for size in sizes)
        half = len(calls) // 2
        return fields(
            ChatMessage(role=Role.ASSISTANT, content="", tool_calls=calls[:half]),
            ChatMessage(role=Role.ASSISTANT, content="", tool_calls=calls[half:]),
        )

    assert calling([512 * 1024] * 2) == []
    assert calling([512 * 1024, 512 * 1024 + 2]) == ["chat.messages"]


def test_not_every_one_of_half_a_million_faults_is_named() -> None:
    message = ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(ToolCall(id="", name="", arguments=""),) * 128)
    assert len(fields(*(message,) * 4096)) == 1000
