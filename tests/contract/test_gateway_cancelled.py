"""A generation that somebody stops by its id, as the gateway sees and records it."""

import json
import logging
from typing import Any

import pytest

from headrace import AsyncClient
from tests.support.fake_service import HANG, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import CHAT, RawClient, chat_body, read_events, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


def told(error: dict[str, Any]) -> tuple[str, str | None]:
    return error["type"], error["code"]


async def test_the_best_of_several_is_no_answer_either(fake: FakeService, client: RawClient) -> None:
    fake.will(started(), delta("a"), finished("CANCELLED"), delta("b", 1), finished("CANCELLED", 1), completed())
    response = await client.post({"model": "fake", "prompt": "a", "best_of": 2}, "/v1/completions")
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
