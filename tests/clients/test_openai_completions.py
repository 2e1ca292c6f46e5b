"""OpenAI's Python package, legacy completions, over every backend."""

from __future__ import annotations

import math
from typing import Any, Final

import openai

from tests.clients.backends import ANSWER, ANSWER_TOKENS, MODEL, Ability, Served

COUNTING: Final[dict[str, Any]] = {"model": MODEL, "temperature": 0, "seed": 7, "max_tokens": ANSWER_TOKENS}


async def test_a_text_is_continued_streamed_and_whole(client: openai.AsyncOpenAI, served: Served) -> None:
    whole = await client.completions.create(prompt=served.prompt, **COUNTING)
    assert (whole.object, whole.model) == ("text_completion", MODEL)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (ANSWER, "length")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == ANSWER_TOKENS
    stream = await client.completions.create(
        prompt=served.prompt, stream=True, stream_options={"include_usage": True}, **COUNTING
    )
    chunks = [chunk async for chunk in stream]
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == ANSWER
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


async def test_without_a_limit_it_is_sixteen_tokens(client: openai.AsyncOpenAI, served: Served) -> None:
    without = {name: value for name, value in COUNTING.items() if name != "max_tokens"}
    answer = await client.completions.create(prompt=served.prompt, **without)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


async def test_the_columns_of_logprobs_fit_the_text(client: openai.AsyncOpenAI, served: Served) -> None:
    count = 2 if served.can(Ability.TOP_LOGPROBS) else 0
    answer = await client.completions.create(prompt=served.prompt, logprobs=count, **COUNTING)
    columns = answer.choices[0].logprobs
    assert columns is not None
    assert columns.tokens is not None
    assert "".join(columns.tokens) == answer.choices[0].text == ANSWER
    starts = [len("".join(columns.tokens[:at])) for at in range(len(columns.tokens))]
    first = (columns.text_offset or [0])[0]
    assert [offset - first for offset in columns.text_offset or []] == starts
    assert all(math.isfinite(value) and value <= 0 for value in columns.token_logprobs or [])
    stream = await client.completions.create(prompt=served.prompt, logprobs=count, stream=True, **COUNTING)
    parts = [choice.logprobs async for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert [token for part in parts for token in part.tokens or []] == columns.tokens
    assert [offset for part in parts for offset in part.text_offset or []] == columns.text_offset


def test_without_asyncio_it_is_the_same(sync_client: openai.OpenAI, served: Served) -> None:
    with sync_client.completions.create(prompt=served.prompt, stream=True, **COUNTING) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == ANSWER
