"""OpenAI's Python package, tools and reasoning: what a model writes as text, a client gets as calls and thoughts."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Final

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.clients.backends import TOOLS_MODEL, Ability, Served, written

THOUGHT: Final = "The user wants the weather — in Zürich."
CALLS: Final = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
ASKED: Final[dict[str, Any]] = {"model": TOOLS_MODEL, "temperature": 0, "seed": 7, "max_tokens": 1000}


class Place(Enum):
    ZURICH = "Zürich"
    ROME = "Rome"


class GetWeather(BaseModel):
    """The weather of a city."""

    # Without it the object may have any member more, and a small model fills it for ever.
    model_config = ConfigDict(extra="forbid")

    city: Place


TOOLS: Final = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
NAMED: Final[Any] = {"type": "function", "function": {"name": "get_weather"}}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


async def test_calls_and_thoughts_are_told_apart_from_text(simulated_client: openai.AsyncOpenAI) -> None:
    create = simulated_client.chat.completions.create
    asked = {**ASKED, "messages": user(written(f"<think>{THOUGHT}</think>I look.\n{CALLS}")), "tools": TOOLS}
    whole = await create(**asked)
    (choice,) = whole.choices
    assert choice.finish_reason == "tool_calls"
    assert calls_of(choice.message) == [("get_weather", {"city": "Zürich"}), ("get_weather", {"city": "Rome"})]
    assert (choice.message.content or "").strip() == "I look."
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"].strip() == THOUGHT
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens
    ids = {call.id for call in choice.message.tool_calls or []}
    assert len(ids) == 2

    stream = await create(stream=True, **asked)
    content = thoughts = ""
    fragments: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    chunks = [chunk.choices[0] async for chunk in stream]
    for delta in (chunk.delta for chunk in chunks):
        content += delta.content or ""
        thoughts += (delta.model_extra or {}).get("reasoning_content") or ""
        for call in delta.tool_calls or []:
            assert call.function is not None
            if call.index not in names:
                assert call.id
                names[call.index] = call.function.name or ""
            else:
                assert (call.id, call.function.name) == (None, None), "told once"
            fragments.setdefault(call.index, []).append(call.function.arguments or "")
    assert (content, thoughts) == (choice.message.content, choice.message.model_extra["reasoning_content"])
    assert names == {0: "get_weather", 1: "get_weather"}
    assert ["".join(parts) for parts in fragments.values()] == [
        call.function.arguments for call in choice.message.tool_calls or [] if call.type == "function"
    ]
    assert all(len([part for part in parts if part]) > 1 for parts in fragments.values()), "as the model writes them"
    assert chunks[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_call_that_is_forced_fits_its_schema(client: openai.AsyncOpenAI, served: Served, choice: Any) -> None:
    asked = {**ASKED, "messages": user("What is the weather in Rome?"), "tools": TOOLS, "parallel_tool_calls": False}
    if not served.can(Ability.CONSTRAINT):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(tool_choice=choice, **asked)
        assert (refused.value.param or "").startswith("tool_choice")
        return
    whole = await client.chat.completions.create(tool_choice=choice, **asked)
    ((name, arguments),) = calls_of(whole.choices[0].message)
    assert name == "get_weather"
    assert GetWeather.model_validate(arguments)
    assert whole.choices[0].finish_reason == "tool_calls"
    chunks = [
        c.choices[0] async for c in await client.chat.completions.create(tool_choice=choice, stream=True, **asked)
    ]
    calls = [call.function for chunk in chunks for call in chunk.delta.tool_calls or [] if call.function]
    assert json.loads("".join(call.arguments or "" for call in calls)) == arguments
    assert chunks[-1].finish_reason == "tool_calls"


async def test_the_helpers_parse_the_arguments_into_the_caller_s_type(
    client: openai.AsyncOpenAI, served: Served
) -> None:
    if served.can(Ability.SCRIPT):
        asked = {**ASKED, "messages": user(written(CALLS)), "tools": TOOLS}
        expected = [Place.ZURICH, Place.ROME]
    else:
        asked = {**ASKED, "messages": user("What is the weather in Rome?"), "tools": TOOLS, "tool_choice": "required"}
        asked |= {"parallel_tool_calls": False}
        expected = []
    parsed = await client.chat.completions.parse(**asked)
    found = [call.function.parsed_arguments for call in parsed.choices[0].message.tool_calls or []]
    assert found
    assert all(isinstance(call, GetWeather) for call in found)
    assert not expected or [call.city for call in found] == expected  # type: ignore[union-attr]
    async with client.chat.completions.stream(**asked) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in done] == found
    assert [event.index for event in done] == list(range(len(found)))
    assert len([event for event in events if event.type == "tool_calls.function.arguments.delta"]) > len(found)
    assert calls_of(final.choices[0].message) == calls_of(parsed.choices[0].message)


async def test_a_result_is_taken_back_into_the_conversation(client: openai.AsyncOpenAI, served: Served) -> None:
    scripted = served.can(Ability.SCRIPT)
    messages = user(written(CALLS) if scripted else "What is the weather in Rome?")
    force = {} if scripted else {"tool_choice": "required", "parallel_tool_calls": False}
    turn = (await client.chat.completions.create(**ASKED, messages=messages, tools=TOOLS, **force)).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 24 degrees."} for call in turn.tool_calls or []
    ]
    conversation: Any = [*messages, turn, *results]
    answer = await client.chat.completions.create(**{**ASKED, "max_tokens": 8}, messages=conversation)
    assert answer.choices[0].finish_reason in {"stop", "length", "tool_calls"}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 0


async def test_without_tools_a_call_is_text(simulated_client: openai.AsyncOpenAI) -> None:
    text = written(CALLS)
    for members in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = await simulated_client.chat.completions.create(**ASKED, messages=user(text), **members)
        assert not answer.choices[0].message.tool_calls
        assert answer.choices[0].message.content == CALLS
        assert answer.choices[0].finish_reason == "stop"


async def test_a_choice_that_names_no_tool_is_refused(client: openai.AsyncOpenAI) -> None:
    unknown: Any = {"type": "function", "function": {"name": "no_such_tool"}}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**ASKED, messages=user("x"), tools=TOOLS, tool_choice=unknown)
    assert (refused.value.param or "").startswith("tool_choice")
