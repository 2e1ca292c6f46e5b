"""The default model through the official SDK, curl and the command line, as a user meets them."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.processes import ROOT, Stack, clean_environment

pytestmark = [pytest.mark.e2e, pytest.mark.llamacpp, pytest.mark.timeout(120)]

FRANCE: Any = [{"role": "user", "content": "What is the capital of France?"}]
# Where every next token is far likelier than the second: llama.cpp computes batches of
# another size with other rounding, and a near tie falls this way or that.
COUNT: Any = [
    {"role": "user", "content": "Count to nine."},
    {"role": "assistant", "content": "1, 2, 3, 4, 5, 6, 7, 8, 9"},
    {"role": "user", "content": "Count to nine."},
]
NUMBERS = "Count from 1 to 20: 1, 2, 3, 4, 5, 6,"
GREEDY: dict[str, Any] = {"model": "default", "temperature": 0, "seed": 7}
# Goes on until its limit of about a minute.
ENDLESS: dict[str, Any] = {**GREEDY, "max_tokens": 2000, "stream": True, "extra_body": {"ignore_eos": True}}
SLOTS = 4


@pytest.fixture
async def client(embedded: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{embedded.url}/v1", api_key="k", max_retries=0, timeout=60) as client:
        yield client


async def said(client: openai.AsyncOpenAI, messages: Any = COUNT, **members: Any) -> str:
    answer = await client.chat.completions.create(messages=messages, **GREEDY, **members)
    return answer.choices[0].message.content or ""


async def test_a_question_is_answered_and_both_ways_to_ask_say_the_same(client: openai.AsyncOpenAI) -> None:
    assert "Paris" in await said(client, FRANCE, max_tokens=24)
    whole = await client.chat.completions.create(messages=COUNT, max_tokens=24, **GREEDY)
    assert whole.choices[0].message.content == " 1, 2, 3, 4, 5, 6, 7, 8,"
    assert whole.model == "gemma-3-270m"
    stream = await client.chat.completions.create(
        messages=COUNT, max_tokens=24, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    streamed, counted = chunks[-1].usage, whole.usage
    assert streamed is not None
    assert counted is not None
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (counted.prompt_tokens, counted.completion_tokens)
    assert streamed.total_tokens == streamed.prompt_tokens + streamed.completion_tokens
    assert streamed.prompt_tokens > 5


def test_the_synchronous_client_says_the_same(embedded: Stack) -> None:
    with openai.OpenAI(base_url=f"{embedded.url}/v1", api_key="k", max_retries=0, timeout=60) as client:
        whole = client.chat.completions.create(messages=COUNT, max_tokens=12, **GREEDY)
        with client.chat.completions.create(messages=COUNT, max_tokens=12, stream=True, **GREEDY) as stream:
            assert "".join(c.choices[0].delta.content or "" for c in stream) == whole.choices[0].message.content
        assert [model.id for model in client.models.list()] == ["gemma-3-270m"]


async def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(messages=COUNT, max_tokens=24, stop=["4, 5"], **GREEDY)
    assert answer.choices[0].message.content == " 1, 2, 3, "
    assert answer.choices[0].finish_reason == "stop"


async def test_a_token_limit_ends_the_answer_with_length(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(prompt="Once upon a time", max_tokens=5, **GREEDY)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


async def test_two_choices_are_two_answers(client: openai.AsyncOpenAI) -> None:
    sampled = {**GREEDY, "temperature": 1.5}
    answer = await client.completions.create(prompt="Once upon a time", n=2, max_tokens=16, **sampled)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text != answer.choices[1].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 32
    stream = await client.completions.create(prompt="Once upon a time", n=2, max_tokens=16, stream=True, **sampled)
    texts = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert all(texts)
    assert texts[0] != texts[1]


async def test_logprobs_belong_to_the_tokens_of_the_text(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(messages=COUNT, max_tokens=4, logprobs=True, top_logprobs=3, **GREEDY)
    choice = answer.choices[0]
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert "".join(token.token for token in tokens) == choice.message.content == " 1, "
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token, "greedy takes the likeliest"
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1.001


async def test_a_json_schema_gives_json_that_fits_it(client: openai.AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    # An example, because white space is JSON too, and a base model without one likes it best.
    asked = [
        {"role": "user", "content": "Describe Rome."},
        {"role": "assistant", "content": '{"city": "Rome", "big": true}'},
        {"role": "user", "content": "Describe Paris."},
    ]
    answer = json.loads(await said(client, asked, max_tokens=80, response_format=wanted))
    assert answer.keys() == {"city", "big"}
    assert isinstance(answer["big"], bool)


async def test_wrong_requests_arrive_as_the_sdk_s_own_errors(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="no-such-model", messages=FRANCE, stream=stream)
        assert (missing.value.code, missing.value.status_code) == ("model_not_found", 404)
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="default", messages=FRANCE, top_p=7, stream=stream)
        assert bad.value.param == "top_p"
        with pytest.raises(openai.BadRequestError) as refused:  # by the service, not by the gateway
            await client.chat.completions.create(model="default", messages=FRANCE, n=100, stream=stream)
        assert refused.value.param == "n"
        with pytest.raises(openai.BadRequestError) as long:
            await client.completions.create(prompt="word " * 9000, stream=stream, **GREEDY)
        assert (long.value.code, long.value.param) == ("context_length_exceeded", "prompt")


async def test_leaving_streams_early_frees_their_slots(client: openai.AsyncOpenAI, embedded: Stack) -> None:
    async with AsyncExitStack() as streams:
        for number in range(SLOTS):
            request_id = f"leaves-early-{number}"
            stream = await client.completions.create(
                prompt="Once upon a time", extra_headers={"x-request-id": request_id}, **ENDLESS
            )
            await streams.enter_async_context(stream)
            await anext(aiter(stream))
    left_s = time.monotonic()
    assert await said(client, max_tokens=4) == " 1, "
    # Four endless answers would have held the slots for minutes.
    assert time.monotonic() - left_s < 10
    for number in range(SLOTS):
        line = await embedded.service.line(request_id=f"leaves-early-{number}", logger="headrace.request")
        assert (line["outcome"], line["status"]) == ("client_cancelled", "CANCELLED")
        assert line["output_tokens"] < 1000


async def test_requests_beyond_the_slots_wait_and_are_all_served(client: openai.AsyncOpenAI) -> None:
    answers = await asyncio.gather(*(said(client, max_tokens=4) for _ in range(SLOTS + 2)))
    assert set(answers) == {" 1, "}


def test_curl_sees_lines_as_they_come_and_an_end(embedded: Stack) -> None:
    body = {"model": "default", "stream": True, "messages": FRANCE, "max_tokens": 8}
    command = ["curl", "-sS", "-N", f"{embedded.url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run([*command, "-d", json.dumps(body)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if line]
    assert all(line.startswith(("id: ", "data: ")) for line in lines)
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1] if not line.startswith("id: ")]
    assert "Paris" in "".join(choice["delta"].get("content", "") for c in chunks for choice in c["choices"])


async def test_the_command_line_says_over_grpc_what_http_says(client: openai.AsyncOpenAI, embedded: Stack) -> None:
    answer = await client.completions.create(prompt=NUMBERS, max_tokens=12, **GREEDY)
    command = [str(Path(sys.executable).with_name("headrace")), "generate", NUMBERS, "--model=default"]
    options = ["--max-tokens=12", "--temperature=0", "--seed=7", f"--target={embedded.target}"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, *options],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == answer.choices[0].text == " 7, 8, 9, 10"
    assert "12 output tokens" in done.stderr
