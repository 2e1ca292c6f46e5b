"""The life of a generation as its caller, and whoever else knows its id, sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from headrace.v1 import generation_pb2
from headrace.v1.sampling_pb2 import SamplingParams
from service.backends.base import EngineItem, EngineRequest
from service.backends.simulator import SimulatorBackend
from service.generation.limits import Limits
from service.rpc.generation import DeadlinePolicy
from tests.support.metering import Metered, install_reader
from tests.support.service import (
    Failure,
    GenerateRequest,
    RunningService,
    eventually,
    running_service,
    script,
    simulated_model,
    text_of,
)

OUTPUT = generation_pb2.OutputOptions
LONG = SamplingParams(max_output_tokens=4096)


@pytest.fixture
def metered() -> Metered:
    return install_reader()


def request(prompt: str, **fields: Any) -> GenerateRequest:
    return GenerateRequest(model="sim", prompt=prompt, sampling=LONG, **fields)


async def rest(call: Any) -> list[generation_pb2.GenerateResponse]:
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


def kinds(events: list[generation_pb2.GenerateResponse]) -> list[str | None]:
    return [event.WhichOneof("event") for event in events]


async def generation_id(call: Any) -> str:
    metadata = dict(await call.initial_metadata())
    return str(metadata["x-generation-id"])


async def get(service: RunningService, id_: str, **call: Any) -> generation_pb2.GetGenerationResponse:
    return await service.generation.GetGeneration(
        generation_pb2.GetGenerationRequest(generation_id=id_), timeout=5, **call
    )


async def cancel(service: RunningService, id_: str, **call: Any) -> int:
    answer = await service.generation.CancelGeneration(
        generation_pb2.CancelGenerationRequest(generation_id=id_), timeout=5, **call
    )
    return int(answer.state)


@asynccontextmanager
async def blocked_model() -> AsyncIterator[RunningService]:
    """A service whose only slot is taken."""
    async with running_service(simulated_model(running=1)) as service:
        blocker = service.generation.Generate(request(script(token_ms=5)), timeout=30)
        await blocker.read()
        yield service
        blocker.cancel()


@asynccontextmanager
async def narrow(service: RunningService) -> AsyncIterator[Any]:
    """A stub whose connection takes 64 KiB ahead of its reader, and no more."""
    options = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options=options) as channel:
        yield type(service.generation)(channel)


def assert_free(service: RunningService) -> None:
    slots = service.models["sim"].slots
    assert (service.sim.running, slots.running, slots.waiting, service.server.drain.running) == (0, 0, 0, 0)


# CancelGeneration, GetGeneration


@pytest.mark.parametrize(
    ("phase", "prompt"),
    [
        ("prefill", script(prefill_ms=60_000)),
        ("decode", script(token_ms=5)),
        ("hold_back", script(tokens=["a", "EN"], output_tokens=2, fault="hang", fault_after=2)),
    ],
)
async def test_a_cancel_from_another_connection_ends_the_stream_with_what_was_made(
    service: RunningService, metered: Metered, phase: str, prompt: str
) -> None:
    stop = generation_pb2.GenerateRequest().stop.__class__(sequences=["END"])
    call = service.generation.Generate(request(prompt, stop=stop), timeout=20)
    first = [await call.read()]
    if phase != "prefill":
        first.append(await call.read())
    id_ = await generation_id(call)
    if phase == "hold_back":
        await asyncio.sleep(0.05)
    assert (await get(service, id_)).state == generation_pb2.GENERATION_STATE_RUNNING
    async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        other = type(service.generation)(channel)
        await other.CancelGeneration(generation_pb2.CancelGenerationRequest(generation_id=id_), timeout=5)
    events = first + await rest(call)
    assert await call.code() is grpc.StatusCode.OK
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert kinds(events)[-2:] == ["choice_finished", "completed"]
    assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_CANCELLED
    assert events[-1].completed.usage.output_token_count == {"prefill": 0, "hold_back": 2}.get(
        phase, events[-2].choice_finished.output_token_count
    )
    if phase == "hold_back":
        assert text_of(events) == "aEN", "what was held back is text now"
    await eventually(lambda: service.server.drain.running == 0)
    assert_free(service)
    state = await get(service, id_)
    assert state.state == generation_pb2.GENERATION_STATE_CANCELLED
    assert state.last_sequence == len(events)
    assert await cancel(service, id_) == generation_pb2.GENERATION_STATE_CANCELLED, "idempotent"
    metered.read()
    (point,) = metered.named("headrace.server.cancelled")
    assert dict(point.attributes) == {
        "gen_ai.request.model": "sim",
        "headrace.cancel.cause": "cancel_call",
        "headrace.cancel.phase": phase,
    }
    assert metered.sum("headrace.server.cancel.duration") == 1


async def test_a_cancel_in_the_line_ends_it_without_a_run() -> None:
    async with blocked_model() as service:
        call = service.generation.Generate(
            request(script(output_tokens=1), choice_count=1, output=OUTPUT(queue_events=True)), timeout=20
        )
        queued = await call.read()
        assert queued.queued.ahead_count == 0
        state = await get(service, queued.queued.generation_id)
        assert (state.state, state.ahead_count) == (generation_pb2.GENERATION_STATE_QUEUED, 0)
        await cancel(service, queued.queued.generation_id)
        events = [queued, *await rest(call)]
        assert kinds(events) == ["queued", "started", "choice_finished", "completed"]
        assert [event.sequence for event in events] == [1, 2, 3, 4]
        assert events[2].choice_finished.reason == generation_pb2.FINISH_REASON_CANCELLED
        assert service.models["sim"].slots.waiting == 0


async def test_a_cancel_while_nobody_reads_stops_the_engine(service: RunningService) -> None:
    async with narrow(service) as stub:
        call = stub.Generate(request(script(tokens=["x" * 1000])), timeout=20)
        await call.read()
        id_ = await generation_id(call)
        await asyncio.sleep(0.3)  # the transport's windows are full, and then the outbox
        await cancel(service, id_)
        await eventually(lambda: service.sim.running == 0)
        events = await rest(call)
    assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_CANCELLED


async def test_several_choices_are_all_cancelled(service: RunningService) -> None:
    call = service.generation.Generate(request(script(token_ms=5), choice_count=3), timeout=20)
    await call.read()
    await cancel(service, await generation_id(call))
    events = await rest(call)
    ends = [event.choice_finished for event in events if event.WhichOneof("event") == "choice_finished"]
    assert sorted(end.index for end in ends) == [0, 1, 2]
    assert {end.reason for end in ends} == {generation_pb2.FINISH_REASON_CANCELLED}


async def test_what_has_ended_stays_as_it_ended(service: RunningService) -> None:
    call = service.generation.Generate(request(script(output_tokens=2)), timeout=20)
    events = await rest(call)
    id_ = await generation_id(call)
    await eventually(lambda: service.server.drain.running == 0)
    assert await cancel(service, id_) == generation_pb2.GENERATION_STATE_COMPLETED
    state = await get(service, id_)
    assert (state.model, state.last_sequence) == ("sim", events[-1].sequence)
    assert state.usage.output_token_count == 2
    assert state.timing.total_duration.ToNanoseconds() > 0
    failed = service.generation.Generate(request(script(fault="error", fault_after=1, token_ms=10)), timeout=20)
    await failed.read()
    with pytest.raises(grpc.aio.AioRpcError):
        await rest(failed)
    id_ = await generation_id(failed)
    await eventually(lambda: service.server.drain.running == 0)
    state = await get(service, id_)
    assert state.state == generation_pb2.GENERATION_STATE_FAILED
    assert generation_pb2.headrace_dot_v1_dot_error__reason__pb2.ErrorReason.Name(state.failure_reason) == (
        "ERROR_REASON_BACKEND_ERROR"
    )


@pytest.mark.parametrize("id_", ["gen_000000000000000000000000", "", "nonsense", "x" * 10_000])
async def test_an_unknown_id_is_refused(service: RunningService, id_: str) -> None:
    for ask in (get, cancel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(service, id_)
        failure = Failure(refused.value, 0)
        expected = "GENERATION_NOT_FOUND" if id_ else "INVALID_FIELD"
        assert failure.info.reason == expected
        if not id_:
            assert failure.fields == ["generation_id"]


async def test_another_caller_s_generation_is_not_there(service: RunningService) -> None:
    mine, theirs = (("authorization", "Bearer mine"),), (("authorization", "Bearer theirs"),)
    call = service.generation.Generate(request(script(token_ms=5)), timeout=20, metadata=mine)
    await call.read()
    id_ = await generation_id(call)
    for metadata in (theirs, ()):
        for ask in (get, cancel):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(service, id_, metadata=metadata)
            assert Failure(refused.value, 0).info.reason == "GENERATION_NOT_FOUND"
    assert await cancel(service, id_, metadata=mine) == generation_pb2.GENERATION_STATE_CANCELLED
    await rest(call)


# The waiting line


async def test_a_waiting_caller_is_told_its_place_and_the_wait() -> None:
    async with running_service(simulated_model(running=1)) as service:
        blockers = [service.generation.Generate(request(script(prefill_ms=300, output_tokens=1)), timeout=20)]
        await blockers[0].read()
        blockers += [service.generation.Generate(request(script(output_tokens=1)), timeout=20) for _ in range(2)]
        pending = [asyncio.ensure_future(rest(call)) for call in blockers]
        await eventually(lambda: service.models["sim"].slots.waiting == 2)
        asked = request(script(output_tokens=1), output=OUTPUT(queue_events=True))
        events = await service.events(asked)
        assert kinds(events)[0] == "queued"
        assert events[0].queued.ahead_count == 2
        assert kinds(events)[-1] == "completed"
        started = next(event.started for event in events if event.WhichOneof("event") == "started")
        assert started.generation_id == events[0].queued.generation_id
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        await asyncio.gather(*pending)


async def test_a_request_that_need_not_wait_has_no_queued_event(service: RunningService) -> None:
    events = await service.events(request(script(output_tokens=1), output=OUTPUT(queue_events=True)))
    assert kinds(events) == ["started", "delta", "choice_finished", "completed"]


async def test_the_longest_wait_for_a_slot_is_bounded_and_says_when_to_come_back(metered: Metered) -> None:
    async with running_service(simulated_model(running=1), limits=Limits(queue_s=0.2)) as service:
        blocker = service.generation.Generate(request(script(token_ms=5)), timeout=30)
        await blocker.read()
        failure = await service.failure(request("hi"))
        assert (failure.code, failure.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_TIMEOUT")
        assert failure.info.metadata["priority"] == "interactive"
        assert int(failure.trailer("grpc-retry-pushback-ms") or 0) > 0
        assert failure.received == 0
        blocker.cancel()


# Deadlines


# As wide as a busy machine needs it: the caller's clock runs from before its request is sent.
EARLY = DeadlinePolicy(margin_s=0.5, margin_share=0.5)


async def test_the_caller_is_told_why_before_its_own_clock_runs_out() -> None:
    async with running_service(deadlines=EARLY) as service:
        failure = await service.failure(request(script(token_ms=10)), timeout=1.0)
        assert (failure.code, failure.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_IN_DECODE")
        assert failure.info.metadata["lastSequence"] == str(failure.received)


async def test_the_time_to_stop_counts_from_the_deadline_on(metered: Metered) -> None:
    class SlowToStop(SimulatorBackend):
        async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
            try:
                async for item in super().generate(request):
                    yield item
            finally:
                await asyncio.sleep(0.2)

    async with running_service(simulated_model(backend=SlowToStop()), deadlines=EARLY) as service:
        await service.failure(request(script(token_ms=10)), timeout=1.0)
        await eventually(lambda: service.server.drain.running == 0)
    metered.read()
    (point,) = metered.named("headrace.server.cancel.duration")
    assert point.attributes["headrace.cancel.cause"] == "deadline"
    assert point.sum >= 0.2


async def test_the_caller_in_the_line_is_told_so_too() -> None:
    async with running_service(simulated_model(running=1), deadlines=EARLY) as service:
        blocker = service.generation.Generate(request(script(token_ms=5)), timeout=30)
        await blocker.read()
        failure = await service.failure(request("hi"), timeout=1.0)
        assert failure.info.reason == "DEADLINE_IN_QUEUE"
        blocker.cancel()


async def test_what_is_left_of_the_budget_reaches_the_engine_less_a_margin() -> None:
    policy = DeadlinePolicy()
    assert policy.apply(100.0) == pytest.approx(99.95)
    assert policy.apply(0.2) == pytest.approx(0.19)
    assert policy.apply(None) == 600.0


async def test_a_deadline_that_nobody_met_lately_is_refused_until_somebody_meets_it() -> None:
    async with running_service() as service:
        slow, quick = request(script(prefill_ms=1500, output_tokens=1)), request(script(output_tokens=1))
        await asyncio.gather(*(service.events(slow) for _ in range(16)))
        failures = await asyncio.gather(*(service.failure(slow, timeout=0.4) for _ in range(50)))
        assert {failure.code for failure in failures} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        # Of a call whose deadline passed on a busy client, the server's own words do not arrive.
        told = [failure for failure in failures if failure.details]
        refused = [failure for failure in told if failure.info.reason == "DEADLINE_TOO_SHORT"]
        assert 25 < len(refused) < 50, "a few are let in, by lot"
        assert int(refused[0].info.metadata["firstTokenMs"]) >= 750
        assert refused[0].info.metadata["queueMs"] == "0"
        async with asyncio.timeout(10):
            while True:
                try:
                    await service.events(quick, timeout=0.4)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.1)
                else:
                    break
        failure = await service.failure(slow, timeout=0.4)
        while not failure.details:
            failure = await service.failure(slow, timeout=0.4)
        assert failure.info.reason == "DEADLINE_IN_DECODE"


async def test_a_time_limit_while_nobody_reads_ends_with_partial_text(service: RunningService) -> None:
    asked = request(script(tokens=["x" * 1000]), time_limit=duration_pb2.Duration(nanos=400_000_000))
    async with narrow(service) as stub:
        call = stub.Generate(asked, timeout=20)
        await call.read()
        await eventually(lambda: service.sim.running == 0)
        events = await rest(call)
    assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_TIME_LIMIT
    assert events[-1].completed.usage.output_token_count == events[-2].choice_finished.output_token_count


# Slow readers


async def test_the_engine_is_free_before_a_slow_reader_has_everything(service: RunningService) -> None:
    call = service.generation.Generate(request(script(tokens=["word "] * 8, output_tokens=4000)), timeout=20)
    await call.read()
    await eventually(lambda: service.sim.running == 0 and service.models["sim"].slots.running == 0)
    events = await rest(call)
    assert text_of(events) == "word " * 4000
    assert await call.code() is grpc.StatusCode.OK


async def test_what_waits_for_a_slow_reader_is_joined_and_complete(service: RunningService) -> None:
    asked = request(
        script(tokens=["ab ", "c"], output_tokens=3000), output=OUTPUT(token_ids=True, logprobs=True, top_logprobs=1)
    )
    call = service.generation.Generate(asked, timeout=20)
    events = [await call.read()]
    await asyncio.sleep(0.2)
    events += await rest(call)
    deltas = [event.delta for event in events if event.WhichOneof("event") == "delta"]
    assert len(deltas) < 3000, "some were joined"
    assert "".join(delta.text for delta in deltas) == "ab c" * 1500
    assert [i for delta in deltas for i in delta.token_ids] == [
        logprob.token_id for delta in deltas for logprob in delta.logprobs
    ]
    assert b"".join(logprob.raw_bytes for delta in deltas for logprob in delta.logprobs) == b"ab c" * 1500
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_a_frozen_reader_is_given_up_when_its_share_is_full(metered: Metered) -> None:
    async with running_service(limits=Limits(reader_s=30, room_s=0.3)) as service, narrow(service) as stub:
        call = stub.Generate(request(script(tokens=["x" * 1000])), timeout=20)
        await call.read()
        await eventually(lambda: service.sim.running == 1)
        await eventually(lambda: service.server.drain.running == 0)
        assert_free(service)
        with pytest.raises(grpc.aio.AioRpcError) as dropped:
            await rest(call)
        assert Failure(dropped.value, 0).info.reason == "CONSUMER_TOO_SLOW"
    metered.read()
    (point,) = metered.named("headrace.server.cancelled")
    assert point.attributes["headrace.cancel.cause"] == "slow_reader"
    assert point.attributes["headrace.cancel.phase"] == "write"


# Every origin leaves nothing behind


@pytest.mark.parametrize("origin", ["cancel", "deadline", "connection"])
@pytest.mark.parametrize(
    ("phase", "prompt"),
    [
        ("queued", ""),
        ("prefill", script(prefill_ms=60_000)),
        ("decode", script(token_ms=5)),
        ("write", script(tokens=["x" * 1000])),
        ("hold_back", script(tokens=["a", "EN"], fault="hang", fault_after=2)),
    ],
)
async def test_an_end_by_the_caller_is_counted_once_with_its_phase(
    metered: Metered, origin: str, phase: str, prompt: str
) -> None:
    async with running_service(simulated_model(running=1)) as service:
        blocker = None
        if phase == "queued":
            blocker = service.generation.Generate(request(script(token_ms=5)), timeout=30)
            await blocker.read()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options=[("grpc.http2.bdp_probe", 0)])
        asked = request(prompt or "hi")
        asked.stop.sequences.append("END")
        call = type(service.generation)(channel).Generate(asked, timeout=0.6 if origin == "deadline" else 20)
        reading = asyncio.ensure_future(call.read())
        if phase == "queued":
            await eventually(lambda: service.models["sim"].slots.waiting == 1)
        elif phase != "prefill":
            await reading
            await call.read()
            if phase == "write":
                await asyncio.sleep(0.3)  # the transport's windows fill
        else:
            await reading
        if origin == "cancel":
            call.cancel()
        elif origin == "connection":
            await channel.close()
        running = 1 if blocker is not None else 0
        await eventually(lambda: service.server.drain.running == running)
        if blocker is not None:
            blocker.cancel()
            await eventually(lambda: service.server.drain.running == 0)
        assert_free(service)
        metered.read()
        points = [
            point
            for point in metered.named("headrace.server.cancelled")
            if point.attributes["headrace.cancel.phase"] == phase
        ]
        cause = "deadline" if origin == "deadline" else "client"
        assert [(point.value, point.attributes["headrace.cancel.cause"]) for point in points] == [(1, cause)]
        assert metered.sum("headrace.server.requests.active") == 0
        await channel.close()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_cancel_behind_the_last_token_counts_as_completed_in_the_engine(metered: Metered) -> None:
    """The engine has ended, its slot is free, and only the reader is missing."""
    async with running_service(limits=Limits(unsent_bytes=10_000_000, unsent_events=10_000)) as service:
        async with narrow(service) as stub:
            call = stub.Generate(request(script(tokens=["x" * 1000], output_tokens=1000)), timeout=20)
            await call.read()
            await eventually(lambda: service.sim.running == 1)
            await eventually(lambda: service.sim.running == 0)
            call.cancel()
            await eventually(lambda: service.server.drain.running == 0)
        assert_free(service)
    metered.read()
    assert [point.attributes["headrace.cancel.phase"] for point in metered.named("headrace.server.cancelled")] == [
        "completed"
    ]
