"""OpenAI's Python package, structured output: `.parse()` and its stream helper with pydantic models."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any, Final

import openai
import pytest
from pydantic import BaseModel, Field

from tests.clients.backends import MODEL, Ability, Served

GREEDY: Final[dict[str, Any]] = {"model": MODEL, "temperature": 0, "seed": 7, "max_tokens": 40}
# An example, because white space is JSON too, and a base model without one likes it best.
ASKED: Final[list[Any]] = [
    {"role": "user", "content": "Describe Rome."},
    {"role": "assistant", "content": '{"name": "Rome", "size": "large"}'},
    {"role": "user", "content": "Describe Paris."},
]
COLOURS: Final[list[Any]] = [
    {"role": "user", "content": "What colour is the sky?"},
    {"role": "assistant", "content": '{"colour": "blue"}'},
    {"role": "user", "content": "What colour is grass?"},
]


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class City(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    size: Size


async def test_parse_returns_the_caller_s_own_type(client: openai.AsyncOpenAI, served: Served) -> None:
    if not served.can(Ability.CONSTRAINT):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.parse(messages=ASKED, response_format=City, **GREEDY)
        assert (refused.value.param or "").startswith("response_format")
        return
    answer = await client.chat.completions.parse(messages=ASKED, response_format=City, **GREEDY)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, City)


async def test_a_stream_is_parsed_to_the_same(client: openai.AsyncOpenAI, served: Served) -> None:
    if not served.can(Ability.CONSTRAINT):
        with pytest.raises(openai.BadRequestError) as refused:
            async with client.chat.completions.stream(messages=ASKED, response_format=City, **GREEDY) as stream:
                await stream.get_final_completion()
        assert (refused.value.param or "").startswith("response_format")
        return
    whole = await client.chat.completions.parse(messages=ASKED, response_format=City, **GREEDY)
    async with client.chat.completions.stream(messages=ASKED, response_format=City, **GREEDY) as stream:
        events = [event async for event in stream]
    done = [event for event in events if event.type == "content.done"]
    assert [event.parsed for event in done] == [whole.choices[0].message.parsed]
    partial = [event.parsed for event in events if event.type == "content.delta" and event.parsed]
    assert len(partial) > 1


async def test_a_json_object_is_json(client: openai.AsyncOpenAI, served: Served) -> None:
    wanted: Any = {"type": "json_object"}
    if not served.can(Ability.CONSTRAINT):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(messages=ASKED, response_format=wanted, **GREEDY)
        assert refused.value.param == "response_format"
        return
    answer = await client.chat.completions.create(messages=COLOURS, response_format=wanted, **GREEDY)
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


async def test_a_schema_that_is_none_is_refused_by_its_place(client: openai.AsyncOpenAI, served: Served) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(messages=ASKED, response_format=wanted, **GREEDY)
    assert (refused.value.param or "").startswith("response_format")
