"""OpenAI's Python package, chat: what it is told and how, streamed and whole, over every backend."""

from __future__ import annotations

import math
from typing import Any, Final

import openai
import pytest

from tests.clients.backends import ANSWER, ANSWER_TOKENS, MODEL, Ability, Served

GREEDY: Final[dict[str, Any]] = {"model": MODEL, "temperature": 0, "seed": 7}
COUNTING: Final[dict[str, Any]] = {**GREEDY, "max_tokens": ANSWER_TOKENS}
# How much of the prompt was cached depends on what was asked before.
COUNTS: Final = {"prompt_tokens", "completion_tokens", "total_tokens"}
WITH_USAGE: Final[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}


async def test_a_whole_answer_has_text_reason_and_usage(client: openai.AsyncOpenAI, served: Served) -> None:
    answer = await client.chat.completions.create(messages=served.count, **COUNTING)
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", ANSWER)
    assert choice.finish_reason == "length"
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == ANSWER_TOKENS
    assert answer.usage.prompt_tokens > 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + ANSWER_TOKENS
    # Types that the SDK knows hold what it was sent: nothing is of another kind than it should be.
    assert type(answer).model_validate_json(answer.model_dump_json()) == answer


async def test_a_stream_says_what_a_whole_answer_says(client: openai.AsyncOpenAI, served: Served) -> None:
    whole = await client.chat.completions.create(messages=served.count, **COUNTING)
    chunks = [c async for c in await client.chat.completions.create(messages=served.count, **COUNTING, **WITH_USAGE)]
    *body, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.model_dump(include=COUNTS) == whole.usage.model_dump(include=COUNTS)
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in body)
    assert {(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks} == {
        (last.id, last.created, MODEL, "chat.completion.chunk")
    }
    deltas = [chunk.choices[0].delta for chunk in body]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content == ANSWER
    assert [delta.role for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert [chunk.choices[0].finish_reason for chunk in body] == [None] * (len(body) - 1) + ["length"]
    assert len([delta for delta in deltas if delta.content]) > 1


def test_without_asyncio_it_is_the_same(sync_client: openai.OpenAI, served: Served) -> None:
    create = sync_client.chat.completions.create
    assert create(messages=served.count, **COUNTING).choices[0].message.content == ANSWER
    with create(messages=served.count, stream=True, **COUNTING) as stream:
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == ANSWER


async def test_the_stream_helper_builds_the_whole_answer(client: openai.AsyncOpenAI, served: Served) -> None:
    asked: Any = {**GREEDY, "messages": served.count, "stop": ", 3", "logprobs": True, "max_tokens": 20}
    async with client.chat.completions.stream(stream_options={"include_usage": True}, **asked) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    assert "".join(event.delta for event in events if event.type == "content.delta") == " 1, 2"
    assert [event.content for event in events if event.type == "content.done"] == [" 1, 2"]
    whole = await client.chat.completions.create(**asked)
    assert final.choices[0].message.content == whole.choices[0].message.content == " 1, 2"
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert final.choices[0].logprobs == whole.choices[0].logprobs
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.total_tokens == whole.usage.total_tokens


async def test_the_stream_helper_tells_an_answer_that_was_cut(client: openai.AsyncOpenAI, served: Served) -> None:
    with pytest.raises(openai.LengthFinishReasonError) as cut:
        async with client.chat.completions.stream(messages=served.count, **COUNTING) as stream:
            await stream.get_final_completion()
    assert cut.value.completion.choices[0].message.content == ANSWER


async def test_a_stop_text_ends_the_answer_and_is_not_in_it(client: openai.AsyncOpenAI, served: Served) -> None:
    for stop in (" 2", ["no such text", ", 2"]):
        answer = await client.chat.completions.create(messages=served.count, stop=stop, **COUNTING)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.content == ANSWER.partition(stop if isinstance(stop, str) else stop[1])[0]
        stream = await client.chat.completions.create(messages=served.count, stop=stop, stream=True, **COUNTING)
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert (text, chunks[-1].choices[0].finish_reason) == (answer.choices[0].message.content, "stop")


async def test_choices_have_indices_of_their_own(client: openai.AsyncOpenAI, served: Served) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": served.count, "n": 2, "max_tokens": 4, "seed": 5}
    whole = await client.chat.completions.create(temperature=1.9, **asked)
    assert [choice.index for choice in whole.choices] == [0, 1]
    if served.can(Ability.CHOICES_DIFFER):
        assert whole.choices[0].message.content != whole.choices[1].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 8
    texts, reasons = ["", ""], ["", ""]
    async for chunk in await client.chat.completions.create(temperature=1.9, stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] += choice.finish_reason or ""
    assert all(texts)
    assert set(reasons) <= {"length", "stop"}


async def test_a_seed_gives_the_same_answer_again(client: openai.AsyncOpenAI, served: Served) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me a story."}]}
    sampled = {"max_tokens": 6, "temperature": 1.5, **asked}
    first = await client.chat.completions.create(seed=11, **sampled)
    again = await client.chat.completions.create(seed=11, **sampled)
    other = await client.chat.completions.create(seed=12, **sampled)
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.choices[0].message.content != other.choices[0].message.content


async def test_logprobs_belong_to_the_text(client: openai.AsyncOpenAI, served: Served) -> None:
    top = {"top_logprobs": 2} if served.can(Ability.TOP_LOGPROBS) else {}
    asked = {**COUNTING, "logprobs": True, **top}
    whole = await client.chat.completions.create(messages=served.count, **asked)
    assert whole.choices[0].logprobs is not None
    tokens = whole.choices[0].logprobs.content or []
    assert "".join(token.token for token in tokens) == ANSWER
    for token in tokens:
        assert token.bytes == list(token.token.encode())
        assert math.isfinite(token.logprob)
        assert token.logprob <= 0
        assert len(token.top_logprobs) == (2 if top else 0)
    stream = await client.chat.completions.create(messages=served.count, stream=True, **asked)
    choices = [chunk.choices[0] async for chunk in stream]
    streamed = [token for choice in choices if choice.logprobs for token in choice.logprobs.content or []]
    assert [token.token for token in streamed] == [token.token for token in tokens]
    if not top:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(messages=served.count, top_logprobs=2, **asked)
        assert refused.value.param == "top_logprobs"


async def test_the_raw_response_has_its_headers(client: openai.AsyncOpenAI, served: Served) -> None:
    raw = await client.chat.completions.with_raw_response.create(messages=served.count, **COUNTING)
    assert raw.http_response.headers["content-type"] == "application/json"
    assert raw.request_id
    answer = raw.parse()
    assert answer.choices[0].message.content == ANSWER
    assert answer._request_id == raw.request_id
    async with client.chat.completions.with_streaming_response.create(
        messages=served.count, stream=True, **COUNTING
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.iter_lines()]
    assert [line for line in lines if line][-1] == "data: [DONE]"


async def test_models_are_listed_and_found(client: openai.AsyncOpenAI) -> None:
    assert MODEL in [model.id async for model in client.models.list()]
    model = await client.models.retrieve(MODEL)
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "headrace")
