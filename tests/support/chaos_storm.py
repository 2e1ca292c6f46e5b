"""Sends a storm: requests at random moments and in bursts, disturbances between them, and a pulse that measures lag."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import grpc

from tests.support.chaos_grpc import GrpcPeers, grpc_peers, play_grpc
from tests.support.chaos_http import play_http
from tests.support.chaos_plan import Plan, plan_of
from tests.support.chaos_site import Site
from tests.support.chaos_verdict import Seen
from tests.support.gateway_harness import RawClient

__all__ = ["Asked", "Strike", "storm"]

# Requests that are under way at once; more would measure this client.
_MOST: Final = 150
_BURST: Final = 30
_MEETS_NOBODY: Final = 6
_PULSE_S: Final = 0.2
_TICK_S: Final = 0.02

Asked = dict[str, tuple[Plan, Seen]]


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A disturbance at a part (0 to 1) of the storm's time."""

    at: float
    do: Callable[[Site], Awaitable[None]]


@dataclass(slots=True)
class _Arrivals:
    """When each request is sent: evenly at random, a fifth of them in bursts."""

    dice: random.Random
    numbers: Sequence[int]
    duration_s: float
    at_s: list[tuple[float, int]] = field(init=False)

    def __post_init__(self) -> None:
        waves = [self.dice.uniform(0, self.duration_s) for _ in range(1 + len(self.numbers) // (5 * _BURST))]
        self.at_s = sorted(
            (
                self.dice.choice(waves) if self.dice.random() < 0.2 else self.dice.uniform(0, self.duration_s),
                number,
            )
            for number in self.numbers
        )


async def storm(
    site: Site, *, seed: int, numbers: Sequence[int], duration_s: float, strikes: Sequence[Strike] = ()
) -> Asked:
    """Send the requests of these numbers over about `duration_s`, and return what came of each of them."""
    asked: Asked = {}
    room = asyncio.Semaphore(_MOST)
    arrivals = _Arrivals(random.Random(f"{seed}:{numbers[0]}"), numbers, duration_s)
    began_s = time.monotonic()

    async def ask(number: int, peers: GrpcPeers) -> None:
        plan = plan_of(seed, number)
        try:
            seen = await (play_http(plan, site.gateway_port, peers) if plan.way.is_http else play_grpc(plan, peers))
        finally:
            room.release()
        asked[plan.request_id] = (plan, seen)

    async def strike(one: Strike) -> None:
        await asyncio.sleep(one.at * duration_s)
        await one.do(site)

    pulses = [asyncio.create_task(pulse(site)) for pulse in (_pulse_of_service, _pulse_of_gateway, _tick)]
    try:
        async with grpc_peers(site.target, site.client_wire.address) as peers, asyncio.TaskGroup() as group:
            for one in strikes:
                group.create_task(strike(one))
            for at_s, number in arrivals.at_s:
                await asyncio.sleep(began_s + at_s - time.monotonic())
                # Some meet a server that is not there; most wait, or in the end hardly any would have met one.
                if not site.is_up.is_set() and number % _MEETS_NOBODY:
                    waits_s = time.monotonic()
                    await site.is_up.wait()
                    began_s += time.monotonic() - waits_s
                await room.acquire()
                group.create_task(ask(number, peers))
    finally:
        for pulse in pulses:
            pulse.cancel()
        await asyncio.gather(*pulses, return_exceptions=True)
    # gRPC keeps the connection of a closed channel while a call on it is not collected.
    gc.collect()
    return asked


async def _pulse_of_service(site: Site) -> None:
    """Ask the service for its state again and again: what takes long there, takes long for everybody."""
    while True:
        began_s = time.monotonic()
        with suppress(grpc.aio.AioRpcError):
            await site.status()
            site.world.note_lag(time.monotonic(), time.monotonic() - began_s)
        await asyncio.sleep(_PULSE_S)


async def _pulse_of_gateway(site: Site) -> None:
    """The same for the gateway."""
    while True:
        began_s = time.monotonic()
        with suppress(OSError, asyncio.IncompleteReadError):
            async with RawClient(site.gateway_port) as client:
                await client.get("/healthz")
            site.world.note_lag(time.monotonic(), time.monotonic() - began_s)
        await asyncio.sleep(_PULSE_S)


async def _tick(site: Site) -> None:
    """Measure how late this process itself is."""
    while True:
        due_s = time.monotonic() + _TICK_S
        await asyncio.sleep(_TICK_S)
        site.world.note_lag(time.monotonic(), time.monotonic() - due_s)
