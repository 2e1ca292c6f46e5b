"""Public bug reports about failures: statuses before a stream, errors within it, engines that break or fall silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import openai
import pytest
import pytest_asyncio

from tests.support.gateway_harness import read_events
from tests.support.http_stream import open_stream
from tests.support.report_replay import Answer, Played, Replay, replays, script, twin
from tests.support.service import eventually
from tests.support.tracing import install_exporter
from tests.support.triton_fake import Says

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = r"Traceback (most recent call last): File \"/opt/x.py\" CUDA error device-side assert"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replay() -> AsyncIterator[Replay]:
    async with replays() as running:
        yield running


async def failures(replay: Replay, played: Played, **members: object) -> list[Answer]:
    """Return what a failing generation is over HTTP streamed, HTTP whole, and gRPC; nothing may stay behind it."""
    answers = []
    for ask in (replay.stream, replay.whole, replay.call):
        answer = await ask(played, **members)
        assert answer.code is not None, "a failure must not look like an end"
        assert answer.finish_reasons == []
        answers.append(answer)
        await is_idle(replay)
    return answers


async def is_idle(replay: Replay) -> None:
    slots = replay.service.models["m"].slots
    await eventually(lambda: slots.running == slots.waiting == 0)
    await replay.gateway.wait_idle()


def assert_too_long(answers: list[Answer]) -> None:
    for answer in answers[:2]:
        assert answer.response is not None
        assert answer.status == 400
        assert answer.response.headers["content-type"] == "application/json"
        assert answer.response.headers["x-should-retry"] == "false"
        assert (answer.error["type"], answer.error["code"], answer.error["param"]) == (
            "invalid_request_error",
            "context_length_exceeded",
            "messages",
        )
    assert answers[2].failure is not None
    assert answers[2].failure.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answers[2].code == "CONTEXT_LENGTH_EXCEEDED"


@pytest.mark.report("D01", "D09")
async def test_a_prompt_over_the_limit_is_refused_before_the_engine_sees_it() -> None:
    async with replays(options={"max_context_tokens": 64}) as replay:
        replay.fake.prompt_tokens = 65
        answers = await failures(replay, '"never",FIN(eos)', messages=[{"role": "user", "content": "word " * 65}])
        assert_too_long(answers)
        assert replay.fake.requests == []


@pytest.mark.report("D01")
@pytest.mark.parametrize(
    "refusal",
    [
        'ERR(INVALID_ARGUMENT,"prompt length 9000 exceeds 8192")',
        'ERR("Prompt length (9000) exceeds maximum input length (8192).")',
        'ERR(INTERNAL,"Prompt length (9000) exceeds maximum input length (8192).")',
    ],
)
async def test_a_prompt_that_the_engine_refuses_as_too_long_is_a_400(replay: Replay, refusal: str) -> None:
    assert_too_long(await failures(replay, refusal))


@pytest.mark.report("D02")
@pytest.mark.parametrize("error", ['ERR(UNAVAILABLE,"backend gone")', 'ERR("backend gone")'])
async def test_an_error_within_a_stream_is_one_data_event_and_then_the_body_ends(replay: Replay, error: str) -> None:
    streamed, whole, called = await failures(replay, f'"par","tial",{error}')
    assert streamed.response is not None
    assert streamed.status == 200
    assert streamed.text == called.text == "partial"
    *_, last = read_events(streamed.response.body)
    assert json.loads(last).keys() == {"error"}
    assert {"message", "type", "code"} <= streamed.error.keys()
    assert streamed.response.body.endswith(b"\n\n")
    # Readers skip fields that they do not know: what is told stands in data.
    names = {line.partition(b":")[0] for line in streamed.response.body.split(b"\n") if line}
    assert names <= {b"id", b"data"}
    assert whole.status >= 500


@pytest.mark.report("D02")
async def test_the_sdk_raises_behind_the_text_that_came(replay: Replay) -> None:
    body = replay.will('"par","tial",ERR(UNAVAILABLE,"backend gone")')
    async with openai.AsyncOpenAI(base_url=f"{replay.gateway.url}/v1", api_key="k", max_retries=0) as client:
        text = ""
        with pytest.raises(openai.APIError):
            async for chunk in await client.chat.completions.create(**body, stream=True):
                text += chunk.choices[0].delta.content or ""
    assert text == "partial"


@pytest.mark.report("D04")
@pytest.mark.parametrize(("status_hold_s", "status"), [(15.0, 504), (0.05, 200)], ids=["held", "committed"])
async def test_a_stream_whose_turn_does_not_come_is_told_so(status_hold_s: float, status: int) -> None:
    async with replays(running=1, waiting=1, settings={"status_hold_s": status_hold_s}) as replay:
        body = replay.will('"x",HANG')
        async with open_stream(replay.gateway.port, body) as first:
            await first.until_text()
            waiting = asyncio.create_task(replay.post({**body, "stream": True}, request_timeout_ms="400"))
            slots = replay.service.models["m"].slots
            await eventually(lambda: slots.waiting == 1)
            # The line is full now.
            full = await replay.post({**body, "stream": True})
            assert (full.status, full.json()["error"]["code"]) == (503, "server_is_overloaded")
            assert full.headers["retry-after"] == "1"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await replay.service.generation.Generate(twin(body), timeout=5).read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            late = await waiting
            assert late.status == status
            error = json.loads(read_events(late.body)[-1] if status == 200 else late.body)["error"]
            assert error["code"] == "deadline_exceeded"
            assert b"[DONE]" not in late.body
            assert len(replay.fake.requests) == 1


@pytest.mark.report("D05")
@pytest.mark.parametrize("wire", ["http", "grpc"])
async def test_a_connection_that_breaks_within_an_answer_is_an_error_at_once(wire: str) -> None:
    words = [f"{number} " for number in range(40)]
    async with replays() as replay:
        ask = replay.stream if wire == "http" else replay.call
        answer = await ask(",".join(f'"{word}"' for word in words) + ",DROP@0.05")
        assert answer.code in ("backend_unavailable", "BACKEND_UNAVAILABLE")
        assert answer.finish_reasons == []
        assert answer.text == "".join(words)
        await is_idle(replay)


@pytest.mark.report("D05")
async def test_an_engine_that_falls_silent_is_an_error_and_is_stopped() -> None:
    async with replays(options={"token_gap_timeout_s": 0.2}) as replay:
        for answer in await failures(replay, '"t "x20,HANG'):
            assert answer.code in ("backend_unavailable", "BACKEND_UNAVAILABLE")
            assert answer.text in ("t " * 20, "")
        await replay.within(replay.fake.cancelled)
        await replay.within(replay.fake.stopped)


@pytest.mark.report("D05")
@pytest.mark.parametrize(
    "output",
    [
        ("INT32", [1, 1], b"\x01\x00\x00\x00"),
        ("FP32", [1, 1], b"\x00\x00\x00\x00"),
        ("BYTES", [1, 1], b"\xff\x00\x00\x00x"),
    ],
    ids=["number", "number that reads like no text", "cut"],
)
async def test_a_response_that_is_nonsense_ends_the_answer(
    replay: Replay, output: tuple[str, list[int], bytes]
) -> None:
    played = [
        *script('"t "x10').steps,
        Says(b"", outputs={"text_output": output}),
        *script('"u "x10,FIN(eos)').steps,
    ]
    streamed, whole, called = await failures(replay, played)
    assert streamed.text == called.text == "t " * 10
    assert (streamed.code, called.code) == ("backend_error", "BACKEND_ERROR")
    assert whole.status == 500


@pytest.mark.report("D07")
@pytest.mark.parametrize("error", [f'ERR(INTERNAL,"{SECRET}")', f'ERR("{SECRET}")'], ids=["status", "in the stream"])
async def test_what_an_engine_says_of_itself_stays_inside(replay: Replay, error: str) -> None:
    exporter = install_exporter()
    streamed, whole, called = await failures(replay, f'"a",{error}')
    assert streamed.text == called.text == "a"
    assert streamed.response is not None
    assert whole.response is not None
    assert called.failure is not None
    told = [streamed.response.body.decode(), whole.response.body.decode(), str(called.failure.error)]
    for text in told:
        for word in ("Traceback", "/opt/", "CUDA"):
            assert word not in text
    recorded = [str(span.to_json()) for span in exporter.get_finished_spans() if span.name == "chat m"]
    assert len(recorded) == 3
    assert all("CUDA" in span for span in recorded)


@pytest.mark.report("D09")
async def test_a_wedged_engine_costs_each_request_its_deadline_and_the_readiness() -> None:
    async with replays(health_interval_s=0.2, options={"canary_interval_s": 0}) as replay:
        async with replay.gateway.connect() as client:
            assert (await client.get("/readyz")).status == 200
            replay.fake.canary_script = None  # now the canaries hang as well
            body = replay.will("HANG")
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            response = await replay.post({**body, "stream": True}, request_timeout_ms="1000")
            assert response.status == 504
            assert response.json()["error"]["code"] == "deadline_exceeded"
            assert loop.time() - began_s == pytest.approx(1.0, abs=0.3)
            assert (await client.get("/readyz")).status == 503
            assert (await client.get("/healthz")).status == 200
            replay.fake.canary_script = script('"Hello",FIN').steps
            async with asyncio.timeout(5):
                while (await client.get("/readyz")).status != 200:  # each a round trip to the service
                    pass
        await is_idle(replay)
