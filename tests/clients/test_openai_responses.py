"""OpenAI's Python package, the Responses API, over every backend."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.clients.backends import ANSWER, ANSWER_TOKENS, MODEL, TOOLS_MODEL, Ability, Served, scripted, written
from tests.clients.test_openai_tools import CALLS, THOUGHT, GetWeather

# The API's own least limit is 16, so that the answer goes on behind ANSWER.
COUNTING: Final[dict[str, Any]] = {"model": MODEL, "temperature": 0, "max_output_tokens": 16}
TOOL: Final[Any] = openai.pydantic_function_tool(GetWeather, name="get_weather")["function"] | {"type": "function"}
assert ANSWER_TOKENS < 16


async def test_a_whole_response_has_text_status_and_usage(client: openai.AsyncOpenAI, served: Served) -> None:
    response = await client.responses.create(input=served.count, **COUNTING)
    assert response.output_text.startswith(ANSWER)
    assert response.id.startswith("resp_")
    assert (response.object, response.model) == ("response", MODEL)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 16
    assert response.usage.total_tokens == response.usage.input_tokens + 16


async def test_a_stream_tells_the_same_in_numbered_events(client: openai.AsyncOpenAI, served: Served) -> None:
    whole = await client.responses.create(input=served.count, **COUNTING)
    stream = await client.responses.create(input=served.count, stream=True, **COUNTING)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.incomplete"
    assert text == last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.total_tokens == whole.usage.total_tokens


async def test_an_answer_that_ends_by_itself_is_completed(client: openai.AsyncOpenAI, served: Served) -> None:
    members = {**COUNTING, "extra_body": {"stop": [", 3"]}}
    async with client.responses.stream(input=served.count, **members) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert (final.output_text, final.status) == (" 1, 2", "completed")


async def test_one_in_the_background_is_polled_streamed_and_stopped(client: openai.AsyncOpenAI, served: Served) -> None:
    whole = await client.responses.create(input=served.count, **COUNTING)
    response = await client.responses.create(input=served.count, background=True, store=True, **COUNTING)
    while response.status in {"queued", "in_progress"}:
        await asyncio.sleep(0.02)
        response = await client.responses.retrieve(response.id)
    assert (response.status, response.output_text) == (whole.status, whole.output_text)
    assert await client.responses.cancel(response.id) == response
    events = [event async for event in await client.responses.retrieve(response.id, stream=True)]
    rest = [event async for event in await client.responses.retrieve(response.id, stream=True, starting_after=5)]
    assert rest == events[6:]
    members = {**COUNTING, "max_output_tokens": 2000, "extra_body": {"ignore_eos": True}}
    endless = await client.responses.create(input=served.endless, background=True, **members)
    assert (await client.responses.cancel(endless.id)).status == "cancelled"


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")

    is_large: bool


async def test_parse_returns_the_caller_s_own_type(client: openai.AsyncOpenAI, served: Served) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "temperature": 0,
        "max_output_tokens": 40,
        "text_format": City,
        "input": [
            {"role": "user", "content": "Describe Rome."},
            {"role": "assistant", "content": '{"is_large": true}'},
            {"role": "user", "content": "Describe Paris."},
        ],
    }
    if not served.can(Ability.CONSTRAINT):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.parse(**asked)
        assert (refused.value.param or "").startswith("text.format")
        return
    response = await client.responses.parse(**asked)
    assert isinstance(response.output_parsed, City)
    async with client.responses.stream(**asked) as stream:
        assert (await stream.get_final_response()).output_parsed == response.output_parsed


async def test_calls_and_reasoning_are_items_of_their_own(simulated_client: openai.AsyncOpenAI) -> None:
    client = simulated_client
    asked: dict[str, Any] = {"model": TOOLS_MODEL, "tools": [TOOL], "max_output_tokens": 1000}
    asked["input"] = written(f"<think>{THOUGHT}</think>I look.\n{CALLS}")
    whole = await client.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    async with client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    for response in (whole, final):
        thought, message, *calls = response.output
        assert thought.type == "reasoning"
        assert thought.content is not None
        assert thought.content[0].text.strip() == THOUGHT
        assert message.type == "message"
        assert response.output_text.strip() == "I look."
        arguments = [json.loads(call.arguments) for call in calls if call.type == "function_call"]
        assert arguments == [{"city": "Zürich"}, {"city": "Rome"}]
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert {event.output_index for event in deltas} == {2, 3}
    assert len(deltas) > 4
    # The whole turn goes back as it came, as the API's guides do it.
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
        for call in whole.output
        if call.type == "function_call"
    ]
    turn = [item.to_dict() for item in whole.output]
    again = await client.responses.create(
        **{**asked, "input": [{"role": "user", "content": asked["input"]}, *turn, *results]}
    )
    assert again.status == "completed" or again.incomplete_details is not None


async def test_a_call_that_is_forced_fits_its_schema(client: openai.AsyncOpenAI, served: Served) -> None:
    asked: dict[str, Any] = {"model": TOOLS_MODEL, "tools": [TOOL], "tool_choice": "required", "temperature": 0}
    asked |= {"input": "What is the weather in Rome?", "max_output_tokens": 200, "parallel_tool_calls": False}
    if not served.can(Ability.CONSTRAINT):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(**asked)
        assert (refused.value.param or "").startswith("tool_choice")
        return
    response = await client.responses.parse(**{**asked, "tools": [openai.pydantic_function_tool(GetWeather)]})
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert isinstance(call.parsed_arguments, GetWeather)


async def test_errors_come_as_the_sdk_s_own_classes(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.create(model="no-such-model", input="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as small:
        await client.responses.create(model=MODEL, input="x", max_output_tokens=1)
    assert (small.value.param, small.value.code) == ("max_output_tokens", "integer_below_min_value")
    with pytest.raises(openai.BadRequestError) as stored:
        await client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    assert (stored.value.param, stored.value.code) == ("previous_response_id", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_1")


async def test_a_failure_within_a_stream_is_raised_behind_the_text(simulated_client: openai.AsyncOpenAI) -> None:
    prompt = scripted("a", "b", "c", fault="error", fault_after=2)
    stream = await simulated_client.responses.create(model=MODEL, input=prompt, stream=True)
    kinds, text = [], ""
    with pytest.raises(openai.APIError, match="The engine failed"):
        async for event in stream:
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == "ab"
    assert "response.completed" not in kinds
