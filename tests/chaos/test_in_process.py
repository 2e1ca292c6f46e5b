"""The same storm over gRPC inside of this process, where every task, slot and run that is left can be counted."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from contextlib import suppress

import pytest

from service.core.request import Priority
from service.generation.limits import Limits
from service.rpc.generation import DeadlinePolicy
from tests.support import chaos_world
from tests.support.chaos_grpc import GrpcPeers, grpc_peers, play_grpc
from tests.support.chaos_plan import plan_of
from tests.support.chaos_report import explained
from tests.support.chaos_verdict import verdict
from tests.support.metering import install_reader
from tests.support.service import RunningService, eventually, running_service, simulated_model

REQUESTS = int(os.environ.get("HEADRACE_CHAOS_REQUESTS", "600")) // 3
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "1"))
AT_ONCE = 24
IDLE_S = 8.0
ACTIVE = "headrace.server.requests.active"

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120 + REQUESTS)]


async def test_no_task_no_run_and_no_slot_is_left_of_any_request() -> None:
    metered, world = install_reader(), chaos_world.World()
    limits = world.limits
    served = Limits(
        queue_s=limits.queue_s,
        batch_queue_s=limits.batch_queue_s,
        first_token_s=limits.first_token_s,
        token_gap_s=limits.token_gap_s,
        reader_s=limits.reader_s,
        room_s=limits.room_s,
    )
    models = (simulated_model("wide", running=10, waiting=12), simulated_model("narrow", running=2, waiting=4))
    async with running_service(*models, limits=served, deadlines=DeadlinePolicy(floor_s=limits.floor_s)) as service:
        await _storm(service, range(10_000, 10_010), world)
        before = _tasks()
        problems = await _storm(service, range(REQUESTS), world)
        gc.collect()
        left = await _left(service, before)
        metered.read()
        left += [f"{ACTIVE} is {metered.sum(ACTIVE)}"] if metered.sum(ACTIVE) else []
        found = "\n".join([*left, problems]).strip()
        assert not found, found


async def _storm(service: RunningService, numbers: range, world: chaos_world.World) -> str:
    """Send those of the requests that come over gRPC; return what is wrong with them."""
    target = f"127.0.0.1:{service.port}"
    waiting = iter([plan for plan in (plan_of(SEED, number) for number in numbers) if not plan.way.is_http])
    asked = {}

    async def client(peers: GrpcPeers) -> None:
        for plan in waiting:
            asked[plan.request_id] = (plan, await play_grpc(plan, peers))

    async def tick() -> None:
        while True:
            due_s = time.monotonic() + 0.02
            await asyncio.sleep(0.02)
            world.note_lag(time.monotonic(), time.monotonic() - due_s)

    ticking = asyncio.create_task(tick())
    try:
        async with grpc_peers(target, target) as peers, asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(client(peers))
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
    problems = {request_id: verdict(plan, seen, world) for request_id, (plan, seen) in asked.items()}
    found = {request_id: told for request_id, told in problems.items() if told}
    return explained(SEED, asked, found, {}, world) if found else ""


async def _left(service: RunningService, before: int) -> list[str]:
    """Wait until nothing is left of any request; return what still is, and what runs that did not before."""

    def found() -> list[str]:
        told = [f"{service.server.drain.running} generations"] if service.server.drain.running else []
        for model in service.models.values():
            counts = [model.backend.running]  # type: ignore[attr-defined]
            counts += [count(one) for one in Priority for count in (model.slots.running_of, model.slots.waiting_of)]
            told += [f"{model.id}: engine, slots and line have {counts}"] if any(counts) else []
        return told + ([f"tasks: {_names()}"] if _tasks() > before else [])

    with suppress(TimeoutError):
        await eventually(lambda: not found(), IDLE_S)
    return found()


def _tasks() -> int:
    return len(asyncio.all_tasks())


def _names() -> list[str]:
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return sorted(getattr(coroutine, "__qualname__", str(coroutine)) for coroutine in coroutines)
