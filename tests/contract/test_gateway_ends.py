"""Answers that end early: the time limit and a cancel by somebody else, as the official package reads them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseFailedEvent

from headrace import AsyncClient
from service.generation.limits import Limits
from tests.support.fake_service import HANG, FakeCall, FakeService, completed, delta, finished, started
from tests.support.gateway_harness import (
    CHAT,
    RawClient,
    RawResponse,
    RunningGateway,
    chat_body,
    read_events,
    running_gateway,
)
from tests.support.service import RunningService, eventually, running_service, script, simulated_model

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
BODIES = {
    CHAT: chat_body(),
    COMPLETIONS: {"model": "fake", "prompt": "hi"},
    RESPONSES: {"model": "fake", "input": "hi"},
}
SIM = {"model": "sim", "prompt": "hi"}
SLOW = script(token_ms=10, output_tokens=4096)
SAYS: list[ChatCompletionMessageParam] = [{"role": "user", "content": SLOW}]
SOON, SOME = {"Time-Limit-Ms": "300"}, {"Time-Limit-Ms": "5000"}
MINE = {"authorization": "Bearer k"}
TOKENS = 4000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[tuple[RunningService, RunningGateway]]:
    models = (simulated_model(max_choices=8), simulated_model("one", running=1))
    async with running_service(*models) as service, running_gateway(f"127.0.0.1:{service.port}") as gateway:
        yield service, gateway


@pytest.fixture
def service(served: tuple[RunningService, RunningGateway]) -> RunningService:
    return served[0]


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(served: tuple[RunningService, RunningGateway]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served[1].url}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def operator(service: RunningService) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{service.port}") as client:
        yield client


pytestmark = pytest.mark.asyncio(loop_scope="module")


def native(said: Any) -> Any:
    return said.model_extra["native_finish_reason"]


def limit_s(call: FakeCall) -> float:
    return call.request.time_limit.ToTimedelta().total_seconds()


def error_of(response: RawResponse) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("value", ["0", "-1", "abc", "1.5", "1e9", "", "99999999999999999999"])
@pytest.mark.parametrize("path", BODIES)
async def test_a_time_limit_that_is_no_number_of_milliseconds_is_refused_by_name(
    path: str, value: str, client: RawClient
) -> None:
    response = await client.post(BODIES[path], path, {"Time-Limit-Ms": value})
    assert (response.status, error_of(response)["param"]) == (400, "Time-Limit-Ms")
    assert "Time-Limit-Ms" in error_of(response)["message"]


@pytest.mark.parametrize("path", BODIES)
async def test_what_is_left_of_the_time_limit_reaches_the_service(
    path: str, fake: FakeService, client: RawClient
) -> None:
    assert (await client.post(BODIES[path], path, SOME)).status == 200
    assert 3 < limit_s(await fake.next_call()) < 5
    assert (await client.post(BODIES[path], path)).status == 200
    assert not (await fake.next_call()).request.HasField("time_limit")


async def test_a_chat_ends_at_its_time_limit_with_what_there_is_and_says_why(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="sim", messages=SAYS, max_tokens=TOKENS, n=2, extra_headers=SOON)
    for choice in answer.choices:
        assert choice.message.content
        assert (choice.finish_reason, native(choice)) == ("length", "time_limit")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens < 2 * TOKENS

    stream = await sdk.chat.completions.create(
        model="sim", messages=SAYS, max_tokens=TOKENS, stream=True, extra_headers=SOON
    )
    chunks = [chunk async for chunk in stream]
    assert any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert native(chunks[-1].choices[0]) == "time_limit"
    assert all("native_finish_reason" not in (chunk.choices[0].model_extra or {}) for chunk in chunks[:-1])


async def test_an_answer_that_ends_by_itself_has_no_second_reason(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="sim", messages=SAYS, max_tokens=2, extra_headers=SOON)
    assert answer.choices[0].finish_reason == "length"
    assert "native_finish_reason" not in (answer.choices[0].model_extra or {})


async def test_a_response_ends_at_its_time_limit_as_incomplete_and_says_why(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.responses.create(model="sim", input=SLOW, max_output_tokens=TOKENS, extra_headers=SOON)
    async with sdk.responses.stream(model="sim", input=SLOW, max_output_tokens=TOKENS, extra_headers=SOON) as stream:
        events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    for response in (whole, events[-1].response):
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert native(response) == "time_limit"
        assert response.output_text
        assert response.usage is not None
        assert 0 < response.usage.output_tokens < TOKENS


async def test_every_prompt_ends_at_the_time_limit(sdk: openai.AsyncOpenAI) -> None:
    prompts = [script(tokens=["a"], output_tokens=1), SLOW, SLOW]
    answer = await sdk.completions.create(model="sim", prompt=prompts, max_tokens=TOKENS, extra_headers=SOON)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("a", "stop")
    for choice in answer.choices[1:]:
        assert choice.text
        assert (choice.finish_reason, native(choice)) == ("length", "time_limit")


async def test_a_prompt_that_begins_late_gets_what_is_left(fake: FakeService, client: RawClient) -> None:
    gate, loop = asyncio.Event(), asyncio.get_running_loop()
    for _ in range(4):  # so many run at once
        fake.will(started(), gate, finished(), completed())
    answer = asyncio.create_task(client.post({"model": "fake", "prompt": ["a"] * 5}, COMPLETIONS, SOME))
    first = await fake.next_call()
    began_s = loop.time()
    for _ in range(3):
        await fake.next_call()
    waited_s = loop.time() - began_s
    gate.set()
    last = await fake.next_call()
    assert (await answer).status == 200
    assert limit_s(last) <= limit_s(first) - waited_s + 1e-5


async def test_a_time_limit_that_passes_in_the_waiting_line_is_a_deadline(sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.chat.completions.create(model="one", messages=SAYS, max_tokens=TOKENS, stream=True)
    await anext(aiter(first))
    with pytest.raises(openai.InternalServerError) as caught:
        await sdk.chat.completions.create(model="one", messages=SAYS, extra_headers={"Time-Limit-Ms": "50"})
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    await first.close()


async def test_a_stream_that_somebody_cancels_ends_with_an_error(
    sdk: openai.AsyncOpenAI, operator: AsyncClient
) -> None:
    stream = await sdk.chat.completions.create(model="sim", messages=SAYS, max_tokens=TOKENS, stream=True)
    first = await anext(aiter(stream))
    await operator.cancel_generation(first.id.removeprefix("chatcmpl-"), metadata=MINE)
    with pytest.raises(openai.APIError) as caught:
        async for chunk in stream:
            assert chunk.choices[0].finish_reason is None
    assert (caught.value.code, caught.value.type) == ("cancelled", "server_error")
    assert "CancelGeneration" in caught.value.message


async def test_a_streamed_response_that_somebody_cancels_ends_as_cancelled(
    sdk: openai.AsyncOpenAI, operator: AsyncClient, served: tuple[RunningService, RunningGateway]
) -> None:
    body = {"model": "sim", "input": SLOW, "max_output_tokens": TOKENS, "stream": True}
    async with served[1].connect() as client:
        await client.send("POST", RESPONSES, body, MINE)
        head = await client.head()
        assert head.status == 200
        told = b""
        while b"output_text.delta" not in told:
            told += await client.piece()
        (found,) = set(re.findall(rb'"resp_(gen_[0-9a-f]+)"', told))
        await operator.cancel_generation(found.decode(), metadata=MINE)
        while piece := await client.piece():
            told += piece
    *_, error, failed = [json.loads(event) for event in read_events(told)]
    assert (error["type"], error["code"]) == ("error", "cancelled")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "cancelled")
    response = ResponseFailedEvent.model_validate_json(json.dumps(failed), strict=True).response
    assert response.output_text
    assert response.output[-1].status == "incomplete"  # type: ignore[union-attr]


@pytest.mark.parametrize("path", BODIES)
async def test_a_whole_answer_that_somebody_cancels_is_499_and_not_to_be_repeated(
    path: str, fake: FakeService, client: RawClient
) -> None:
    fake.will(started(), delta("so far"), finished("CANCELLED"), completed())
    response = await client.post(BODIES[path], path)
    assert (response.status, error_of(response)["code"], error_of(response)["type"]) == (
        499,
        "cancelled",
        "server_error",
    )
    assert response.headers["x-should-retry"] == "false"


async def test_a_cancel_of_one_prompt_stops_the_others(fake: FakeService, client: RawClient) -> None:
    gate = asyncio.Event()
    fake.will(started(), delta("a"), gate, finished("CANCELLED"), completed())
    fake.will(started(), delta("b"), HANG)
    answer = asyncio.create_task(client.post({"model": "fake", "prompt": ["a", "b"]}, COMPLETIONS))
    await fake.next_call()
    other = await fake.next_call()
    gate.set()
    assert (await answer).status == 499
    await other.wait_cancelled()


async def test_the_service_s_own_limits_have_codes_of_their_own() -> None:
    limits = Limits(queue_s=0.1, first_token_s=0.3)
    async with (
        running_service(simulated_model(running=1), limits=limits) as service,
        running_gateway(f"127.0.0.1:{service.port}") as gateway,
        gateway.connect() as client,
        gateway.connect() as first,
    ):
        await first.send("POST", COMPLETIONS, {"model": "sim", "prompt": SLOW, "max_tokens": TOKENS, "stream": True})
        await first.head()
        await first.piece()
        waited = await client.post(SIM, COMPLETIONS)
        assert (waited.status, error_of(waited)["code"]) == (503, "queue_timeout")
        assert (waited.headers["x-should-retry"], waited.headers["retry-after"]) == ("true", "1")
        first.leave()
        await gateway.wait_idle()
        await eventually(lambda: not service.models["sim"].slots.running)
        hung = await client.post({**SIM, "prompt": script(fault="hang")}, COMPLETIONS)
        assert (hung.status, error_of(hung)["code"]) == (504, "first_token_timeout")
        assert hung.headers["x-should-retry"] == "false"
