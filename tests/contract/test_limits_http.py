"""Limits as HTTP callers see them: the headers of OpenAI, and what the official SDK makes of a refusal."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from service.tenancy.limits.rules import Rules
from tests.support.gateway_harness import running_gateway
from tests.support.limited_service import Books, limited, rules_of

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def over_http(rules: Rules, **client: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Books]]:
    async with (
        limited(rules) as (service, books),
        running_gateway(f"127.0.0.1:{service.port}") as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", **client) as sdk,
    ):
        yield sdk, books


@pytest.mark.parametrize("stream", [False, True])
async def test_http_answers_have_the_headers_of_openai(stream: bool) -> None:
    rules = rules_of(requests_per_minute=5, tokens_per_minute=10_000)
    async with over_http(rules, max_retries=0) as (sdk, _):
        raw = await sdk.chat.completions.with_raw_response.create(
            model="sim", messages=MESSAGES, stream=stream, max_tokens=5
        )
        assert raw.headers["x-ratelimit-limit-requests"] == "5"
        assert raw.headers["x-ratelimit-remaining-requests"] == "4"
        assert raw.headers["x-ratelimit-reset-requests"] == "1m0s"
        assert raw.headers["x-ratelimit-limit-tokens"] == "10000"
        assert 9000 < int(raw.headers["x-ratelimit-remaining-tokens"]) < 10_000
        assert "retry-after" not in raw.headers


async def test_several_prompts_are_as_many_requests_and_the_headers_are_of_the_last() -> None:
    async with over_http(rules_of(requests_per_minute=5), max_retries=0) as (sdk, books):
        raw = await sdk.completions.with_raw_response.create(model="sim", prompt=["a", "b", "c"], max_tokens=1)
        assert int(raw.headers["x-ratelimit-remaining-requests"]) in (2, 3, 4)
        assert len(books.closings) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_sdk_raises_its_rate_limit_error(stream: bool) -> None:
    async with over_http(rules_of(requests_per_minute=1), max_retries=0) as (sdk, _):
        await sdk.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=1)
        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.chat.completions.create(model="sim", messages=MESSAGES, stream=stream)
        assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "requests")
        headers = refused.value.response.headers
        assert headers["x-should-retry"] == "true"
        assert 0 < int(headers["retry-after"]) <= 60
        assert (int(headers["retry-after"]) - 1) * 1000 < int(headers["retry-after-ms"]) <= 60_000
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-limit-requests"] == "1"


async def test_a_quota_is_not_to_be_waited_for_and_tokens_have_a_type_of_their_own() -> None:
    rules = rules_of(tokens_per_minute=1000, tokens_per_day=1500)
    async with over_http(rules, max_retries=2) as (sdk, books):
        books.clock.ahead_s = 43_200 - time.time() % 86_400
        await sdk.completions.create(model="sim", prompt="a", max_tokens=900)
        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.with_options(max_retries=0).completions.create(model="sim", prompt="a", max_tokens=500)
        assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "tokens")
        books.clock.ahead_s += 61
        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.completions.create(model="sim", prompt="a", max_tokens=800)
        assert (refused.value.code, refused.value.type) == ("insufficient_quota", "insufficient_quota")
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert books.refused == ["tokens_per_minute", "tokens_per_day"]  # once each: it was not asked again


async def test_the_official_sdk_comes_back_when_it_is_told_to() -> None:
    async with over_http(rules_of(requests_per_minute=1), max_retries=1) as (sdk, books):
        books.clock.ahead_s = -59.7
        await sdk.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=1)
        books.clock.ahead_s = 0.0
        # Refused for what is left of the minute, and let in after it: an early return would be refused once more.
        await sdk.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=1)
        assert books.refused == ["requests_per_minute"]


async def test_more_output_than_allowed_is_told_with_the_name_that_the_caller_knows() -> None:
    async with over_http(rules_of(max_output_tokens=10), max_retries=0) as (sdk, _):
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=11)
        assert refused.value.param in ("max_tokens", "max_completion_tokens")
        assert "at most 10 tokens by the limits of this tenant, got 11" in refused.value.message
