"""Streams that are continued over HTTP, where they have ended, failed or were never this request's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import AsyncClient
from tests.contract.test_gateway_resume import (
    COMPLETIONS,
    ENDLESS,
    KEY,
    KEY_ARGUMENT,
    PROMPT,
    RESPONSES,
    WHOLE,
    beginning,
    chat,
    completion,
    frames,
    get,
    ids,
    post,
    responses,
    served,
)
from tests.support.gateway_harness import CHAT, RawResponse, RunningGateway, running_gateway
from tests.support.service import eventually, running_service, script, simulated_model

KEPT = {"retain_for_ms": "60000"}
LONG_PROMPTS = [script(tokens=["a"], output_tokens=3), script(tokens=["b"], output_tokens=3)]


def events_of(event_id: str) -> str:
    return f"/v1/generations/{event_id.partition(':')[0]}/events"


async def seen_by_an_event_source(gateway: RunningGateway, path: str, last: str | None) -> list[RawResponse]:
    """Return what an EventSource gets, which comes back until it is told not to by a status."""
    answers: list[RawResponse] = []
    while not answers or answers[-1].status == 200:
        assert len(answers) < 4, answers
        answers.append(await get(gateway, path, **({} if last is None else {"last_event_id": last})))
        last = next(reversed(ids(answers[-1].body)), last)
    return answers


def assert_is_refused(answer: RawResponse, code: str = "invalid_value") -> None:
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["param"]) == (400, code, "Last-Event-ID"), error


# Read by id


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(stream_options={"include_usage": True})),
        (COMPLETIONS, completion(stream_options={"include_usage": True})),
        (COMPLETIONS, completion(stream_options={"include_usage": True}, echo=True)),
    ],
)
async def test_a_stream_with_its_usage_is_read_by_its_id(path: str, body: dict[str, Any]) -> None:
    async with served() as (_, gateway):
        whole = await post(gateway, path, body, **KEY_ARGUMENT)
        read = await get(gateway, events_of(ids(whole.body)[0]))
        assert read.status == 200
        assert frames(read.body) == frames(whole.body)
        assert b'"usage":{' in read.body


# An EventSource stops


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(ENDLESS)),
        (COMPLETIONS, completion(ENDLESS, max_tokens=1000)),
        (COMPLETIONS, completion(ENDLESS, max_tokens=1000, echo=True)),
        (RESPONSES, responses(ENDLESS)),
    ],
)
async def test_an_event_source_stops_behind_a_cancel(path: str, body: dict[str, Any]) -> None:
    async with served() as (service, gateway):
        async with gateway.connect() as client:
            await client.send("POST", path, body, KEY)
            first = await beginning(client, 5)
            begun_at = ids(first)[0]
            async with gateway.connect() as other:
                await other.post(b"", events_of(begun_at).replace("/events", "/cancel"))
            rest = b""
            while piece := await client.piece():
                rest += piece
        await eventually(lambda: service.sim.running == 0)
        last = ids(first + rest)[-1]
        over = await get(gateway, events_of(last), last_event_id=last)
        assert (over.status, over.body) == (204, b"")
        behind, end = await seen_by_an_event_source(gateway, events_of(last), begun_at)
        assert b'"cancelled"' in behind.body.replace(b" ", b"")
        assert end.status == 204
        repeated = await post(gateway, path, body, last_event_id=last)
        assert (repeated.status, repeated.json()["error"]["code"]) == (499, "cancelled")


async def test_the_status_of_what_is_over_waits_for_all_of_it() -> None:
    prompt = script(tokens=["a"], output_tokens=400, fault="error", fault_after=400)
    async with (
        running_service(simulated_model()) as service,
        running_gateway(f"127.0.0.1:{service.port}", status_hold_s=0.001, heartbeat_s=0.001) as gateway,
    ):
        failed = await post(gateway, CHAT, chat(prompt, max_tokens=500), **KEPT)
        last = ids(failed.body)[-1]
        answer = await get(gateway, events_of(last), last_event_id=last)
        assert (answer.status, answer.json()["error"]["code"]) == (500, "backend_error")


async def test_an_event_source_stops_behind_one_that_nobody_read_and_that_was_stopped() -> None:
    async with served(reattach_s=0.05) as (service, gateway):
        async with gateway.connect() as client:
            await client.send("POST", CHAT, chat(ENDLESS), KEY)
            first = await beginning(client, 2)
            client.reset()
        await eventually(lambda: service.sim.running == 0)
        answers = await seen_by_an_event_source(gateway, events_of(ids(first)[0]), ids(first)[-1])
        assert answers[-1].status != 200


@pytest.mark.parametrize("fault_after", [1, 3])
async def test_an_event_source_stops_behind_a_failure(fault_after: int) -> None:
    async with served() as (_, gateway):
        prompt = script(tokens=["a"], fault="error", fault_after=fault_after)
        failed = await post(gateway, CHAT, chat(prompt), **KEPT)
        seen = ids(failed.body)
        for last in (None, seen[0], seen[-1]):
            answers = await seen_by_an_event_source(gateway, events_of(seen[0]), last)
            assert answers[-1].status == 500
            assert answers[-1].json()["error"]["code"] == "backend_error"


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_one_that_ended_before_its_first_token_is_told_by_its_status(*, is_cancelled: bool) -> None:
    async with served() as (service, gateway), AsyncClient(f"127.0.0.1:{service.port}") as client:
        prompt = script(tokens=["a"], prefill_ms=800, fault="none" if is_cancelled else "error")
        asked = asyncio.create_task(post(gateway, CHAT, chat(prompt), **KEY_ARGUMENT))
        await eventually(lambda: service.sim.running == 1)
        named = (await client.get_generation(idempotency_key="k1")).generation_id
        if is_cancelled:
            await client.cancel_generation(named)
        await asked
        path = f"/v1/generations/{named}/events"
        seen = [await seen_by_an_event_source(gateway, path, last) for last in (None, f"{named}:1")]
        statuses = [[answer.status for answer in answers] for answers in seen]
        assert statuses == ([[499], [204]] if is_cancelled else [[500], [500]])


async def test_a_response_that_failed_before_its_first_token_is_told_by_its_status() -> None:
    async with served() as (_, gateway):
        failed = await post(gateway, RESPONSES, responses(script(fault="error", prefill_ms=50)), **KEPT)
        last = ids(failed.body)[-1]
        answers = await seen_by_an_event_source(gateway, events_of(last), None)
        assert [answer.status for answer in answers] == [200, 500]


@pytest.mark.parametrize(("members", "streams"), [({"echo": True}, True), ({"best_of": 3, "n": 2}, False)])
async def test_what_the_gateway_numbers_itself_ends_where_its_last_event_is(
    members: dict[str, Any], *, streams: bool
) -> None:
    async with served() as (service, gateway):
        prompt = script(tokens=["a", "b"], output_tokens=6)
        body = completion(prompt, **members, stream=streams, max_tokens=6)
        answer = await post(gateway, COMPLETIONS, body, **KEY_ARGUMENT)
        named = ids(answer.body)[0].partition(":")[0] if streams else answer.json()["id"].removeprefix("cmpl-")
        whole = (await get(gateway, f"/v1/generations/{named}/events")).body
        seen = ids(whole)
        for place, event_id in enumerate(seen[:-1]):
            rest = await get(gateway, events_of(event_id), last_event_id=event_id)
            assert (rest.status, frames(rest.body)) == (200, frames(whole)[place + 1 :])
        over = await get(gateway, events_of(seen[-1]), last_event_id=seen[-1])
        assert (over.status, over.body) == (204, b"")
        far = await get(gateway, events_of(seen[-1]), last_event_id=f"{named}:500")
        assert_is_refused(far)
        assert service.sim.started == members.get("best_of", 1)  # the engine runs each candidate


# A repeated request says which stream is its own


async def test_a_repeated_request_with_an_event_that_has_not_been_is_refused() -> None:
    async with served() as (_, gateway):
        whole = await post(gateway, CHAT, chat(), **KEY_ARGUMENT)
        named, _, last = ids(whole.body)[-1].partition(":")
        assert_is_refused(await post(gateway, CHAT, chat(), last_event_id=f"{named}:{int(last) + 1}"))
        rest = await post(gateway, CHAT, chat(), last_event_id=f"{named}:{last}")
        assert (rest.status, rest.body) == (200, b"")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, completion()),
        (RESPONSES, responses()),
        (CHAT, chat(n=2)),
        (COMPLETIONS, completion(LONG_PROMPTS)),
    ],
)
async def test_another_requests_stream_is_not_continued(path: str, body: dict[str, Any]) -> None:
    async with served() as (service, gateway):
        whole = await post(gateway, CHAT, chat(), **KEPT)
        refused = await post(gateway, path, body, last_event_id=ids(whole.body)[3])
        assert_is_refused(refused)
        assert "another request's stream" in refused.json()["error"]["message"]
        assert service.sim.started == 1


async def test_a_key_and_an_event_of_two_generations_are_refused() -> None:
    async with served() as (service, gateway):
        one = await post(gateway, CHAT, chat(), idempotency_key="one")
        await post(gateway, CHAT, chat(ENDLESS, max_tokens=5), idempotency_key="two")
        at = ids(one.body)[3]
        assert_is_refused(await post(gateway, CHAT, chat(), idempotency_key="two", last_event_id=at))
        for key in ("one", "unknown"):
            rest = await post(gateway, CHAT, chat(), idempotency_key=key, last_event_id=at)
            assert frames(rest.body) == frames(one.body)[4:]
        assert service.sim.started == 2


async def test_the_rest_has_the_shape_that_the_stream_was_begun_with() -> None:
    async with served() as (_, gateway):
        body = chat(stream_options={"include_usage": True}, logprobs=True)
        whole = await post(gateway, CHAT, body, **KEPT)
        rest = await post(gateway, CHAT, chat(), last_event_id=ids(whole.body)[3])
        assert frames(rest.body) == frames(whole.body)[4:]


async def test_a_stream_of_what_was_begun_as_a_whole_answer_goes_on_as_its_reader_asked() -> None:
    async with served() as (service, gateway):
        await post(gateway, CHAT, chat(stream=False), **KEY_ARGUMENT)
        body = chat(stream_options={"include_usage": True})
        whole = await post(gateway, CHAT, body, **KEY_ARGUMENT)
        rest = await post(gateway, CHAT, body, last_event_id=ids(whole.body)[3], **KEY_ARGUMENT)
        assert frames(rest.body) == frames(whole.body)[4:]
        assert b'"usage":{' in rest.body
        assert service.sim.started == 1


async def test_an_echo_too_long_to_be_kept_goes_on_as_the_repetition_says() -> None:
    async with served() as (_, gateway):
        body = completion("x" * 70_000, echo=True, max_tokens=5)
        whole = await post(gateway, COMPLETIONS, body, **KEPT)
        rest = await post(gateway, COMPLETIONS, body, last_event_id=ids(whole.body)[-3])
        assert frames(rest.body) == frames(whole.body)[-2:]


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"retain_for_ms": "1000"}, ["Retain-For-Ms"]),
        ({"continue_on_disconnect": "true", **KEY_ARGUMENT}, ["Continue-On-Disconnect"]),
        ({"continue_on_disconnect": "true", "retain_for_ms": "1"}, ["Retain-For-Ms", "Continue-On-Disconnect"]),
    ],
)
async def test_several_prompts_are_not_retained_and_that_is_said(headers: dict[str, str], named: list[str]) -> None:
    async with served() as (service, gateway):
        refused = await post(gateway, COMPLETIONS, completion(LONG_PROMPTS), **headers)
        error = refused.json()["error"]
        assert (refused.status, error["code"], error["param"]) == (400, "unsupported_value", named[0])
        assert all(f"'{name}'" in error["message"] for name in named)
        assert service.sim.started == 0
        kept_by_key = await post(gateway, COMPLETIONS, completion(LONG_PROMPTS), **KEY_ARGUMENT)
        assert kept_by_key.status == 200


async def test_one_prompt_in_a_list_is_retained() -> None:
    async with served() as (_, gateway):
        streamed = await post(gateway, COMPLETIONS, completion([PROMPT]), **KEPT)
        read = await get(gateway, events_of(ids(streamed.body)[0]))
        assert read.body == streamed.body
        assert WHOLE.split()[-1].encode() in read.body
