"""Replays of public bug reports: clients that leave, deadlines and silence, from the HTTP connection to Triton."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.context import Context

from service.generation.limits import Limits
from service.rpc.call import CallRecord
from tests.support.gateway_harness import CHAT, RawClient, read_events
from tests.support.report_replay import R0, Replay, replays, script, twin
from tests.support.service import eventually
from tests.support.triton_fake import Do, Final, Says

# Far longer than anything here may take: who waits for the end of it has failed.
ENDLESS = '"t "@0.05,' * 500 + "FIN(eos)"
LEAVE = {"FIN": RawClient.leave, "RST": RawClient.reset}


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged as an error, but by the fake Triton's own server."""
    texts = [record.getMessage() for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]
    return [text for text in texts if "/inference." not in text]


async def is_idle(replay: Replay) -> None:
    """Wait until nobody holds anything any more: gateway, service, slots, Triton."""
    await replay.gateway.wait_idle()
    model = replay.service.models["m"]
    await eventually(lambda: not (model.slots.running or replay.service.server.drain.running or replay.fake.running))


@pytest.mark.report("H01")
@pytest.mark.parametrize("how", ["FIN", "RST", "gRPC"])
async def test_a_client_that_leaves_a_stream_frees_the_only_slot_for_the_next(how: str) -> None:
    async with replays(running=1) as replay, replay.gateway.connect() as client:
        body = replay.will(ENDLESS)
        if how == "gRPC":
            call = replay.service.generation.Generate(twin(body), timeout=60)
            for _ in range(4):
                await call.read()
        else:
            await client.send("POST", CHAT, {**body, "stream": True})
            await client.head()
            for _ in range(3):
                await client.piece()
        replay.fake.script = script('"ok",FIN(eos)').steps
        written, left_s = replay.fake.sent[0], time.monotonic()
        call.cancel() if how == "gRPC" else LEAVE[how](client)
        async with asyncio.timeout(5):
            answer = await replay.post(R0)
        assert answer.json()["choices"][0]["message"]["content"] == "ok"
        await is_idle(replay)
        assert replay.fake.cancelled_at_s[0] - left_s < 2
        assert replay.fake.sent[0] - written <= 25


@pytest.mark.report("H03")
@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_token_is_seen_through_the_middleware(
    how: str, *, stream: bool
) -> None:
    async with (
        replays(settings={"cors_origins": ["https://chat.example"]}) as replay,
        replay.gateway.connect() as client,
    ):
        body = replay.will("HANG")
        await client.send("POST", CHAT, {**body, "stream": stream}, {"origin": "https://chat.example"})
        await replay.within(replay.fake.received, 5)
        LEAVE[how](client)
        await replay.within(replay.fake.cancelled, 5)
        await is_idle(replay)


@pytest.mark.report("H05")
@pytest.mark.parametrize("wire", ["gRPC", "HTTP"])
async def test_a_deadline_ends_the_answer_and_the_work_behind_it(wire: str) -> None:
    async with replays() as replay:
        notation, limit_s = '"a"@0.1,"b"@20,FIN(eos)', 0.7
        began_s = time.monotonic()
        if wire == "gRPC":
            call, text = replay.service.generation.Generate(twin(replay.will(notation)), timeout=limit_s), ""
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                async for event in call:
                    text += event.delta.text
            assert (failed.value.code(), text) == (grpc.StatusCode.DEADLINE_EXCEEDED, "a")
        else:
            body = replay.will(notation, {"stream": True})
            response = await replay.post(body, request_timeout_ms=str(round(limit_s * 1000)))
            assert response.status == 200
            assert b'"content":"a"' in response.body
            assert b'"code": "deadline_exceeded"' in response.body
            assert b"[DONE]" not in response.body
        # The caller's clock began before and the servers' after the request was sent.
        assert limit_s - 0.1 <= time.monotonic() - began_s < limit_s + 2
        given_s = replay.fake.timeouts_s[-1]
        assert given_s is not None
        assert 0 < given_s <= limit_s
        await replay.within(replay.fake.cancelled, 5)
        await is_idle(replay)


