"""One budget of time, from the head of a request to the calls behind it."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from tests.support.fake_service import HANG, Fail, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import CHAT, RawClient, chat_body, read_events, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat_body(),
    COMPLETIONS: {"model": "fake", "prompt": "hi"},
    RESPONSES: {"model": "fake", "input": "hi"},
}
DEADLINE, LIMIT = "request-timeout-ms", "time-limit-ms"
# The wire format of a deadline rounds up, by at most a millisecond or one in a hundred.
ROUNDING_S = 0.02
# A busy gateway reads a head later than it was sent, and counts from then.
LATE_S = 0.1


async def send_body_late(client: RawClient, path: str, body: dict[str, Any], late_s: float, **headers: str) -> None:
    raw = json.dumps(body).encode()
    await client.send("POST", path, raw[:5], {**headers, "content-length": str(len(raw))})
    await asyncio.sleep(late_s)  # the time that is to be counted
    client.writer.write(raw[5:])


@pytest.mark.parametrize("path", BODIES)
async def test_what_the_body_took_is_gone_from_the_deadline_and_the_time_limit(
    path: str, fake: FakeService, client: RawClient
) -> None:
    headers = {DEADLINE: "4000", LIMIT: "3000"}
    await send_body_late(client, path, BODIES[path], 0.3, **headers)
    assert (await client.response()).status == 200
    call = await fake.next_call()
    assert call.time_remaining_s is not None
    assert call.time_remaining_s <= 4 - 0.3 - 0.025 + ROUNDING_S + LATE_S
    assert call.request.time_limit.ToTimedelta().total_seconds() <= 3 - 0.3 + LATE_S


async def test_a_call_ends_before_the_callers_clock(fake: FakeService, client: RawClient) -> None:
    await client.post(chat_body(), headers={DEADLINE: "10000"})
    long_s = (await fake.next_call()).time_remaining_s
    await client.post(chat_body(), headers={DEADLINE: "200"})
    short_s = (await fake.next_call()).time_remaining_s
    assert long_s is not None
    assert short_s is not None
    assert long_s <= 9.975 * 1.01
    assert short_s <= 0.191


async def test_the_gateways_own_answer_comes_before_the_callers_clock_is_over(
    fake: FakeService, client: RawClient
) -> None:
    fake.will(started(), delta("a"), HANG)
    began_s = asyncio.get_running_loop().time()
    response = await client.post(chat_body(stream=True), headers={DEADLINE: "1000"})
    assert asyncio.get_running_loop().time() - began_s < 1.0
    assert json.loads(read_events(response.body)[-1])["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("path", [*BODIES, "/v1/tokenize", "/v1/detokenize"])
async def test_a_deadline_that_passes_while_the_body_comes_is_504_at_once_and_nothing_is_run(
    path: str, fake: FakeService, client: RawClient
) -> None:
    fake.forget()
    began_s = asyncio.get_running_loop().time()
    await client.send("POST", path, b"{", {DEADLINE: "150", "content-length": "100"})
    response = await client.response()
    assert asyncio.get_running_loop().time() - began_s < 1  # far from body_timeout_s
    assert (response.status, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert response.headers["x-should-retry"] == "false"
    assert fake.calls == []


async def test_a_body_that_is_late_in_itself_is_408_all_the_same() -> None:
    async with (
        fake_service() as fake,
        running_gateway(fake.address, body_timeout_s=0.1) as gateway,
        gateway.connect() as client,
    ):
        await client.send("POST", CHAT, b"{", {DEADLINE: "5000", "content-length": "100"})
        assert (await client.response()).status == 408


async def test_several_prompts_share_one_deadline_and_one_time_limit() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        go = asyncio.Event()
        for _ in range(4):  # as many as run at once
            fake.will(started(), delta("a"), go, finished(), completed())
        body = {"model": "fake", "prompt": ["a", "b", "c", "d", "e"]}
        await client.send("POST", COMPLETIONS, body, {DEADLINE: "5000", LIMIT: "3000"})
        first = [await fake.next_call() for _ in range(4)]
        await asyncio.sleep(0.3)  # the time that is to be counted
        go.set()
        assert (await client.response()).status == 200
        last = await fake.next_call()
        assert last.time_remaining_s is not None
        assert all((call.time_remaining_s or 0) - last.time_remaining_s > 0.25 for call in first)
        assert last.request.time_limit.ToTimedelta().total_seconds() < 2.71


async def test_the_fifth_prompt_of_a_request_whose_time_is_over_is_not_asked_for() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        for _ in range(4):
            fake.will(started(), delta("a"), HANG)
        body = {"model": "fake", "prompt": ["a", "b", "c", "d", "e"]}
        response = await client.post(body, COMPLETIONS, {DEADLINE: "2000"})
        assert (response.status, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert len(fake.calls) == 4


@pytest.mark.parametrize("path", BODIES)
async def test_a_time_limit_travels_and_is_not_there_without_its_header(
    path: str, fake: FakeService, client: RawClient
) -> None:
    fake.forget()
    await client.post(BODIES[path], path, {LIMIT: "1500"})
    limit_s = (await fake.next_call()).request.time_limit.ToTimedelta().total_seconds()
    assert 1.0 < limit_s <= 1.5
    await client.post(BODIES[path], path)
    assert not (await fake.next_call()).request.HasField("time_limit")


async def test_a_time_limit_that_the_service_refuses_is_named_as_its_header(
    fake: FakeService, client: RawClient
) -> None:
    violation = ("time_limit", "must be below the deadline")
    fake.will(Fail(code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD", violations=[violation]))
    error = (await client.post(chat_body(), headers={LIMIT: "5"})).json()["error"]
    assert error["param"] == "Time-Limit-Ms"
