"""The official Python package against the gateway, unchanged: what most callers are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import openai
import pytest

from tests.support.fake_service import HANG, Fail, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import running_gateway

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def sdk(**settings: float) -> AsyncIterator[tuple[FakeService, openai.AsyncOpenAI]]:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client,
    ):
        yield fake, client


async def test_a_stream_with_usage() -> None:
    async with sdk() as (_, client):
        stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello world"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 5


@pytest.mark.report("C01")
async def test_the_stream_helper_accumulates_a_whole_answer() -> None:
    async with sdk(heartbeat_s=0.05) as (fake, client):
        fake.will(started(), delta("a"), delta("b", 1), delta("c"), finished(), finished(index=1), completed())
        async with client.chat.completions.stream(model="m", messages=MESSAGES, n=2) as stream:
            final = await stream.get_final_completion()
        assert [(c.message.content, c.finish_reason) for c in final.choices] == [("ac", "stop"), ("b", "stop")]


async def test_a_whole_answer_and_its_request_id() -> None:
    async with sdk() as (fake, client):
        answer = await client.chat.completions.create(model="m", messages=MESSAGES, stop=["END"], temperature=0)
        assert answer.choices[0].message.content == "Hello world"
        assert answer._request_id is not None
        call = await fake.next_call()
        assert call.header("x-request-id") == answer._request_id
        assert list(call.request.stop.sequences) == ["END"]
        assert call.header("authorization") == "Bearer k"


async def test_completions_and_models() -> None:
    async with sdk() as (_, client):
        assert (await client.completions.create(model="m", prompt="x")).choices[0].text == "Hello world"
        stream = await client.completions.create(model="m", prompt="x", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world"
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).owned_by == "tests"


async def test_errors_arrive_as_the_sdk_s_own_classes() -> None:
    async with sdk() as (fake, client):
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="m", messages=MESSAGES, temperature=3)
        assert (bad.value.param, bad.value.code) == ("temperature", "decimal_above_max_value")
        assert bad.value.request_id is not None
        fake.will(Fail(code=grpc.StatusCode.NOT_FOUND, reason="MODEL_NOT_FOUND"))
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=MESSAGES, stream=True)
        fake.will(started(), delta("a"), Fail(code=grpc.StatusCode.INTERNAL, reason="BACKEND_ERROR", message="Lost."))
        seen = []
        with pytest.raises(openai.APIError, match="Lost"):
            async for chunk in await client.chat.completions.create(model="m", messages=MESSAGES, stream=True):
                seen.append(chunk.choices[0].delta.content)  # noqa: PERF401 - it raises half way
        assert seen == ["", "a"]


async def test_leaving_a_stream_early_cancels_the_generation() -> None:
    async with sdk() as (fake, client):
        fake.will(started(), delta("a"), HANG)
        async with await client.chat.completions.create(model="m", messages=MESSAGES, stream=True) as stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
        await (await fake.next_call()).wait_cancelled()


async def test_only_what_may_be_repeated_is_repeated() -> None:
    async with sdk() as (fake, client):
        patient = client.with_options(max_retries=1)
        fake.will(Fail(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_after_s=0.01))
        assert await patient.chat.completions.create(model="m", messages=MESSAGES)
        assert len(fake.calls) == 2
        fake.will(Fail(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="DEADLINE_IN_DECODE"))
        with pytest.raises(openai.InternalServerError):
            await patient.chat.completions.create(model="m", messages=MESSAGES)
        assert len(fake.calls) == 3


@pytest.mark.report("J09")
async def test_heartbeats_do_not_disturb_the_sdk() -> None:
    async with sdk(status_hold_s=0.05, heartbeat_s=0.02) as (fake, client):
        wait = asyncio.Event()
        fake.will(wait, started(), delta("a"), finished(), completed())
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        await asyncio.sleep(0.1)  # some heartbeats; none of them is needed
        wait.set()
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "a"


async def test_the_synchronous_client_works_the_same() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway:

        def talk() -> tuple[str | None, str]:
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client:
                whole = client.chat.completions.create(model="m", messages=MESSAGES)
                stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
                return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

        assert await asyncio.to_thread(talk) == ("Hello world", "Hello world")
