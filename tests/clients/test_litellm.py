"""litellm as a client (`openai/<model>`): answers, streams, structured output, tools, errors; over every backend."""

from __future__ import annotations

import json
from typing import Any

import litellm
import openai
import pytest
from pydantic import BaseModel

from tests.clients.backends import ANSWER, ANSWER_TOKENS, MODEL, TOOLS_MODEL, Ability, Served, scripted, written

litellm.telemetry = False
litellm.suppress_debug_info = True


def asked(served: Served, **members: Any) -> dict[str, Any]:
    return {
        "model": f"openai/{MODEL}",
        "api_base": served.url,
        "api_key": "k",
        "messages": served.count,
        "temperature": 0,
        "seed": 7,
        "max_tokens": ANSWER_TOKENS,
        "num_retries": 0,
        "max_retries": 0,
        "timeout": 40,
        **members,
    }


async def test_an_answer_has_text_reason_and_usage(served: Served) -> None:
    for answer in (litellm.completion(**asked(served)), await litellm.acompletion(**asked(served))):
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "length")
        assert answer.usage.completion_tokens == ANSWER_TOKENS
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + ANSWER_TOKENS


async def test_a_stream_is_built_to_the_whole_answer(served: Served) -> None:
    with_usage = asked(served, stream=True, stream_options={"include_usage": True})
    chunks = list(litellm.completion(**with_usage))
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1
    built = litellm.stream_chunk_builder(chunks)
    assert built is not None
    assert (built.choices[0].message.content, built.choices[0].finish_reason) == (ANSWER, "length")
    assert built.usage.completion_tokens == ANSWER_TOKENS
    text = ""
    async for chunk in await litellm.acompletion(**asked(served, stream=True)):
        text += chunk.choices[0].delta.content or ""
    assert text == ANSWER


async def test_a_text_is_continued(served: Served) -> None:
    request = asked(served, prompt=served.prompt)
    del request["messages"]
    # Its own name for the provider of legacy completions.
    request["model"] = f"text-completion-openai/{MODEL}"
    answer = await litellm.atext_completion(**request)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (ANSWER, "length")


class City(BaseModel):
    is_large: bool


async def test_structured_output_fits_the_type(served: Served) -> None:
    messages = [
        {"role": "user", "content": "Describe Rome."},
        {"role": "assistant", "content": '{"is_large": true}'},
        {"role": "user", "content": "Describe Paris."},
    ]
    request = asked(served, messages=messages, max_tokens=40, response_format=City)
    if not served.can(Ability.CONSTRAINT):
        with pytest.raises(litellm.BadRequestError, match="response_format"):
            await litellm.acompletion(**request)
        return
    answer = await litellm.acompletion(**request)
    assert City.model_validate_json(answer.choices[0].message.content)


async def test_errors_have_classes_of_their_own(served: Served) -> None:
    with pytest.raises(litellm.NotFoundError):
        await litellm.acompletion(**asked(served, model="openai/no-such-model"))
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        await litellm.acompletion(**asked(served, temperature=3))
    with pytest.raises(litellm.ContextWindowExceededError):
        await litellm.acompletion(**asked(served, messages=[{"role": "user", "content": "word " * 9000}]))


async def test_a_failure_within_a_stream_is_raised_behind_the_text(simulated: Served) -> None:
    prompt = scripted("a", "b", "c", fault="error", fault_after=2)
    request = asked(simulated, messages=[{"role": "user", "content": prompt}], stream=True)
    text = ""
    with pytest.raises(openai.APIError, match="The engine failed"):  # the root of its own classes
        async for chunk in await litellm.acompletion(**request):
            text += chunk.choices[0].delta.content or ""
    assert text == "ab"


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Zürich", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


async def test_tools_are_called_streamed_and_whole(served: Served) -> None:
    request = asked(served, model=f"openai/{TOOLS_MODEL}", tools=[WEATHER], max_tokens=300)
    if served.can(Ability.SCRIPT):
        call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich"}}</tool_call>'
        request["messages"] = [{"role": "user", "content": written(f"<think>Weather.</think>{call}")}]
    else:
        request |= {"tool_choice": "required", "parallel_tool_calls": False}
        request["messages"] = [{"role": "user", "content": "What is the weather in Rome?"}]
    answer = await litellm.acompletion(**request)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    ((name, arguments),) = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert name == "get_weather"
    assert json.loads(arguments)["city"] in {"Zürich", "Rome"}
    if served.can(Ability.SCRIPT):
        assert choice.message.reasoning_content.strip() == "Weather."
    built = litellm.stream_chunk_builder([chunk async for chunk in await litellm.acompletion(stream=True, **request)])
    assert built is not None
    (again,) = built.choices
    assert again.finish_reason == "tool_calls"
    assert json.loads(again.message.tool_calls[0].function.arguments) == json.loads(arguments)
    assert getattr(again.message, "reasoning_content", None) == getattr(choice.message, "reasoning_content", None)


async def test_the_responses_api_says_what_chat_says(served: Served) -> None:
    request = {"model": f"openai/{MODEL}", "api_base": served.url, "api_key": "k", "temperature": 0}
    request |= {"input": served.count, "max_output_tokens": 16, "timeout": 40}
    response = await litellm.aresponses(**request)
    text = "".join(part.text for item in response.output for part in item.content)
    assert text.startswith(ANSWER)
    events = [event async for event in await litellm.aresponses(stream=True, **request)]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
