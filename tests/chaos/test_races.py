"""Races that storms found, each made to happen: whoever ends a generation, and whenever, its reader is told an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from opentelemetry.context import Context

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from service.backends.base import EngineItem, EngineRequest
from service.backends.simulator import SimulatorBackend
from service.catalog.model import Model
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.events import Completed, FinishReason
from service.core.timing import StreamClock
from service.generation.limits import Limits
from service.generation.live import LiveGeneration
from service.generation.run import Generation
from service.generation.watch import Cause, Phase, Watch
from service.rpc.convert import request_from_proto
from service.rpc.reader import ReaderWatch
from service.telemetry.trace import GenerationTrace
from tests.support.service import Failure, RunningService, eventually, running_service, script, simulated_model

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(30)]

# Far beyond what any of these takes: a call that ends with it was told nothing.
TIMEOUT_S = 6.0
LIMIT_S = 0.3


class SlowToStop(SimulatorBackend):
    """Needs a while to let go of a run, as an engine does that has to be asked. `is_stopping` is set meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopping = asyncio.Event()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        try:
            async for item in super().generate(request):
                yield item
        finally:
            self.is_stopping.set()
            await asyncio.sleep(2 * LIMIT_S)


async def cancel(service: RunningService, generation_id: str) -> None:
    await service.generation.CancelGeneration(gen.CancelGenerationRequest(generation_id=generation_id), timeout=2)


async def rest_of(call: Any) -> list[str]:
    """Return the kinds of the events that still come."""
    kinds = []
    while (event := await call.read()) is not grpc.aio.EOF:
        kinds.append(event.WhichOneof("event"))
    return kinds


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("by", ["a cancel", "its time limit"])
async def test_a_generation_that_is_ended_while_the_engine_stops_at_a_stop_string_ends_well(
    by: str, choices: int
) -> None:
    backend = SlowToStop()
    async with running_service(simulated_model("sim", backend=backend)) as service:
        request = gen.GenerateRequest(
            model="sim", prompt=script(tokens=["a", "STOP"], token_ms=100), sampling={"max_output_tokens": 100}
        )
        request.stop.sequences.append("STOP")
        request.choice_count = choices
        if by == "its time limit":
            request.time_limit.FromNanoseconds(round(LIMIT_S * 1e9))
        call = service.generation.Generate(request, timeout=TIMEOUT_S)
        started = (await call.read()).started
        await backend.is_stopping.wait()
        if by == "a cancel":
            await cancel(service, started.generation_id)
        kinds = await rest_of(call)
        assert kinds[-1] == "completed"
        assert kinds.count("choice_finished") == choices


async def test_a_cancel_behind_a_time_limit_ends_a_generation_whose_reader_holds_it_up() -> None:
    async with running_service(limits=Limits(reader_s=TIMEOUT_S, room_s=TIMEOUT_S)) as service:
        request = gen.GenerateRequest(
            model="sim", prompt=script(tokens=["x" * 2000]), sampling={"max_output_tokens": 4000}
        )
        request.time_limit.FromNanoseconds(round(LIMIT_S * 1e9))
        # Without the probe of the bandwidth a reader that has stopped holds 64 KiB, and not some MB.
        options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options=options) as channel:
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=TIMEOUT_S)
            started = (await call.read()).started
            await asyncio.sleep(2 * LIMIT_S)  # the limit passes, and nothing tells it to who does not read
            await cancel(service, started.generation_id)
            assert (await rest_of(call))[-2:] == ["choice_finished", "completed"]


async def test_the_last_sequence_of_a_failure_is_that_of_the_last_event_that_came() -> None:
    async with running_service(limits=Limits(reader_s=LIMIT_S, room_s=LIMIT_S)) as service:
        request = gen.GenerateRequest(
            model="sim", prompt=script(tokens=["x" * 2000]), sampling={"max_output_tokens": 4000}
        )
        call = service.generation.Generate(request, timeout=TIMEOUT_S)
        last = (await call.read()).sequence
        await asyncio.sleep(3 * LIMIT_S)  # reads nothing for longer than it may
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            while (event := await call.read()) is not grpc.aio.EOF:
                last = event.sequence
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert Failure(failure.value, last).info.metadata["lastSequence"] == str(last)


class FailsAndIsSlowToStop(SlowToStop):
    """Of a generation's runs the first one fails when it may; the others are slow to stop."""

    def __init__(self) -> None:
        super().__init__()
        self._has_first = False
        self.may_fail = asyncio.Event()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        if not self._has_first:
            self._has_first = True
            await self.may_fail.wait()
            raise ServiceError(Reason.BACKEND_ERROR, "The engine failed.")
        async for item in super().generate(request):
            yield item


@pytest.mark.parametrize("by", ["a cancel", "its time limit"])
async def test_a_generation_that_is_ended_while_a_failed_engine_stops_tells_that_it_failed(by: str) -> None:
    backend = FailsAndIsSlowToStop()
    async with running_service(simulated_model("sim", backend=backend)) as service:
        request = gen.GenerateRequest(model="sim", prompt=script(token_ms=20), choice_count=2)
        if by == "its time limit":
            request.time_limit.FromNanoseconds(round(LIMIT_S * 1e9))
        call = service.generation.Generate(request, timeout=TIMEOUT_S)
        started = (await call.read()).started
        backend.may_fail.set()
        await backend.is_stopping.wait()
        if by == "a cancel":
            await cancel(service, started.generation_id)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rest_of(call)
        assert Failure(failure.value, 0).info.reason == "BACKEND_ERROR"


