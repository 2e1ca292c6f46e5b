"""Event streams by readers that know nothing of OpenAI: httpx-sse, and the letter of the HTML standard on raw bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
from httpx_sse import aconnect_sse
from jsonschema import Draft202012Validator

from tests.clients.backends import ANSWER, ANSWER_TOKENS, MODEL, TOOLS_MODEL, Ability, Served, scripted, written
from tests.clients.schemas import CHAT_ANSWER, CHAT_CHUNK, COMPLETION_ANSWER, COMPLETION_CHUNK, ERROR
from tests.support.processes import gateway
from tests.support.whatwg_sse import EventStreamDecoder

GREEDY: Final[dict[str, Any]] = {"model": MODEL, "temperature": 0, "seed": 7, "max_tokens": ANSWER_TOKENS}
COUNTING: Final[dict[str, Any]] = {**GREEDY, "stream": True, "stream_options": {"include_usage": True}}


async def raw_events(url: str, body: dict[str, Any]) -> tuple[list[str], httpx.Headers, EventStreamDecoder]:
    """Return the data of every event as a strict reader dispatches it from the bytes as they come."""
    decoder = EventStreamDecoder()
    found: list[str] = []
    async with httpx.AsyncClient(timeout=40) as client, client.stream("POST", url, json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for piece in response.aiter_raw():
            found += [event.data for event in decoder.feed(piece)]
    found += [event.data for event in decoder.close()]
    return found, response.headers, decoder


async def test_a_strict_reader_sees_whole_events_and_nothing_odd(served: Served) -> None:
    events, headers, decoder = await raw_events(
        f"{served.url}/chat/completions", {**COUNTING, "messages": served.count}
    )
    assert decoder.oddities == []
    assert headers["content-type"].partition(";")[0] == "text/event-stream"
    assert "content-length" not in headers
    assert "content-encoding" not in headers
    assert "no-cache" in headers["cache-control"]
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    chunks = [json.loads(data) for data in events[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]) == ANSWER


async def test_httpx_sse_reads_the_same(served: Served) -> None:
    body = {**COUNTING, "messages": served.count}
    async with (
        httpx.AsyncClient(timeout=40) as client,
        aconnect_sse(client, "POST", f"{served.url}/chat/completions", json=body) as source,
    ):
        events = [event async for event in source.aiter_sse()]
    assert {event.event for event in events} == {"message"}
    assert all(event.retry is None for event in events)
    assert events[-1].data == "[DONE]"
    chunks = [event.json() for event in events[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]) == ANSWER


# On a real model one request shows all at once; where it costs nothing, each by itself.
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "choices": {"n": 2},
    "logprobs": {"logprobs": True},
    "stop": {"stop": ", 2"},
    "usage": {"stream_options": {"include_usage": True}},
    "all": {"n": 2, "logprobs": True, "stop": ", 2", "stream_options": {"include_usage": True}},
}
SHAPES: Final = {
    "chat/completions": (CHAT_CHUNK, CHAT_ANSWER),
    "completions": (COMPLETION_CHUNK, COMPLETION_ANSWER),
}


@pytest.mark.parametrize("path", SHAPES)
async def test_every_chunk_and_answer_is_of_the_documented_shape(served: Served, path: str) -> None:
    for name, variant in VARIANTS.items():
        if name != "all" and not served.can(Ability.SCRIPT):
            continue
        body: dict[str, Any] = {**GREEDY, **variant}
        if path == "completions":
            body["prompt"] = served.prompt
            if "logprobs" in variant:
                body["logprobs"] = 2 if served.can(Ability.TOP_LOGPROBS) else 0
        else:
            body["messages"] = served.count
            if "logprobs" in variant and served.can(Ability.TOP_LOGPROBS):
                body["top_logprobs"] = 2
        await assert_shape(f"{served.url}/{path}", body, *SHAPES[path])


async def test_calls_and_thoughts_are_of_the_documented_shape(simulated: Served) -> None:
    call = '<tool_call>{"name": "look_up", "arguments": {"word": "Mühle"}}</tool_call>'
    parameters = {"type": "object", "properties": {"word": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "look_up", "parameters": parameters}}
    for text in (call, f"I look.{call}{call}", f"<think>A mill?</think>{call}", "<think>No.</think>Nothing."):
        body = {"model": TOOLS_MODEL, "messages": [{"role": "user", "content": written(text)}], "tools": [tool]}
        body |= {"max_tokens": 1000, "n": 2}
        await assert_shape(f"{simulated.url}/chat/completions", body, CHAT_CHUNK, CHAT_ANSWER)


async def assert_shape(
    url: str, body: dict[str, Any], chunk_shape: Draft202012Validator, answer_shape: Draft202012Validator
) -> None:
    """Assert that the streamed and the whole answer to `body` are what is documented, and in the documented order."""
    whole = {name: value for name, value in body.items() if name != "stream_options"}
    async with httpx.AsyncClient(timeout=40) as client:
        answer = (await client.post(url, json=whole)).raise_for_status().json()
    answer_shape.validate(answer)
    events, _, decoder = await raw_events(url, {**body, "stream": True})
    assert decoder.oddities == []
    assert events[-1] == "[DONE]"
    chunks = [json.loads(data) for data in events[:-1]]
    for chunk in chunks:
        chunk_shape.validate(chunk)
    assert all(("usage" in chunk) is ("stream_options" in body) for chunk in chunks)
    if "stream_options" in body:
        assert chunks[-1]["choices"] == []
        assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index, told in enumerate(answer["choices"]):
        own = [choice for choice in choices if choice["index"] == index]
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + [told["finish_reason"]]
        if "delta" in own[0]:
            assert [choice["delta"].get("role") for choice in own] == ["assistant", *[None] * (len(own) - 1)]
            assert own[-1]["delta"] == {}, "some clients drop the text of the chunk that ends"
            assert "".join(c["delta"].get("content") or "" for c in own) == (told["message"]["content"] or "")
        else:
            assert "".join(choice["text"] for choice in own) == told["text"]


async def test_characters_that_span_tokens_arrive_whole(simulated: Served) -> None:
    tokens = (r"\xe7\x8c", r"\xab", " ", r"\xf0\x9f", r"\x98\x80", "\u2028", "\r\n", "data: x\n\n", '"', "\\")
    body = {"model": MODEL, "messages": [{"role": "user", "content": scripted(*tokens)}], "stream": True}
    events, _, decoder = await raw_events(f"{simulated.url}/chat/completions", body)
    assert decoder.oddities == []
    text = "".join(json.loads(data)["choices"][0]["delta"].get("content", "") for data in events[:-1])
    assert text == '猫 \U0001f600\u2028\r\ndata: x\n\n"\\'


async def test_a_failure_is_the_last_event_and_not_followed_by_done(simulated: Served) -> None:
    prompt = scripted("a", "b", fault="error", fault_after=1)
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "stream": True}
    events, _, decoder = await raw_events(f"{simulated.url}/chat/completions", body)
    assert decoder.oddities == []
    ERROR.validate(json.loads(events[-1]))
    assert "[DONE]" not in events
    assert all("error" not in json.loads(data) for data in events[:-1])


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "chat/completions", b"{"),
        ("POST", "chat/completions", b'{"model": "default"}'),
        ("POST", "completions", b'{"model": "no-such-model", "prompt": "x"}'),
        ("POST", "responses", b'{"model": "default", "input": 1}'),
        ("GET", "chat/completions", b""),
        ("GET", "models/no-such-model", b""),
        ("GET", "no-such-path", b""),
    ],
)
async def test_every_error_is_of_the_documented_shape(simulated: Served, method: str, path: str, body: bytes) -> None:
    headers = {"content-type": "application/json"} if body else {}
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.request(method, f"{simulated.url}/{path}", content=body, headers=headers)
    assert answer.status_code in {400, 404, 405}
    ERROR.validate(answer.json())
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-request-id"]


async def test_silence_is_filled_with_comments_that_no_reader_sees(simulated: Served, tmp_path: Path) -> None:
    prompt = scripted("a", "b", token_ms=1000)
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "stream": True}
    with gateway(tmp_path, simulated.stack.service.port, heartbeat_s=0.1, status_hold_s=0.1) as hasty:
        url = f"http://127.0.0.1:{hasty.port}/v1"
        events, _, decoder = await raw_events(f"{url}/chat/completions", body)
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, timeout=10) as client:
            chunks = [chunk async for chunk in await client.chat.completions.create(**body)]
    assert decoder.oddities == []
    assert len(decoder.comments) > 2
    assert len(events) == len(chunks) + 1 == 5  # role, a, b, the end, and [DONE]
