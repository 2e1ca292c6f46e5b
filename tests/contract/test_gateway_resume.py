"""Keys and streams that go on, over HTTP: a real service behind a real gateway, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI

from service.retention.policy import RetentionLimits
from tests.support.gateway_harness import CHAT, RawClient, RawResponse, RunningGateway, read_events, running_gateway
from tests.support.relay import relay
from tests.support.service import RunningService, eventually, running_service, script, simulated_model

COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
TOKENS = [f"{number} " for number in range(40)]
WHOLE = "".join(TOKENS)
PROMPT = script(tokens=TOKENS, output_tokens=40, token_ms=5)
ENDLESS = script(tokens=["e"], token_ms=5)
KEY = {"idempotency-key": "k1"}
KEY_ARGUMENT = {"idempotency_key": "k1"}


@asynccontextmanager
async def served(**retention: Any) -> AsyncIterator[tuple[RunningService, RunningGateway]]:
    limits = RetentionLimits(**retention)
    async with (
        running_service(simulated_model(), retention=limits) as service,
        running_gateway(f"127.0.0.1:{service.port}") as gateway,
    ):
        yield service, gateway


def chat(prompt: str = PROMPT, **members: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": prompt}], "stream": True, **members}


def completion(prompt: Any = PROMPT, **members: Any) -> dict[str, Any]:
    return {"model": "sim", "prompt": prompt, "stream": True, "max_tokens": 60, **members}


def responses(prompt: str = PROMPT, **members: Any) -> dict[str, Any]:
    return {"model": "sim", "input": prompt, "stream": True, **members}


BODIES = [
    (CHAT, chat()),
    (CHAT, chat(stream_options={"include_usage": True}, logprobs=True)),
    (COMPLETIONS, completion()),
    (COMPLETIONS, completion(echo=True)),
    (RESPONSES, responses(instructions="Be short.")),
]


async def post(gateway: RunningGateway, path: str, body: Any, **headers: str) -> RawResponse:
    async with gateway.connect() as client:
        return await client.post(body, path, {name.replace("_", "-"): value for name, value in headers.items()})


async def get(gateway: RunningGateway, path: str, **headers: str) -> RawResponse:
    async with gateway.connect() as client:
        return await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def frames(body: bytes) -> list[bytes]:
    return [frame + b"\n\n" for frame in body.replace(b": ping\n", b"").split(b"\n\n")[:-1]]


def ids(body: bytes) -> list[str]:
    return [line[4:].decode() for line in body.split(b"\n") if line.startswith(b"id: ")]


async def beginning(client: RawClient, pieces: int) -> bytes:
    """Return the first pieces of a stream whose request was sent."""
    head = await client.head()
    assert head.status == 200, head
    return b"".join([await client.piece() for _ in range(pieces)])


# The same key


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_the_same_key_gives_the_same_bytes_and_runs_once(path: str, body: dict[str, Any]) -> None:
    async with served() as (service, gateway):
        answers = await asyncio.gather(*(post(gateway, path, body, idempotency_key="k1") for _ in range(10)))
        answers.append(await post(gateway, path, body, idempotency_key="k1"))
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body.replace(b": ping\n", b"") for answer in answers}) == 1
        assert service.sim.started == 1


async def test_streamed_and_whole_answers_share_a_key() -> None:
    async with served() as (service, gateway):
        streamed = await post(gateway, CHAT, chat(), **KEY_ARGUMENT)
        whole = await post(gateway, CHAT, chat(stream=False), **KEY_ARGUMENT)
        again = await post(gateway, CHAT, chat(stream=False), **KEY_ARGUMENT)
        assert whole.json()["choices"][0]["message"]["content"] == WHOLE
        assert whole.body == again.body
        replayed = [answer.headers.get("idempotent-replayed") for answer in (streamed, whole, again)]
        assert replayed == [None, "true", "true"]
        assert whole.json()["id"].encode() in streamed.body
        assert service.sim.started == 1


async def test_another_request_with_the_key_is_422_and_not_to_be_repeated() -> None:
    async with served() as (_, gateway):
        await post(gateway, CHAT, chat(), **KEY_ARGUMENT)
        refused = await post(gateway, CHAT, chat("something else"), **KEY_ARGUMENT)
        assert (refused.status, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
        assert refused.headers["x-should-retry"] == "false"


async def test_a_time_limit_is_not_what_a_request_is() -> None:
    async with served() as (service, gateway):
        for limit in ("5000", "6000"):
            answer = await post(gateway, CHAT, chat(), time_limit_ms=limit, **KEY_ARGUMENT)
            assert answer.status == 200
        assert service.sim.started == 1


async def test_several_prompts_run_once_each() -> None:
    async with served() as (service, gateway):
        body = completion([script(tokens=["a"], output_tokens=3), script(tokens=["b"], output_tokens=3)], stream=False)
        first, second = [await post(gateway, COMPLETIONS, body, **KEY_ARGUMENT) for _ in range(2)]
        assert [choice["text"] for choice in first.json()["choices"]] == ["aaa", "bbb"]
        assert first.json()["choices"] == second.json()["choices"]
        assert service.sim.started == 2


async def test_the_official_sdk_repeats_without_running_twice() -> None:
    async with served() as (service, gateway):
        client = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)
        async with client:
            texts = set()
            for _ in range(2):
                stream = await client.chat.completions.create(
                    model="sim",
                    messages=[{"role": "user", "content": PROMPT}],
                    stream=True,
                    extra_headers={"Idempotency-Key": "sdk"},
                )
                texts.add("".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]))
        assert texts == {WHOLE}
        assert service.sim.started == 1


async def test_the_official_sdks_own_retry_joins_what_its_first_try_began() -> None:
    async with served() as (service, gateway), relay(f"127.0.0.1:{gateway.port}") as between:
        client = AsyncOpenAI(base_url=f"http://{between.address}/v1", api_key="k", max_retries=2)

        async def cut_the_first() -> None:
            await eventually(lambda: service.sim.running == 1)
            await between.cut()

        async with client:
            cutting = asyncio.create_task(cut_the_first())
            answer = await client.chat.completions.create(
                model="sim",
                messages=[{"role": "user", "content": PROMPT}],
                extra_headers={"Idempotency-Key": "sdk"},
            )
            await cutting
        assert answer.choices[0].message.content == WHOLE
        assert service.sim.started == 1


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"idempotency_key": "k" * 129}, ["Idempotency-Key"]),
        ({"idempotency_key": "two words", "retain_for_ms": "soon"}, ["Idempotency-Key", "Retain-For-Ms"]),
        ({"continue_on_disconnect": "perhaps"}, ["Continue-On-Disconnect"]),
        ({"retain_for_ms": "-1"}, ["Retain-For-Ms"]),
        ({"retain_for_ms": "999999999"}, ["Retain-For-Ms"]),
    ],
)
async def test_wrong_headers_are_named_all_at_once(headers: dict[str, str], named: list[str]) -> None:
    async with served() as (service, gateway):
        refused = await post(gateway, CHAT, chat(), **headers)
        error = refused.json()["error"]
        assert (refused.status, error["param"]) == (400, named[0])
        assert all(name in error["message"] for name in named)
        assert service.sim.started == 0


# Streams that go on


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_repeated_request_goes_on_behind_any_event(path: str, body: dict[str, Any]) -> None:
    async with served() as (service, gateway):
        whole = (await post(gateway, path, body, **KEY_ARGUMENT)).body
        seen = ids(whole)
        assert len(set(seen)) == len(seen)
        assert seen[0].startswith("gen_")
        for at in random.Random(3).sample(range(len(seen)), 12):
            rest = await post(gateway, path, body, last_event_id=seen[at], **KEY_ARGUMENT)
            assert rest.status == 200
            expected = b"".join(frames(whole)[_place(whole, seen[at]) + 1 :])
            assert b"".join(frames(rest.body)) == expected
        assert service.sim.started == 1


def _place(body: bytes, event_id: str) -> int:
    return next(at for at, frame in enumerate(frames(body)) if frame.startswith(f"id: {event_id}\n".encode()))


async def test_the_id_alone_is_enough_and_a_browser_can_use_it() -> None:
    async with served() as (service, gateway):
        async with gateway.connect() as client:
            await client.send("POST", CHAT, chat(), KEY)
            first = await beginning(client, 5)
            client.reset()
        last = ids(first)[-1]
        generation_id = last.partition(":")[0]
        rest = await post(gateway, CHAT, chat(), last_event_id=last)
        assert _text(first + rest.body) == WHOLE
        for named in (generation_id, f"chatcmpl-{generation_id}"):
            again = await get(gateway, f"/v1/generations/{named}/events", last_event_id=last)
            assert again.headers["content-type"].startswith("text/event-stream")
            assert again.body == rest.body
            assert (await get(gateway, f"/v1/generations/{named}/events")).body.startswith(first)
        end = ids(rest.body)[-1]
        over = await get(gateway, f"/v1/generations/{generation_id}/events", last_event_id=end)
        assert (over.status, over.body) == (204, b"")
        assert service.sim.started == 1


def _text(body: bytes) -> str:
    documents = [json.loads(data) for data in read_events(body) if data != "[DONE]"]
    assert not any("error" in document for document in documents)
    return "".join(d["choices"][0]["delta"].get("content") or "" for d in documents if d.get("choices"))


async def test_a_thousand_drops_leave_no_gap_over_http() -> None:
    tokens = [f"{number} " for number in range(300)]
    prompt = script(tokens=tokens, output_tokens=300, token_ms=4)
    async with served() as (service, gateway):

        async def reader(seed: int) -> str:
            lots, body = random.Random(seed), b""
            request = chat(prompt, max_tokens=300)
            for _ in range(50):
                headers = {**KEY, "last-event-id": ids(body)[-1]} if body else KEY
                async with gateway.connect() as client:
                    await client.send("POST", CHAT, request, headers)
                    await client.head()
                    for _ in range(lots.randint(0, 10)):
                        piece = await client.piece()
                        if not piece:
                            return _text(body)
                        body += piece
                    client.reset()
            rest = await post(gateway, CHAT, request, idempotency_key="k1", last_event_id=ids(body)[-1])
            return _text(body + rest.body)

        texts = await asyncio.gather(*(reader(seed) for seed in range(20)))
        assert set(texts) == {"".join(tokens)}
        assert service.sim.started == 1


async def test_the_gateway_dies_in_the_middle_and_another_one_goes_on() -> None:
    async with running_service(simulated_model()) as service:
        target = f"127.0.0.1:{service.port}"
        async with running_gateway(target) as gateway, gateway.connect() as client:
            await client.send("POST", CHAT, chat(), KEY)
            first = await beginning(client, 5)
            client.reset()
        async with running_gateway(target) as gateway:
            rest = await post(gateway, CHAT, chat(), idempotency_key="k1", last_event_id=ids(first)[-1])
        assert _text(first + rest.body) == WHOLE
        assert service.sim.started == 1


async def test_a_failure_that_was_read_is_told_by_its_status() -> None:
    async with served() as (_, gateway):
        prompt = script(tokens=["a"], fault="error", fault_after=3)
        failed = await post(gateway, CHAT, chat(prompt), **KEY_ARGUMENT)
        last = ids(failed.body)[-1]
        path = f"/v1/generations/{last.partition(':')[0]}/events"
        again = await get(gateway, path, last_event_id=last)
        assert (again.status, again.json()["error"]["code"]) == (500, "backend_error")


@pytest.mark.parametrize(
    ("last", "code"),
    [("12", "stream_not_kept"), ("nonsense", "invalid_value"), ("gen_0123:99999999999", "invalid_value")],
)
async def test_a_last_event_id_that_leads_nowhere_is_refused_and_nothing_runs(last: str, code: str) -> None:
    async with served() as (service, gateway):
        refused = await post(gateway, CHAT, chat(), last_event_id=last)
        error = refused.json()["error"]
        assert (refused.status, error["code"], error["param"]) == (400, code, "Last-Event-ID")
        assert service.sim.started == 0


async def test_streams_that_are_not_kept_have_plain_ids() -> None:
    async with served() as (_, gateway):
        streamed = await post(gateway, CHAT, chat())
        assert ids(streamed.body)[0] == "2.1"


async def test_what_is_gone_or_has_not_been_is_told() -> None:
    async with served(retain_s=0.2) as (_, gateway):
        streamed = await post(gateway, CHAT, chat(), **KEY_ARGUMENT)
        generation_id, _, last = ids(streamed.body)[-1].partition(":")
        path = f"/v1/generations/{generation_id}/events"
        ahead = await get(gateway, path, last_event_id=f"{generation_id}:{int(last) + 1}")
        assert (ahead.status, ahead.json()["error"]["code"]) == (400, "invalid_value")
        other = await get(gateway, path, last_event_id="gen_other:1")
        assert other.status == 400
        await asyncio.sleep(0.3)
        gone = await get(gateway, path)
        assert (gone.status, gone.json()["error"]["code"]) == (404, "generation_not_found")
        rest = await post(gateway, CHAT, chat(), last_event_id=f"{generation_id}:3")
        assert (rest.status, rest.json()["error"]["code"]) == (404, "generation_not_found")


@pytest.mark.parametrize("path", ["", "/events"])
async def test_ids_that_are_none_and_those_of_others_look_alike(path: str) -> None:
    async with served() as (_, gateway):
        streamed = await post(gateway, CHAT, chat(), authorization="Bearer alice", **KEY_ARGUMENT)
        generation_id = ids(streamed.body)[0].partition(":")[0]
        told = set()
        for named in (generation_id, "gen_0123456789abcdef01234567"):
            refused = await get(gateway, f"/v1/generations/{named}{path}", authorization="Bearer bob")
            told.add((refused.status, refused.body))
        assert len(told) == 1
        assert (await get(gateway, "/v1/generations/nonsense")).status == 404


# By its id


async def test_state_and_cancel_by_the_id_of_the_answer() -> None:
    async with served() as (service, gateway):
        async with gateway.connect() as client:
            await client.send("POST", CHAT, chat(ENDLESS), KEY)
            first = await beginning(client, 3)
            generation_id = ids(first)[0].partition(":")[0]
            state = (await get(gateway, f"/v1/generations/chatcmpl-{generation_id}")).json()
            assert (state["id"], state["status"], state["model"]) == (generation_id, "in_progress", "sim")
            assert state["first_sequence"] == 1
            async with gateway.connect() as other:
                stopped = await other.post(b"", f"/v1/generations/{generation_id}/cancel")
            assert (stopped.status, stopped.json()["status"]) == (200, "cancelled")
            last = b""
            while piece := await client.piece():
                last = piece
            assert b'"code":"cancelled"' in last.replace(b" ", b"")
        await eventually(lambda: service.sim.running == 0)
        state = (await get(gateway, f"/v1/generations/{generation_id}")).json()
        assert state["status"] == "cancelled"
        assert state["usage"]["completion_tokens"] > 0


async def test_a_client_that_leaves_for_good_stops_its_generation_after_a_while() -> None:
    async with served(reattach_s=0.2) as (service, gateway):
        async with gateway.connect() as client:
            await client.send("POST", CHAT, chat(ENDLESS), KEY)
            await beginning(client, 2)
            client.reset()
        await asyncio.sleep(0.1)
        assert service.sim.running == 1
        await eventually(lambda: service.sim.running == 0)


async def test_one_that_goes_on_is_there_for_whoever_comes_back() -> None:
    async with served(reattach_s=0.05) as (_, gateway):
        async with gateway.connect() as client:
            await client.send("POST", CHAT, chat(), {"continue-on-disconnect": "true", "retain-for-ms": "20000"})
            first = await beginning(client, 2)
            client.reset()
        await asyncio.sleep(0.5)
        generation_id = ids(first)[0].partition(":")[0]
        state = (await get(gateway, f"/v1/generations/{generation_id}")).json()
        assert state["status"] == "completed"
        assert state["expires_at"] > state["created"]
        assert _text((await get(gateway, f"/v1/generations/{generation_id}/events")).body) == WHOLE
