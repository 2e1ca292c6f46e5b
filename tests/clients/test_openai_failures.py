"""OpenAI's Python package when something fails: its error classes, what it repeats, and leaving early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import openai
import pytest

from tests.clients.backends import MODEL, Served, scripted

HI: Final[list[Any]] = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def counting(served: Served, **options: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, list[httpx2.Response]]]:
    """A client that keeps every HTTP response that it got, those it did not like too."""
    responses: list[httpx2.Response] = []

    async def keep(response: httpx2.Response) -> None:
        responses.append(response)

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [keep]})
    async with openai.AsyncOpenAI(base_url=served.url, api_key="k", http_client=http, timeout=20, **options) as client:
        yield client, responses


@pytest.mark.parametrize("stream", [False, True])
async def test_wrong_requests_are_told_with_their_field(
    client: openai.AsyncOpenAI, served: Served, stream: bool
) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="no-such-model", messages=HI, stream=stream)
    assert (missing.value.code, missing.value.type) == ("model_not_found", "invalid_request_error")
    assert "no-such-model" in missing.value.message
    with pytest.raises(openai.BadRequestError) as above:
        await create(model=MODEL, messages=HI, temperature=3, stream=stream)
    assert (above.value.code, above.value.param) == ("decimal_above_max_value", "temperature")
    with pytest.raises(openai.BadRequestError) as empty:
        await create(model=MODEL, messages=[], stream=stream)
    assert (empty.value.code, empty.value.param) == ("empty_array", "messages")
    with pytest.raises(openai.BadRequestError) as refused:  # by the service, not by the gateway
        await create(model=MODEL, messages=HI, n=100, stream=stream)
    assert refused.value.param == "n"
    for error in (missing, above, empty, refused):
        assert error.value.request_id
        assert error.value.response.headers["x-should-retry"] == "false"


async def test_a_prompt_beyond_the_context_has_the_code_that_clients_know(
    client: openai.AsyncOpenAI, served: Served
) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")


async def test_a_path_that_is_not_there_is_told(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.images.generate(prompt="a mill", model=MODEL)
    assert "Invalid URL (POST /v1/images/generations)" in missing.value.message
    assert missing.value.type == "invalid_request_error"


async def test_an_engine_that_is_away_is_asked_again_and_a_broken_one_is_not(simulated: Served) -> None:
    away: Any = [{"role": "user", "content": scripted(fault="unavailable", queue_ms=0)}]
    async with counting(simulated, max_retries=1) as (client, responses):
        with pytest.raises(openai.InternalServerError) as gone:
            await client.chat.completions.create(model=MODEL, messages=away)
        assert gone.value.status_code == 503
        assert [response.status_code for response in responses] == [503, 503]
        assert [r.request.headers["x-stainless-retry-count"] for r in responses] == ["0", "1"]
    broken: Any = [{"role": "user", "content": scripted(fault="crash")}]
    async with counting(simulated, max_retries=2) as (client, responses):
        with pytest.raises(openai.InternalServerError) as fault:
            await client.chat.completions.create(model=MODEL, messages=broken)
        assert (fault.value.status_code, fault.value.type) == (500, "server_error")
        assert "secret" not in str(fault.value.body)
        assert len(responses) == 1


@pytest.mark.parametrize("fault", ["error", "unavailable", "crash", "cut"])
async def test_a_failure_within_a_stream_is_raised_behind_the_text(simulated: Served, fault: str) -> None:
    prompt: Any = [{"role": "user", "content": scripted("a", "b", "c", fault=fault, fault_after=2)}]
    async with counting(simulated, max_retries=2) as (client, responses):
        seen = ""
        with pytest.raises(openai.APIError) as failed:
            async for chunk in await client.chat.completions.create(model=MODEL, messages=prompt, stream=True):
                seen += chunk.choices[0].delta.content or ""
        assert seen == "ab"
        assert isinstance(failed.value.body, dict)
        assert failed.value.body.keys() == {"message", "type", "param", "code"}
        with pytest.raises(openai.APIError):
            async with client.chat.completions.stream(model=MODEL, messages=prompt) as helper:
                await helper.get_final_completion()
        assert [response.status_code for response in responses] == [200, 200]


async def test_a_stream_that_is_left_stops_the_engine(client: openai.AsyncOpenAI, served: Served) -> None:
    name = f"left-{served.name}"
    asked: Any = {"messages": [{"role": "user", "content": served.endless}], "max_tokens": 2000, "temperature": 0}
    asked |= {"extra_body": {"ignore_eos": True}, "extra_headers": {"x-request-id": name}}
    async with await client.chat.completions.create(model=MODEL, stream=True, **asked) as stream:
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    line = await served.stack.service.line(request_id=name, logger="headrace.request")
    assert (line["outcome"], line["status"]) == ("client_cancelled", "CANCELLED")
    assert line["output_tokens"] < 1000


async def test_an_answer_that_is_not_waited_for_stops_the_engine(served: Served) -> None:
    name = f"impatient-{served.name}"
    asked: Any = {"messages": [{"role": "user", "content": served.endless}], "max_tokens": 2000, "temperature": 0}
    asked |= {"extra_body": {"ignore_eos": True}, "extra_headers": {"x-request-id": name}}
    async with counting(served, max_retries=0) as (client, _):
        # The client tells how long it waits, and then leaves: either comes first.
        with pytest.raises((openai.APITimeoutError, openai.InternalServerError)) as late:
            await client.with_options(timeout=0.5).chat.completions.create(model=MODEL, **asked)
    line = await served.stack.service.line(request_id=name, logger="headrace.request")
    assert not isinstance(late.value, openai.InternalServerError) or late.value.code == "deadline_exceeded"
    assert line["outcome"] in {"client_cancelled", "deadline_exceeded"}
    assert line["output_tokens"] < 1000


async def test_a_task_that_is_cancelled_stops_the_engine(client: openai.AsyncOpenAI, served: Served) -> None:
    name = f"cancelled-{served.name}"
    asked: Any = {"messages": [{"role": "user", "content": served.endless}], "max_tokens": 2000, "temperature": 0}
    asked |= {"extra_body": {"ignore_eos": True}, "extra_headers": {"x-request-id": name}}
    has_text = asyncio.Event()

    async def read() -> None:
        async for chunk in await client.chat.completions.create(model=MODEL, stream=True, **asked):
            if chunk.choices[0].delta.content:
                has_text.set()

    task = asyncio.create_task(read())
    await asyncio.wait_for(has_text.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    line = await served.stack.service.line(request_id=name, logger="headrace.request")
    assert (line["outcome"], line["status"]) == ("client_cancelled", "CANCELLED")
