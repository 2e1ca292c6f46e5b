"""Chat completions over the wire: tools, reasoning, constraints and timing, by hand and by the official package."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import openai
import pytest
from pydantic import BaseModel

from gateway.openai import documents
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen
from tests.support.fake_service import Fail, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import RawClient, chat_body, read_events, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def piece(index: int, fragment: str = "", call_id: str = "", name: str = "", choice: int = 0) -> gen.GenerateResponse:
    said = chat_pb2.ToolCallDelta(index=index, id=call_id, function_name=name, arguments_fragment=fragment)
    return gen.GenerateResponse(delta=gen.ChoiceDelta(index=choice, tool_call=said))


def reasoning(text: str) -> gen.GenerateResponse:
    return gen.GenerateResponse(delta=gen.ChoiceDelta(reasoning_text=text))


TWO_CALLS = (
    started(),
    reasoning("Two "),
    reasoning("cities."),
    piece(0, call_id="c1", name="weather"),
    *(piece(0, fragment) for fragment in ('{"ci', 'ty": "K\u00f6', 'ln \U0001f600"', "}")),
    piece(1, '{"city": "Oslo"}', "c2", "weather"),
    finished("TOOL_CALLS"),
    completed(),
)


@asynccontextmanager
async def sdk() -> AsyncIterator[tuple[FakeService, openai.AsyncOpenAI]]:
    async with (
        fake_service() as fake,
        running_gateway(fake.address) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client,
    ):
        yield fake, client


def cities(message: Any) -> list[tuple[str, str]]:
    return [(call.id, json.loads(call.function.arguments)["city"]) for call in message.tool_calls]


@pytest.mark.report("G01")
async def test_the_sdk_puts_streamed_tool_calls_together_as_in_a_whole_answer() -> None:
    async with sdk() as (fake, client):
        for _ in range(2):
            fake.will(*TWO_CALLS)
        messages: Any = [{"role": "user", "content": "weather?"}]
        whole = await client.chat.completions.create(model="m", messages=messages, tools=[WEATHER])
        async with client.chat.completions.stream(model="m", messages=messages, tools=[WEATHER]) as stream:
            streamed = await stream.get_final_completion()
        for answer in (whole.choices[0], streamed.choices[0]):
            assert answer.finish_reason == "tool_calls"
            assert cities(answer.message) == [("c1", "K\u00f6ln \U0001f600"), ("c2", "Oslo")]
            assert not answer.message.content
        assert whole.choices[0].message.content is None
        assert whole.choices[0].message.model_dump()["reasoning_content"] == "Two cities."
        parsed = streamed.choices[0].message.tool_calls
        assert parsed is not None
        assert parsed[1].function.parsed_arguments == {"city": "Oslo"}


async def test_a_conversation_with_tools_goes_round() -> None:
    async with sdk() as (fake, client):
        fake.will(*TWO_CALLS)
        messages: list[Any] = [{"role": "user", "content": "weather?"}]
        first = await client.chat.completions.create(model="m", messages=messages, tools=[WEATHER])
        message = first.choices[0].message
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls or ()]
        await client.chat.completions.create(
            model="m", messages=messages, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
        )
        await fake.next_call()
        chat = (await fake.next_call()).request.chat
        assert [call.id for call in chat.messages[1].tool_calls] == ["c1", "c2"]
        assert chat.messages[1].reasoning_text == "Two cities."
        assert [sent.tool_call_id for sent in chat.messages[2:]] == ["c1", "c2"]
        assert chat.tool_choice.mode == chat_pb2.TOOL_CHOICE_MODE_REQUIRED


class Answer(BaseModel):
    city: str


async def test_the_parse_helper_gets_its_object() -> None:
    async with sdk() as (fake, client):
        fake.will(started(), delta('{"city":'), delta('"Oslo"}'), finished(), completed())
        messages: Any = [{"role": "user", "content": "where?"}]
        parsed = await client.chat.completions.parse(model="m", messages=messages, response_format=Answer)
        assert parsed.choices[0].message.parsed == Answer(city="Oslo")
        schema = json.loads((await fake.next_call()).request.constraint.json_schema)
        assert schema["required"] == ["city"]


async def test_two_choices_call_their_tools_apart(fake: FakeService, client: RawClient) -> None:
    fake.will(
        started(),
        piece(0, "{", "a", "weather"),
        piece(0, "[", "b", "weather", 1),
        piece(0, "}"),
        piece(0, "]", choice=1),
        finished("TOOL_CALLS"),
        finished("TOOL_CALLS", 1),
        completed(),
    )
    response = await client.post(chat_body(n=2, stream=True, tools=[WEATHER]))
    said: dict[int, str] = {0: "", 1: ""}
    for event in read_events(response.body)[:-1]:
        documents.ChatCompletionChunk.model_validate_json(event)
        for choice in json.loads(event)["choices"]:
            for entry in choice["delta"].get("tool_calls", ()):
                said[choice["index"]] += entry.get("id", "") + entry["function"]["arguments"]
    assert said == {0: "a{}", 1: "b[]"}


async def test_a_whole_answer_tells_its_times_in_a_header(fake: FakeService, client: RawClient) -> None:
    response = await client.post(chat_body(service_tier="flex", user="someone"))
    documents.ChatCompletion.model_validate_json(response.body)
    assert response.headers["server-timing"] == (
        "queue;dur=10.000, prefill;dur=40.000, ttft;dur=50.000, decode;dur=50.000, total;dur=100.000"
    )
    assert int(response.headers["openai-processing-ms"]) >= 0
    assert response.json()["service_tier"] == "flex"
    request = (await fake.next_call()).request
    assert (request.priority, request.end_user) == (gen.PRIORITY_BATCH, "someone")


async def test_what_the_model_cannot_do_is_told_by_the_members_of_the_request(
    fake: FakeService, client: RawClient
) -> None:
    fake.will(
        Fail(
            code=grpc.StatusCode.FAILED_PRECONDITION,
            reason="CAPABILITY_UNSUPPORTED",
            violations=[
                ("constraint.json_object", "not supported by model 'm'"),
                ("chat.tools", "not supported by model 'm'"),
                ("output.logprobs", "not supported by model 'm'"),
                ("output.logprobs", "not supported by model 'm'"),
            ],
        )
    )
    body = chat_body(response_format={"type": "json_object"}, tools=[WEATHER], logprobs=True)
    response = await client.post(body)
    assert response.status == 400
    text = "Unsupported parameter: '{}' is not supported with this model."
    assert response.json()["error"] == {
        "message": " ".join(text.format(name) for name in ("response_format", "tools", "logprobs")),
        "type": "invalid_request_error",
        "param": "response_format",
        "code": "unsupported_parameter",
    }


@pytest.mark.parametrize(
    ("status", "message", "headers", "body"),
    [
        (401, "You didn't provide an API key.", {}, {}),
        (401, "Incorrect API key provided.", {"authorization": "Bearer k"}, {}),
        (400, "We could not parse the JSON body of your request.", {}, b"{"),
        (404, "Invalid URL (POST /v1/x)", {}, None),
        (413, "The request body is larger", {"content-length": str(10**12)}, None),
        (415, "Unsupported content type", {"content-type": "text/plain"}, {}),
    ],
)
async def test_refusals_of_the_edge_are_error_objects_too(
    fake: FakeService, client: RawClient, status: int, message: str, headers: dict[str, str], body: Any
) -> None:
    if status == 401:
        fake.will(Fail(code=grpc.StatusCode.UNAUTHENTICATED))
    path = "/v1/x" if status == 404 else "/v1/chat/completions"
    given = chat_body(**body) if isinstance(body, dict) else body or b"{}"
    response = await client.post(given, path, headers)
    assert response.status == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].startswith(message)
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert response.headers["x-should-retry"] == "false"
    assert response.headers["x-request-id"]
