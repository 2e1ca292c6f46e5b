"""Public bug reports about odd requests that are good: what of them reaches the engine, and in which form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.http_stream import open_stream
from tests.support.report_replay import R0, Replay, replays, script
from tests.support.triton_contracts import sent
from tests.support.triton_fake import Do

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replay() -> AsyncIterator[Replay]:
    async with replays() as running:
        yield running


async def tensors(replay: Replay, **members: Any) -> list[dict[str, list[Any]]]:
    """Return what the engine was asked for, asked over HTTP streamed and whole."""
    found = []
    for stream in (True, False):
        body = replay.will('"ok",FIN(eos)', members)
        response = await replay.post({**body, "stream": stream})
        assert response.status == 200, response.body
        (request,) = replay.fake.requests
        found.append(sent(request))
    return found


@pytest.mark.report("E03")
async def test_a_deep_body_is_refused_while_another_stream_goes_on(replay: Replay) -> None:
    go_on = asyncio.Event()
    replay.fake.script = [*script('"before "').steps, Do(go_on.wait), *script('"behind",FIN').steps]
    async with open_stream(replay.gateway.port, dict(R0)) as stream:
        assert await stream.until_text() == "before "
        for depth in (3000, 20_000):
            deep = b'{"model":"m","messages":[{"role":"user","content":"q"}],"metadata":%s%s}'
            refused = await replay.post(deep % (b"[" * depth, b"]" * depth))
            assert (refused.status, refused.json()["error"]["type"]) == (400, "invalid_request_error")
        go_on.set()
        assert [text async for text in stream.texts()] == ["behind"]


@pytest.mark.report("E05")
@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
async def test_empty_content_is_a_message_like_any_other(replay: Replay, content: Any) -> None:
    messages = [{"role": "user", "content": content}]
    for request in await tensors(replay, messages=messages):
        assert request["text_input"] == ["<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"]


@pytest.mark.report("E07")
async def test_every_text_part_of_every_role_reaches_the_prompt_in_order(replay: Replay) -> None:
    def part(text: str) -> dict[str, str]:
        return {"type": "text", "text": text}

    messages = [
        {"role": "system", "content": [part("S1")]},
        {"role": "assistant", "content": [part("P1")]},
        {"role": "user", "content": [part("A1"), part("B2")]},
    ]
    answer = await replay.call('"ok",FIN(eos)', messages=messages)
    assert answer.text == "ok"
    over_grpc = sent(replay.fake.requests[0])
    for request in [*await tensors(replay, messages=messages), over_grpc]:
        (prompt,) = request["text_input"]
        places = [prompt.find(text) for text in ("S1", "P1", "A1", "B2")]
        assert places == sorted(places)
        assert -1 not in places


OPTIONAL = (
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n", "logit_bias", "logprobs",
    "top_logprobs", "user", "stream_options", "tools", "tool_choice", "response_format", "presence_penalty",
    "frequency_penalty", "metadata", "store", "parallel_tool_calls", "reasoning_effort", "top_k", "min_p",
)  # fmt: skip


@pytest.mark.report("E09")
async def test_null_is_the_same_as_absent(replay: Replay) -> None:
    plain = await tensors(replay)
    nulls = await tensors(replay, **dict.fromkeys(OPTIONAL))
    for request in plain + nulls:
        del request["seed"]  # each request that names none has its own
    assert plain == nulls


@pytest.mark.report("E10")
async def test_a_stream_that_is_null_is_no_stream(replay: Replay) -> None:
    response = await replay.post({**replay.will('"ok",FIN(eos)'), "stream": None})
    assert response.headers["content-type"] == "application/json"
    assert response.json()["choices"][0]["message"]["content"] == "ok"


@pytest.mark.report("E11", "E12")
@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({"max_completion_tokens": 2}, 2),
        ({"max_completion_tokens": 2, "max_tokens": 5}, 2),
        ({"max_completion_tokens": 5, "max_tokens": 2}, 2),
        ({"max_tokens": 1}, 1),
        ({}, 512),
    ],
)
async def test_the_smaller_limit_reaches_the_engine(replay: Replay, members: dict[str, int], limit: int) -> None:
    for request in await tensors(replay, **members):
        assert request["max_tokens"] == [limit]


@pytest.mark.report("E12")
async def test_a_limit_under_its_new_name_ends_the_answer(replay: Replay) -> None:
    for ask in (replay.stream, replay.whole):
        answer = await ask('"a","b",FIN', max_completion_tokens=2)
        assert (answer.text, answer.finish_reasons, answer.output_tokens) == ("ab", ["length"], 2)


@pytest.mark.report("E11")
async def test_a_prompt_over_the_context_is_told_both_numbers_and_the_boundary_is_exact() -> None:
    async with replays(options={"max_context_tokens": 100}) as replay:
        replay.fake.prompt_tokens = 145
        long = [{"role": "user", "content": "word " * 145}]
        for ask in (replay.stream, replay.whole):
            answer = await ask('"never",FIN', messages=long)
            assert (answer.status, answer.code) == (400, "context_length_exceeded")
            message = answer.error["message"]
            assert "100" in message
            assert "145" in message
            assert "-" not in message
        assert replay.fake.requests == []
        replay.fake.prompt_tokens = 99
        for ask in (replay.stream, replay.whole, replay.call):
            assert (await ask('"a",FIN', messages=long, max_tokens=1)).text == "a"
            assert (await ask('"a",FIN', messages=long, max_tokens=2)).code is not None
            assert replay.fake.requests == []


async def sampled(replay: Replay, **members: Any) -> dict[str, list[Any]]:
    """Return the sampling tensors of one request."""
    names = ("temperature", "top_k", "top_p")
    first, second = [{name: r[name] for name in names if name in r} for r in await tensors(replay, **members)]
    assert first == second
    return first


@pytest.mark.report("E13")
@pytest.mark.parametrize("temperature", [0, 0.0, -0.0, 1e-9, 1e-37])
@pytest.mark.parametrize("others", [{}, {"top_p": 0.5}, {"top_k": 40}], ids=str)
async def test_no_temperature_is_greedy_and_never_a_zero_tensor(
    replay: Replay, temperature: float, others: dict[str, Any]
) -> None:
    assert await sampled(replay, temperature=temperature, **others) == {"top_k": [1]}


@pytest.mark.report("E13")
async def test_the_highest_temperature_passes(replay: Replay) -> None:
    assert (await sampled(replay, temperature=2.0))["temperature"] == [2.0]


@pytest.mark.report("E13")
async def test_a_greedy_request_changes_no_other_one(replay: Replay) -> None:
    body = replay.will('"ok"@0.05,FIN(eos)')
    asked = [
        {**body, "temperature": number % 2, "messages": [{"role": "user", "content": f"number {number}."}]}
        for number in range(8)
    ]
    assert {response.status for response in await asyncio.gather(*map(replay.post, asked))} == {200}
    assert len(replay.fake.requests) == 8
    for request in map(sent, replay.fake.requests):
        is_warm = any(f"number {number}." in request["text_input"][0] for number in (1, 3, 5, 7))
        assert request.get("temperature") == ([1.0] if is_warm else None)
        assert request.get("top_k") == (None if is_warm else [1])


@pytest.mark.report("E15")
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
async def test_a_signed_seed_reaches_the_engine_as_the_same_bits(replay: Replay, seed: int) -> None:
    for request in await tensors(replay, seed=seed):
        assert request["seed"] == [seed % 2**64]


@pytest.mark.report("E16")
async def test_no_bias_is_none_and_one_that_the_engine_cannot_take_is_refused_by_name(replay: Replay) -> None:
    await tensors(replay, logit_bias={})
    replay.fake.requests.clear()
    response = await replay.post({**R0, "logit_bias": {"10": 5}})
    error = response.json()["error"]
    assert (response.status, error["code"]) == (400, "unsupported_parameter")
    assert "logit_bias" in error["message"]
    assert replay.fake.requests == []


@pytest.mark.report("E18")
async def test_a_nul_cuts_neither_prompt_nor_answer(replay: Replay) -> None:
    messages = [{"role": "user", "content": "before\x00after"}]
    answers = await replay.everywhere(r'"a\x00b",FIN(eos)', messages=messages)
    assert answers[0].text == "a\x00b"
    (prompt,) = sent(replay.fake.requests[0])["text_input"]
    assert "before\x00after" in prompt
    assert prompt.endswith("<|im_start|>assistant\n")


@pytest.mark.report("E19")
async def test_members_that_nobody_knows_are_ignored(replay: Replay) -> None:
    members = {
        "store": False, "metadata": {"a": "b"}, "parallel_tool_calls": True, "service_tier": "auto",
        "reasoning_effort": "low", "foo": 1, "messages": [{**R0["messages"][0], "bar": {"baz": []}}],
    }  # fmt: skip
    plain, odd = await tensors(replay), await tensors(replay, **members)
    for request in plain + odd:
        del request["seed"]
    assert plain == odd
