"""langchain-openai: invoke, stream, batch, structured output and errors, over every backend."""

from __future__ import annotations

from typing import Any, Final, Literal

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict

from tests.clients.backends import ANSWER, ANSWER_TOKENS, MODEL, TOOLS_MODEL, Ability, Served, written


def chat(served: Served, **options: Any) -> ChatOpenAI:
    """Return LangChain's chat model towards a backend."""
    given = {"model": MODEL, "max_tokens": ANSWER_TOKENS, "seed": 7, **options}
    return ChatOpenAI(base_url=served.url, api_key="k", temperature=0, max_retries=0, timeout=40, **given)


def counting(served: Served) -> list[Any]:
    kinds: Final = {"user": HumanMessage, "assistant": AIMessage}
    return [kinds[message["role"]](message["content"]) for message in served.count]


async def test_an_answer_has_text_reason_and_usage(served: Served) -> None:
    model = chat(served)
    for answer in (model.invoke(counting(served)), await model.ainvoke(counting(served))):
        assert isinstance(answer, AIMessage)
        assert answer.content == ANSWER
        assert answer.response_metadata["finish_reason"] == "length"
        assert answer.response_metadata["model_name"] == MODEL
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_tokens"] == ANSWER_TOKENS
        assert answer.usage_metadata["total_tokens"] == answer.usage_metadata["input_tokens"] + ANSWER_TOKENS


async def test_a_stream_adds_up_to_the_answer(served: Served) -> None:
    model = chat(served, stream_usage=True)
    chunks = [chunk async for chunk in model.astream(counting(served))]
    assert len([chunk for chunk in chunks if chunk.content]) > 1
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert isinstance(total, AIMessageChunk)
    assert total.content == ANSWER
    assert total.response_metadata["finish_reason"] == "length"
    assert total.usage_metadata is not None
    assert total.usage_metadata["output_tokens"] == ANSWER_TOKENS
    assert "".join(chunk.text for chunk in model.stream(counting(served))) == ANSWER


async def test_a_batch_is_answered_one_by_one(served: Served) -> None:
    answers = await chat(served).abatch([counting(served)] * 3)
    assert [answer.content for answer in answers] == [ANSWER] * 3


async def test_stop_and_logprobs_are_passed_on(served: Served) -> None:
    answer = await chat(served, logprobs=True).ainvoke(counting(served), stop=[", 2"])
    assert (answer.content, answer.response_metadata["finish_reason"]) == (" 1", "stop")
    tokens = answer.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens).startswith(" 1")


class City(BaseModel):
    """A city."""

    is_large: bool


async def test_structured_output_is_the_caller_s_own_type(served: Served) -> None:
    model = chat(served, max_tokens=40).with_structured_output(City, method="json_schema")
    asked = [
        HumanMessage("Describe Rome."),
        AIMessage('{"is_large": true}'),
        HumanMessage("Describe Paris."),
    ]
    if not served.can(Ability.CONSTRAINT):
        with pytest.raises(openai.BadRequestError) as refused:
            await model.ainvoke(asked)
        assert (refused.value.param or "").startswith("response_format")
        return
    assert isinstance(await model.ainvoke(asked), City)
    streamed = [part async for part in model.astream(asked)]
    assert isinstance(streamed[-1], City)


def test_the_legacy_model_continues_a_text(served: Served) -> None:
    model = OpenAI(
        base_url=served.url, api_key="k", model=MODEL, temperature=0, seed=7, max_tokens=ANSWER_TOKENS, max_retries=0
    )
    assert model.invoke(served.prompt) == ANSWER
    assert "".join(model.stream(served.prompt)) == ANSWER


async def test_errors_are_those_of_the_sdk_below(served: Served) -> None:
    with pytest.raises(openai.NotFoundError):
        await chat(served).bind(model="no-such-model").ainvoke("hi")
    # LangChain tells this one apart by its code.
    with pytest.raises(openai.BadRequestError, match="context") as long:
        await chat(served).ainvoke("word " * 9000)
    assert long.value.code == "context_length_exceeded"


class GetWeather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Zürich", "Rome"]


CALLS: Final = (
    '<tool_call>\n{"name": "GetWeather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    '<tool_call>\n{"name": "GetWeather", "arguments": {"city": "Rome"}}\n</tool_call>'
)


async def test_tools_are_called_streamed_and_whole(served: Served) -> None:
    model = chat(served, model=TOOLS_MODEL, max_tokens=200)
    scripted = served.can(Ability.SCRIPT)
    if scripted:
        bound, asked = model.bind_tools([GetWeather]), [HumanMessage(written(CALLS))]
    else:
        bound = model.bind_tools([GetWeather], tool_choice="GetWeather", parallel_tool_calls=False)
        asked = [HumanMessage("What is the weather in Rome?")]
    answer = await bound.ainvoke(asked)
    assert isinstance(answer, AIMessage)
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    assert answer.invalid_tool_calls == []
    assert [call["name"] for call in answer.tool_calls] == ["GetWeather"] * (2 if scripted else 1)
    cities = [GetWeather.model_validate(call["args"]).city for call in answer.tool_calls]
    assert not scripted or cities == ["Zürich", "Rome"]
    chunks = [chunk async for chunk in bound.astream(asked)]
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert isinstance(total, AIMessageChunk)
    assert [GetWeather.model_validate(call["args"]).city for call in total.tool_calls] == cities
    results = [ToolMessage("Sunny.", tool_call_id=call["id"]) for call in answer.tool_calls]
    after = await model.bind(max_tokens=4).ainvoke([*asked, answer, *results])
    assert isinstance(after, AIMessage)


async def test_structured_output_by_a_function_call(served: Served) -> None:
    model = chat(served, model=TOOLS_MODEL, max_tokens=200).with_structured_output(
        GetWeather, method="function_calling"
    )
    if not served.can(Ability.CONSTRAINT):
        with pytest.raises(openai.BadRequestError) as refused:
            await model.ainvoke("What is the weather in Rome?")
        assert (refused.value.param or "").startswith("tool_choice")
        return
    assert isinstance(await model.ainvoke("What is the weather in Rome?"), GetWeather)


async def test_the_responses_api_says_what_chat_says(served: Served) -> None:
    # Which knows no seed, and greedy needs none.
    model = chat(served, use_responses_api=True, max_tokens=16, seed=None)
    answer = await model.ainvoke(counting(served))
    assert answer.text.startswith(ANSWER)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 16
    text = "".join([chunk.text async for chunk in model.astream(counting(served))])
    assert text == answer.text
