"""The Responses API on a real socket: its bytes, and the official Python package as its caller."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import openai
import pytest
from openai.types.responses import ResponseInputParam, ToolParam
from pydantic import BaseModel

from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen
from tests.support.fake_service import HANG, Fail, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import RawClient, read_events, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/responses"
TOOL: ToolParam = {
    "type": "function", "name": "weather", "description": "d", "strict": True,
    "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip


def body(**members: Any) -> dict[str, Any]:
    return {"model": "fake", "input": "hi", **members}


def thought(text: str) -> gen.GenerateResponse:
    return gen.GenerateResponse(delta=gen.ChoiceDelta(reasoning_text=text))


def piece(fragment: str, index: int = 0, **first: str) -> gen.GenerateResponse:
    call = chat_pb2.ToolCallDelta(index=index, arguments_fragment=fragment, **first)  # type: ignore[arg-type]
    return gen.GenerateResponse(delta=gen.ChoiceDelta(tool_call=call))


@asynccontextmanager
async def sdk(**settings: float) -> AsyncIterator[tuple[FakeService, openai.AsyncOpenAI]]:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client,
    ):
        yield fake, client


async def test_a_whole_response_its_request_id_and_what_went_to_the_service() -> None:
    async with sdk() as (fake, client):
        response = await client.responses.create(
            model="m", input="hi", instructions="Be kind.", max_output_tokens=50, metadata={"a": "b"}, store=True
        )
        assert response.output_text == "Hello world"
        assert (response.id, response.status, response.metadata) == ("resp_gen-1", "completed", {"a": "b"})
        assert response.instructions == "Be kind."
        assert response.usage is not None
        assert response.usage.total_tokens == 5
        call = await fake.next_call()
        assert call.header("x-request-id") == response._request_id
        assert call.request.sampling.max_output_tokens == 50
        assert [message.content[0].text for message in call.request.chat.messages] == ["Be kind.", "hi"]


async def test_events_of_a_stream_have_names_numbers_and_the_text() -> None:
    async with sdk() as (_, client):
        events = [event async for event in await client.responses.create(model="m", input="hi", stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "Hello world"
        assert events[0].type == "response.created"
        assert events[-1].type == "response.completed"


async def test_the_stream_helper_accumulates_reasoning_text_and_calls() -> None:
    async with sdk(heartbeat_s=0.05) as (fake, client):
        fake.will(
            started(), thought("h"), thought("m"), delta("Let me look."),
            piece('{"city":', id="call_1", function_name="weather"), piece('"Ulm"}'),
            piece('{"city":"Bern"}', 1, id="call_2", function_name="weather"),
            finished("TOOL_CALLS"), completed(),
        )  # fmt: skip
        async with client.responses.stream(model="m", input="hi", tools=[TOOL]) as stream:
            deltas = [
                event.snapshot async for event in stream if event.type == "response.function_call_arguments.delta"
            ]
            final = await stream.get_final_response()
        assert deltas == ['{"city":', '{"city":"Ulm"}', '{"city":"Bern"}']
        reasoning, message, *calls = final.output
        assert reasoning.type == "reasoning"
        assert reasoning.content is not None
        assert reasoning.content[0].text == "hm"
        assert message.type == "message"
        assert final.output_text == "Let me look."
        assert [(c.call_id, c.parsed_arguments) for c in calls if c.type == "function_call"] == [
            ("call_1", {"city": "Ulm"}), ("call_2", {"city": "Bern"})
        ]  # fmt: skip


async def test_a_conversation_with_a_tool_is_sent_back_as_it_came() -> None:
    async with sdk() as (fake, client):
        fake.will(
            started(), thought("hm"), piece('{"city":"Ulm"}', id="call_1", function_name="weather"),
            finished("TOOL_CALLS"), completed(),
        )  # fmt: skip
        history: ResponseInputParam = [{"role": "user", "content": "weather?"}]
        first = await client.responses.create(model="m", input=history, tools=[TOOL])
        history += [item.to_dict() for item in first.output]  # type: ignore[misc]  # as the API's guides do
        history.append({"type": "function_call_output", "call_id": "call_1", "output": "sun"})
        await client.responses.create(model="m", input=history, tools=[TOOL])
        await fake.next_call()
        user, turn, result = (await fake.next_call()).request.chat.messages
        assert user.content[0].text == "weather?"
        assert (turn.reasoning_text, turn.tool_calls[0].id) == ("hm", "call_1")
        assert (result.role, result.tool_call_id, result.content[0].text) == (chat_pb2.ROLE_TOOL, "call_1", "sun")


async def test_an_answer_is_parsed_into_the_caller_s_own_type() -> None:
    class Point(BaseModel):
        x: int

    async with sdk() as (fake, client):
        script = (started(), delta('{"x":'), delta("4}"), finished(), completed())
        fake.will(*script)
        fake.will(*script)
        parsed = await client.responses.parse(model="m", input="hi", text_format=Point)
        assert parsed.output_parsed == Point(x=4)
        async with client.responses.stream(model="m", input="hi", text_format=Point) as stream:
            assert (await stream.get_final_response()).output_parsed == Point(x=4)
        schema = json.loads((await fake.next_call()).request.constraint.json_schema)
        assert schema["properties"]["x"]["type"] == "integer"


async def test_log_probs_come_with_deltas_and_with_the_message() -> None:
    token = gen.TokenLogprob(
        token_id=1, logprob=-0.5, text=" a", raw_bytes=b" a", top_logprobs=[gen.TopLogprob(text=" b", logprob=-0.25)]
    )
    async with sdk() as (fake, client):
        fake.will(started(), delta(" a", logprobs=[token]), finished(), completed())
        async with client.responses.stream(
            model="m", input="hi", include=["message.output_text.logprobs"], top_logprobs=1
        ) as stream:
            (grown,) = [event.logprobs async for event in stream if event.type == "response.output_text.delta"]
            message = (await stream.get_final_response()).output[0]
        assert message.type == "message"
        told = message.content[0]
        assert told.type == "output_text"
        assert told.logprobs is not None
        assert [(t.token, t.logprob, t.top_logprobs[0].logprob) for t in told.logprobs] == [(" a", -0.5, -0.25)]
        assert [(t.token, t.logprob) for t in grown] == [(" a", -0.5)]


async def test_running_out_of_tokens_is_an_incomplete_response() -> None:
    async with sdk() as (fake, client):
        fake.will(started(), delta("a"), finished("LENGTH"), completed())
        response = await client.responses.create(model="m", input="hi", max_output_tokens=16)
        assert (response.status, response.output_text) == ("incomplete", "a")
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"


async def test_errors_before_the_stream_arrive_as_the_sdk_s_own_classes() -> None:
    async with sdk() as (fake, client):
        with pytest.raises(openai.BadRequestError) as bad:
            await client.responses.create(model="m", input="hi", previous_response_id="resp_1")
        assert (bad.value.param, bad.value.code) == ("previous_response_id", "unsupported_parameter")
        fake.will(Fail(code=grpc.StatusCode.NOT_FOUND, reason="MODEL_NOT_FOUND"))
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="nope", input="hi", stream=True)
        fake.will(
            Fail(
                code=grpc.StatusCode.INVALID_ARGUMENT,
                reason="INVALID_FIELD",
                violations=[("chat.messages[1].tool_calls[0].function_name", "is odd")],
            )
        )
        with pytest.raises(openai.BadRequestError) as odd:
            await client.responses.create(
                model="m",
                input=[{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}],
                instructions="x",
            )
        assert odd.value.param == "input[0].name"
        fake.will(Fail(code=grpc.StatusCode.INVALID_ARGUMENT, reason="CONTEXT_LENGTH_EXCEEDED", message="Too long."))
        with pytest.raises(openai.BadRequestError) as long:
            await client.responses.create(model="m", input="hi")
        assert (long.value.param, long.value.code) == ("input", "context_length_exceeded")


async def test_a_failure_on_the_way_raises_in_the_sdk_and_its_helper() -> None:
    async with sdk() as (fake, client):
        script = (started(), delta("a"), Fail(code=grpc.StatusCode.INTERNAL, reason="BACKEND_ERROR", message="Lost."))
        fake.will(*script)
        fake.will(*script)
        seen = []
        with pytest.raises(openai.APIError, match="Lost") as lost:
            async for event in await client.responses.create(model="m", input="hi", stream=True):
                seen.append(event.type)  # noqa: PERF401 - it raises half way
        assert seen[-1] == "response.output_text.delta"
        assert lost.value.code == "backend_error"
        with pytest.raises(openai.APIError, match="Lost"):
            async with client.responses.stream(model="m", input="hi") as stream:
                await stream.get_final_response()


async def test_leaving_a_stream_early_cancels_the_generation() -> None:
    async with sdk() as (fake, client):
        fake.will(started(), delta("a"), HANG)
        async with await client.responses.create(model="m", input="hi", stream=True) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
        await (await fake.next_call()).wait_cancelled()


async def test_nothing_is_stored_and_the_sdk_is_told_so() -> None:
    async with sdk() as (_, client):
        for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError, match="stores no responses"):
                await call("resp_1")
        with pytest.raises(openai.NotFoundError, match="stores no responses"):
            await client.responses.input_items.list("resp_1")


async def test_the_synchronous_client_works_the_same() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway:

        def talk() -> tuple[str, str]:
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client:
                whole = client.responses.create(model="m", input="hi")
                with client.responses.stream(model="m", input="hi") as stream:
                    return whole.output_text, stream.get_final_response().output_text

        assert await asyncio.to_thread(talk) == ("Hello world", "Hello world")


async def test_a_stream_on_the_wire_is_named_events_with_ids_and_no_done(fake: FakeService, client: RawClient) -> None:
    fake.will(started(), delta("Hi"), finished(), completed())
    response = await client.post(body(stream=True), PATH)
    assert response.is_whole
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = response.body.decode("ascii").split("\n")
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert names == [json.loads(event)["type"] for event in read_events(response.body)]
    assert "[DONE]" not in response.body.decode()
    assert [line.removeprefix("id: ") for line in lines if line.startswith("id: ")] == [
        "1.1", "1", "2.1", "2.2", "2", "3.1", "3.2", "3", "4"
    ]  # fmt: skip


async def test_the_end_of_a_stream_waits_for_the_status_of_the_call(fake: FakeService, client: RawClient) -> None:
    fake.will(started(), delta("a"), finished(), completed(), Fail(code=grpc.StatusCode.UNAVAILABLE))
    events = [json.loads(event) for event in read_events((await client.post(body(stream=True), PATH)).body)]
    assert [event["type"] for event in events][-2:] == ["error", "response.failed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_a_failure_after_the_status_and_before_the_first_event_is_one_error_event() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, status_hold_s=0.02, heartbeat_s=0.02) as gateway,
        gateway.connect() as client,
    ):
        wait = asyncio.Event()
        fake.will(wait, Fail(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL"))
        await client.send("POST", PATH, body(stream=True))
        assert (await client.head()).status == 200
        assert await client.piece() == b": ping\n"
        wait.set()
        rest = b""
        while piece_ := await client.piece():
            rest += piece_
        (event,) = read_events(rest)
        told = json.loads(event)
        assert (told["type"], told["sequence_number"], told["code"]) == ("error", 0, "server_is_overloaded")


async def test_a_shutdown_ends_a_stream_with_an_error(fake: FakeService) -> None:
    async with running_gateway(fake.address) as gateway, gateway.connect() as client:
        fake.will(started(), delta("a"), HANG)
        await client.send("POST", PATH, body(stream=True))
        await client.head()
        while b"output_text.delta" not in await client.piece():
            pass
        gateway.server.stop()
        events = [json.loads(event) for event in read_events(await client.piece())]
        assert [event["type"] for event in events] == ["error", "response.failed"]
        assert events[0]["code"] == "draining"


async def test_the_openapi_document_describes_requests_responses_and_events(client: RawClient) -> None:
    document = (await client.get("/openapi.json")).json()
    operation = document["paths"][PATH]["post"]
    content = operation["responses"]["200"]["content"]
    data = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"][0]
    assert data["contentSchema"]["anyOf"][0]["$ref"].endswith("/ResponseStreamEvent")
    assert content["application/json"]["schema"]["$ref"].endswith("/ResponseObject")
    example = operation["requestBody"]["content"]["application/json"]["example"]
    assert (await client.post({**example, "model": "fake"}, PATH)).status == 200


async def test_every_schema_of_the_openapi_document_is_used_and_has_a_name_of_its_own(client: RawClient) -> None:
    document = (await client.get("/openapi.json")).json()
    names = set(document["components"]["schemas"])
    assert not [name for name in names if "__" in name or name.startswith("_")]
    assert {name for name in names if f'"#/components/schemas/{name}"' in json.dumps(document)} == names