@pytest.mark.report("H05")
async def test_a_deadline_that_is_nearly_over_never_reaches_triton_and_none_becomes_the_servers() -> None:
    async with replays() as replay:
        body = replay.will('"a",FIN(eos)')
        response = await replay.post(body, request_timeout_ms="1")
        assert (response.status, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replay.service.generation.Generate(twin(body), timeout=0.001).read()
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await is_idle(replay)
        assert replay.fake.requests == []
        async for _ in replay.service.generation.Generate(twin(body), timeout=None):
            pass
        given_s = replay.fake.timeouts_s[-1]
        assert given_s is not None
        assert 590 < given_s <= 600


@pytest.mark.report("H05")
@pytest.mark.parametrize(
    ("passed_s", "budget_s", "outcome"),
    [
        # gRPC sends 12.31 s as 12.4 s; the client cancels when its own clock says so.
        (12.31, 12.4, "deadline_exceeded"),
        (0.495, 0.5, "deadline_exceeded"),
        (6.0, 12.4, "client_cancelled"),
        (0.3, 0.5, "client_cancelled"),
    ],
)
def test_a_client_whose_own_deadline_passed_is_told_from_one_that_left(
    passed_s: float, budget_s: float, outcome: str
) -> None:
    received_s = time.monotonic() - passed_s
    call = CallRecord("/method", "r1", received_s, trace.INVALID_SPAN, Context(), deadline_s=received_s + budget_s)
    call.note(asyncio.CancelledError())
    assert call.outcome == outcome
    assert call.status == ("DEADLINE_EXCEEDED" if outcome == "deadline_exceeded" else "CANCELLED")


@pytest.mark.report("H06")
async def test_two_hundred_closed_streams_that_ignore_the_half_close_leave_no_thread_and_no_task() -> None:
    async with replays() as replay:
        body = replay.will('"a",HANG')

        async def leave() -> None:
            call = replay.service.generation.Generate(twin(body), timeout=60)
            await call.read()
            await call.read()
            call.cancel()

        await leave()
        await is_idle(replay)
        before = (threading.active_count(), len(asyncio.all_tasks()))
        for _ in range(20):
            await asyncio.gather(*(leave() for _ in range(10)))
        await is_idle(replay)
        await eventually(lambda: len(replay.fake.cancelled_at_s) == 201)
        await eventually(lambda: len(asyncio.all_tasks()) <= before[1])
        assert threading.active_count() <= before[0] + 2


@pytest.mark.report("H07")
async def test_streams_that_fall_silent_are_given_up_and_a_slow_one_is_not() -> None:
    async with replays(limits=Limits(token_gap_s=0.6)) as replay:
        body = replay.will('"a",HANG')
        answers = await asyncio.gather(*(replay.post({**body, "stream": True}) for _ in range(20)))
        for answer in answers:
            assert b'"content":"a"' in answer.body
            assert json.loads(read_events(answer.body)[-1])["error"]["code"] == "token_gap_timeout"
        await is_idle(replay)
        assert len(replay.fake.cancelled_at_s) == 20
        slow = await replay.stream('"t"@0.25,' * 6 + "FIN(eos)")
        assert (slow.text, slow.code) == ("tttttt", None)


def ends(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the ids and the outcomes of the generations that the service has logged."""
    lines = [record.__dict__ for record in caplog.records if record.name == "headrace.request"]
    return [(line["request_id"], line["outcome"]) for line in lines]


@pytest.mark.report("H09")
@pytest.mark.parametrize("by", ["cancel", "deadline"])
async def test_a_cancel_or_deadline_that_meets_the_end_has_one_outcome(
    by: str, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, at_once, round_s = 6, 40, 0.4
    caplog.set_level("INFO", "headrace.request")
    async with replays(running=64) as replay:
        request, loop, chance = twin(R0), asyncio.get_running_loop(), random.Random(7)
        codes: set[str] = set()
        begun: set[str] = set()  # whose first event has come: the service surely knows them

        async def one(request_id: str, end_s: float) -> None:
            # A few milliseconds around the end.
            at_s = end_s + chance.uniform(-0.01, 0.02)
            timeout_s = at_s - loop.time() if by == "deadline" else 60
            metadata = (("x-request-id", request_id),)
            call = replay.service.generation.Generate(request, timeout=timeout_s, metadata=metadata)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await call.read()
                begun.add(request_id)
                if by == "cancel":
                    loop.call_at(at_s, call.cancel)
                while await call.read() is not grpc.aio.EOF:
                    pass
            codes.add((await call.code()).name)

        for turn in range(rounds):
            gate, end_s = asyncio.Event(), loop.time() + round_s
            replay.fake.script = (Says(b"a"), Says(b"b"), Do(gate.wait), Final())
            loop.call_at(end_s, gate.set)
            await asyncio.gather(*(one(f"{turn}-{number}", end_s) for number in range(at_once)))
        await is_idle(replay)
        await eventually(lambda: begun <= {request_id for request_id, _ in ends(caplog)})
        assert len(begun) > at_once // 4  # of a busy machine; of an idle one, nearly all
        assert len(ends(caplog)) == len(dict(ends(caplog))), "somebody's end was told twice"
        assert codes <= {"OK", "CANCELLED" if by == "cancel" else "DEADLINE_EXCEEDED"}
        # On a busy machine more can lie between both clocks than the server allows for.
        possible = {"completed", "client_cancelled"} | (
            {"deadline_exceeded", "rejected"} if by == "deadline" else set()
        )
        assert {outcome for _, outcome in ends(caplog)} <= possible
        assert (await replay.stream('"ok",FIN(eos)')).text == "ok"
    assert errors(caplog) == []
