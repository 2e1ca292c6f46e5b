"""Replays of public bug reports: where a decoupled answer of Triton ends, and which ids requests go by."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.gateway_harness import CHAT, read_events
from tests.support.report_replay import R0, replays, script, twin
from tests.support.service import eventually

# Bound of what would otherwise never end.
AT_ONCE_S = 5.0


@pytest.mark.report("I01")
async def test_the_end_is_the_final_flag_that_was_asked_for_and_not_the_end_of_the_stream() -> None:
    async with replays() as replay, asyncio.timeout(3 * AT_ONCE_S):
        replay.fake.is_strict = replay.fake.is_kept_open = True
        for answer in await replay.everywhere('"a","b",FIN(eos)'):
            assert (answer.text, answer.finish_reasons) == ("ab", ["stop"])
        assert replay.fake.half_closed == [True] * 3
        await eventually(lambda: not replay.fake.running)


@pytest.mark.report("I03")
@pytest.mark.parametrize(
    ("notation", "text", "tokens"),
    [('"",FIN(eos)', "", 1), ('FIN+""', "", 1), ('"",""," ",FIN(eos)', " ", 3)],
)
async def test_an_answer_without_text_is_an_answer(notation: str, text: str, tokens: int) -> None:
    async with replays() as replay, asyncio.timeout(3 * AT_ONCE_S):
        streamed, _, _ = await replay.everywhere(notation)
        assert (streamed.text, streamed.finish_reasons, streamed.output_tokens) == (text, ["stop"], tokens)
        assert streamed.deltas == ([text] if text else [])
        assert streamed.response is not None
        assert read_events(streamed.response.body)[-1] == "[DONE]"


@pytest.mark.report("I03")
async def test_an_end_without_any_output_is_told_at_once_and_not_taken_for_an_answer() -> None:
    """This is how Triton answers a request that it lost an input of: silence would hide it, and so would an answer."""
    async with replays() as replay, asyncio.timeout(3 * AT_ONCE_S):
        for answer in (await replay.stream("FIN(eos)"), await replay.whole("FIN(eos)")):
            assert (answer.status, answer.code) == (500, "backend_error")
        assert (await replay.call("FIN(eos)")).code == "BACKEND_ERROR"


@pytest.mark.report("I04")
async def test_two_hundred_requests_at_once_have_two_hundred_ids_in_triton() -> None:
    async with replays(running=200) as replay:
        replay.fake.is_strict = True
        body = replay.will('"a"@0.2,"b",FIN(eos)')
        requests = [replay.post({**body, "stream": bool(number % 2)}) for number in range(200)]
        answers = await asyncio.gather(*requests)
        assert [answer.status for answer in answers] == [200] * 200
        assert not any(b'"error"' in answer.body for answer in answers)
        assert len({request.id for request in replay.fake.requests}) == 200


@pytest.mark.report("I04")
async def test_a_retry_right_behind_a_cancel_has_an_id_of_its_own() -> None:
    async with replays() as replay:
        replay.fake.is_strict = True
        for number in range(20):
            body = replay.will('"a",HANG')
            call = replay.service.generation.Generate(twin(body), metadata=(("x-request-id", "same"),), timeout=20)
            for _ in range(2):
                await call.read()
            replay.fake.script = script('"ok",FIN(eos)').steps
            call.cancel()
            retry = await replay.post(body, x_request_id="same")
            assert retry.json()["choices"][0]["message"]["content"] == "ok", number


@pytest.mark.report("I04")
async def test_an_id_that_triton_says_is_in_use_is_unavailable_and_never_an_empty_answer() -> None:
    async with replays() as replay:
        notation = 'ERR("requestId 8 is already in progress, request is ignored.")'
        answer = await replay.stream(notation)
        assert (answer.status, answer.code) == (503, "backend_unavailable")
        assert answer.response is not None
        assert answer.response.headers["x-should-retry"] == "true"
        # The gateway has tried again by then, each time with another id.
        assert len({request.id for request in replay.fake.requests}) == len(replay.fake.requests) > 1
        assert (await replay.call(notation)).code == "BACKEND_UNAVAILABLE"


@pytest.mark.report("I06")
async def test_two_requests_with_one_id_at_the_same_time_are_two_requests() -> None:
    async with replays() as replay:
        replay.fake.is_strict = True
        body = replay.will('"a"@0.2,"b"@0.2,FIN(eos)')
        metadata = (("x-request-id", "same"),)

        async def call() -> str:
            events = replay.service.generation.Generate(twin(body), metadata=metadata, timeout=20)
            return "".join([event.delta.text async for event in events])

        first, second, *texts = await asyncio.gather(
            replay.post(body, x_request_id="same"), replay.post(body, x_request_id="same"), call(), call()
        )
        for answer in (first, second):
            assert answer.headers["x-request-id"] == "same"
            assert answer.json()["choices"][0]["message"]["content"] == "ab"
        assert texts == ["ab", "ab"]
        assert len({request.id for request in replay.fake.requests}) == 4
        assert "same" not in {request.id for request in replay.fake.requests}


@pytest.mark.report("I06")
@pytest.mark.parametrize(
    ("given", "status"),
    [("a" * 128, 200), ("a" * 129, 200), ("with space", 200), ("caf\xe9", 200), ("a%0d%0ab", 200), ("a" * 2**20, 431)],
    ids=["longest", "too long", "space", "not ASCII", "escapes", "a megabyte"],
)
async def test_an_id_of_the_caller_comes_back_if_it_is_sane(given: str, status: int) -> None:
    async with replays() as replay, replay.gateway.connect() as client:
        replay.will('"a",FIN(eos)')
        await client.send("POST", CHAT, {**R0, "stream": True}, {"x-request-id": given})
        response = await client.response()
        assert response.status == status
        is_echoed = given in ("a" * 128, "a%0d%0ab")
        assert (response.headers["x-request-id"] == given) is is_echoed
        assert is_echoed or response.headers["x-request-id"].startswith("req_")
        # Nowhere but in the header, so that no chunk grows with it.
        assert given.encode() not in response.body
