"""A generation that somebody stops by its id: what its HTTP caller is told, and how it is recorded."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from headrace import AsyncClient
from headrace.v1 import generation_pb2 as gen
from tests.support.fake_service import HANG, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import CHAT, RawClient, chat_body, read_events, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat_body(),
    COMPLETIONS: {"model": "fake", "prompt": "hi"},
    RESPONSES: {"model": "fake", "input": "hi"},
}
STOPPED: Sequence[gen.GenerateResponse] = (started(), delta("a"), finished("CANCELLED"), completed())


def told(error: dict[str, Any]) -> tuple[str, str | None]:
    return error["type"], error["code"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_whole_answer_is_499_and_not_to_be_repeated(path: str, fake: FakeService, client: RawClient) -> None:
    fake.will(*STOPPED)
    response = await client.post(BODIES[path], path)
    assert (response.status, response.headers["x-should-retry"]) == (499, "false")
    assert told(response.json()["error"]) == ("server_error", "cancelled")
    assert "CancelGeneration" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_ends_with_an_error_and_no_end(path: str, fake: FakeService, client: RawClient) -> None:
    fake.will(*STOPPED)
    response = await client.post({**BODIES[path], "stream": True}, path)
    *chunks, last = [json.loads(data) for data in read_events(response.body)]
    assert told(last["error"]) == ("server_error", "cancelled")
    assert not any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])


async def test_a_streamed_response_fails_and_its_numbers_have_no_gap(fake: FakeService, client: RawClient) -> None:
    fake.will(*STOPPED)
    response = await client.post({**BODIES[RESPONSES], "stream": True}, RESPONSES)
    events = [json.loads(data) for data in read_events(response.body)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    error, failed = events[-2:]
    assert (error["type"], error["code"]) == ("error", "cancelled")
    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "server_error")


async def test_choices_that_had_ended_do_not_make_it_an_answer(fake: FakeService, client: RawClient) -> None:
    fake.will(started(), delta("a"), finished(), delta("b", 1), finished("CANCELLED", 1), completed())
    assert (await client.post(chat_body(n=2))).status == 499


async def test_the_other_prompts_of_its_request_are_cancelled_at_once() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        fake.will(started(), delta("a"), HANG)
        fake.will(*STOPPED[:-1], HANG)
        response = await client.post({"model": "fake", "prompt": ["a", "b"]}, COMPLETIONS)
        assert response.status == 499
        for call in fake.calls:
            await call.wait_cancelled()


async def test_the_best_of_several_is_no_answer_either(fake: FakeService, client: RawClient) -> None:
    fake.will(started(), delta("a"), finished("CANCELLED"), delta("b", 1), finished("CANCELLED", 1), completed())
    response = await client.post({"model": "fake", "prompt": "a", "best_of": 2}, COMPLETIONS)
    assert response.status == 499


async def test_a_stop_by_another_connection_reaches_the_stream_and_is_recorded_as_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway.requests")
    async with (
        fake_service() as fake,
        running_gateway(fake.address) as gateway,
        gateway.connect() as client,
        AsyncClient(fake.address) as operator,
    ):
        fake.will(started(generation_id="gen-7"), delta("a"), HANG)
        await client.send("POST", CHAT, chat_body(stream=True))
        call = await fake.next_call()
        await client.head()
        await client.piece()
        await operator.cancel_generation("gen-7")
        rest = b""
        while piece := await client.piece():
            rest += piece
        assert told(json.loads(read_events(rest)[-1])["error"]) == ("server_error", "cancelled")
        await gateway.wait_idle()
        assert not call.cancelled.is_set()  # it was read to its end
    (line,) = [record.__dict__ for record in caplog.records if record.name == "gateway.requests"]
    assert (line["outcome"], line["reason"], line["output_tokens"]) == ("cancelled", "CANCELLED_BY_CALL", 2)