async def test_a_cancel_when_the_engine_has_ended_changes_nothing_and_says_so() -> None:
    async with running_service(limits=Limits(unsent_bytes=10_000_000, unsent_events=10_000)) as service:
        request = gen.GenerateRequest(
            model="sim", prompt=script(tokens=["x" * 1000], output_tokens=1000), sampling={"max_output_tokens": 4000}
        )
        options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options=options) as channel:
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=TIMEOUT_S)
            started = (await call.read()).started
            await eventually(lambda: service.models["sim"].slots.running == 0)
            answer = await service.generation.CancelGeneration(
                gen.CancelGenerationRequest(generation_id=started.generation_id), timeout=2
            )
            assert answer.state == gen.GENERATION_STATE_RUNNING
            assert (await rest_of(call))[-2:] == ["choice_finished", "completed"]


async def test_a_waiting_reader_of_one_event_at_a_time_is_not_taken_for_a_slow_one() -> None:
    limits = Limits(unsent_events=1, room_s=LIMIT_S)
    async with running_service(simulated_model(running=1), limits=limits) as service:
        blocker = service.generation.Generate(gen.GenerateRequest(model="sim", prompt=script(token_ms=5)), timeout=20)
        await blocker.read()
        request = gen.GenerateRequest(
            model="sim", prompt=script(output_tokens=1), output=gen.OutputOptions(queue_events=True)
        )
        call = service.generation.Generate(request, timeout=TIMEOUT_S)
        assert (await call.read()).WhichOneof("event") == "queued"
        await asyncio.sleep(3 * LIMIT_S)
        blocker.cancel()
        assert (await rest_of(call))[-1] == "completed"


def begun(model: Model, request: gen.GenerateRequest, limits: Limits) -> LiveGeneration:
    """Return a generation to enter, whose reader is the test itself: nothing lies between that could hold events."""
    wanted, _ = request_from_proto(request)
    deadline = Deadline.after(TIMEOUT_S)
    watch, trace = Watch(deadline, limits), GenerationTrace("gen_1", "sim", model.backend.info, Context())
    generation = Generation("gen_1", wanted, model, watch, deadline, StreamClock(time.monotonic()), trace)
    return LiveGeneration(generation, watch, limits, ReaderWatch(deadline, TIMEOUT_S))


@pytest.mark.parametrize("cause", [None, Cause.DRAIN, Cause.DEADLINE])
async def test_a_whole_answer_that_fills_the_room_is_nobodys_to_spoil(cause: Cause | None) -> None:
    model, tokens = simulated_model(), 5
    request = gen.GenerateRequest(model="sim", prompt=script(tokens=["x" * 3000], output_tokens=tokens))
    # Room for `started`, the deltas, which are too long to be joined, and both ends: the last event fills it.
    limits = Limits(unsent_events=tokens + 3, unsent_bytes=10**9, room_s=LIMIT_S)
    async with begun(model, request, limits) as live:
        await eventually(lambda: live.outbox.waiting == tokens + 3)
        if cause is None:
            await asyncio.sleep(2 * LIMIT_S)
        else:
            live.interrupt(cause)
        await eventually(lambda: live.has_ended, LIMIT_S)
        assert (live.failure, model.slots.running) == (None, 0)
        kinds = []
        while (event := await live.outbox.next()) is not None:
            kinds.append(type(event))
        assert kinds[-1] is Completed


@pytest.mark.parametrize("by", ["a cancel", "its time limit"])
async def test_an_engine_that_is_stopped_is_not_silent(by: str) -> None:
    limits = Limits(first_token_s=LIMIT_S, token_gap_s=LIMIT_S)
    async with running_service(simulated_model("sim", backend=SlowToStop()), limits=limits) as service:
        request = gen.GenerateRequest(model="sim", prompt=script(token_ms=20))
        if by == "its time limit":
            request.time_limit.FromNanoseconds(round(0.2 * 1e9))
        call = service.generation.Generate(request, timeout=TIMEOUT_S)
        started = (await call.read()).started
        if by == "a cancel":
            await cancel(service, started.generation_id)
        assert (await rest_of(call))[-2:] == ["choice_finished", "completed"]


async def test_a_cancel_is_taken_in_the_line_while_a_place_in_it_waits_for_its_reader() -> None:
    limits = Limits(unsent_events=1, room_s=2 * LIMIT_S)
    model = simulated_model(running=1)
    request = gen.GenerateRequest(model="sim", prompt="hi", output=gen.OutputOptions(queue_events=True))
    with ExitStack() as stack:
        ticket = model.slots.enter()
        stack.callback(ticket.leave)
        async with begun(model, request, limits) as live:
            await eventually(lambda: live.watch.phase is Phase.ROOM)
            live.interrupt(Cause.CANCEL)
            await eventually(lambda: live.has_ended, LIMIT_S)
            assert (live.failure, live.generation.finish_reasons) == (None, [FinishReason.CANCELLED])
