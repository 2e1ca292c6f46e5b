"""What a call held is free when it has ended, however it ended: nothing waits for the collector of cycles.

A prompt may have megabytes, and the collector comes when it likes.
"""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest

from headrace.v1 import generation_pb2
from service.generation.limits import Limits
from tests.support.garbage import kept_by_cycles
from tests.support.service import GenerateRequest, RunningService, eventually, running_service, script, simulated_model

ENDLESS = script(tokens=["e"], token_ms=5)


async def completed(service: RunningService) -> None:
    await service.events(GenerateRequest(model="sim", prompt="hi"))


async def several_choices(service: RunningService) -> None:
    await service.events(GenerateRequest(model="sim", prompt="hi", choice_count=3))


async def refused(service: RunningService) -> None:
    await service.failure(GenerateRequest(model="nope", prompt="hi"))


async def invalid(service: RunningService) -> None:
    await service.failure(GenerateRequest(model="sim", prompt="hi", sampling={"temperature": 9}))


async def failed(service: RunningService) -> None:
    await service.failure(GenerateRequest(model="sim", prompt=script(fault="error", fault_after=1)))


async def crashed(service: RunningService) -> None:
    await service.failure(GenerateRequest(model="sim", prompt=script(fault="crash")))


async def stalled(service: RunningService) -> None:
    await service.failure(GenerateRequest(model="sim", prompt=script(fault="hang", fault_after=1)))


async def out_of_time(service: RunningService) -> None:
    await service.failure(GenerateRequest(model="sim", prompt=ENDLESS), timeout=0.2)


async def limited(service: RunningService) -> None:
    request = GenerateRequest(model="sim", prompt=ENDLESS)
    request.time_limit.FromMilliseconds(100)
    await service.events(request)


async def left(service: RunningService) -> None:
    call = service.generation.Generate(GenerateRequest(model="sim", prompt=ENDLESS), timeout=20)
    await call.read()
    call.cancel()


async def stopped(service: RunningService) -> None:
    call = service.generation.Generate(GenerateRequest(model="sim", prompt=ENDLESS), timeout=20)
    started = (await call.read()).started
    asked = generation_pb2.CancelGenerationRequest(generation_id=started.generation_id)
    await service.generation.CancelGeneration(asked, timeout=5)
    while await call.read() is not grpc.aio.EOF:
        pass


async def several_left(service: RunningService) -> None:
    request = GenerateRequest(model="sim", prompt=ENDLESS, choice_count=3)
    call = service.generation.Generate(request, timeout=20)
    await call.read()
    call.cancel()


async def several_failed(service: RunningService) -> None:
    request = GenerateRequest(model="sim", prompt=script(fault="error", fault_after=1), choice_count=3)
    await service.failure(request)


async def several_stopped(service: RunningService) -> None:
    request = GenerateRequest(model="sim", prompt=script(tokens=["a", "STOP"], token_ms=1), choice_count=3)
    request.stop.sequences.append("STOP")
    await service.events(request)


@pytest.mark.parametrize(
    "call",
    [
        several_left,
        several_failed,
        several_stopped,
        completed,
        several_choices,
        refused,
        invalid,
        failed,
        crashed,
        stalled,
        out_of_time,
        limited,
        left,
        stopped,
    ],
)
async def test_the_service_keeps_nothing_of_a_call(call: object, caplog: pytest.LogCaptureFixture) -> None:
    assert callable(call)
    caplog.set_level(logging.CRITICAL)
    async with running_service(simulated_model(), limits=Limits(token_gap_s=0.2)) as service:
        await call(service)
        with kept_by_cycles("service.") as kept:
            for _ in range(3):
                await call(service)
            await eventually(lambda: service.server.drain.running == 0)
            await asyncio.sleep(0.1)  # the call itself ends a little later
            caplog.clear()
        assert not kept
