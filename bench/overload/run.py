"""Plays the scenario against running processes and writes down what happened."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import psutil

from bench.calls import Answer, Call, Callers, Wire
from bench.gauges import Gauges, Load
from bench.memory import Rss, rss_now
from bench.overload.plan import TOKENS, Arrival, Phase, arrivals
from bench.probes import Probe, Probes
from bench.processes import Path
from bench.ticker import ticking

__all__ = ["Answered", "Recording", "play"]

RSS_EVERY_S: Final = 0.5
LOAD_EVERY_S: Final = 0.2
PROBE_EVERY_S: Final = 0.1
WARM_UP_CALLS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A call that was made at `sent_s`, and its end."""

    arrival: Arrival
    sent_s: float
    answer: Answer


@dataclass(slots=True, kw_only=True)
class Recording:
    """Everything that was seen. Times are seconds from the beginning of the first phase.

    `lags_s` is how much later than planned calls were made: with the load generator's own CPU share it tells
    whether the figures are the servers'.
    """

    plan: tuple[Phase, ...]
    planned: int
    answered: list[Answered] = field(default_factory=list)
    rss: list[Rss] = field(default_factory=list)
    loads: list[tuple[float, Load]] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    cpu_share: dict[str, float] = field(default_factory=dict)


async def play(path: Path, plan: tuple[Phase, ...]) -> Recording:
    """Make every call of the plan at its time, and return when the last one has ended."""
    calls = arrivals(plan)
    recording = Recording(plan=plan, planned=len(calls))
    async with AsyncExitStack() as stack:
        callers = await stack.enter_async_context(Callers(path))
        gauges = await stack.enter_async_context(Gauges(path.admin_port))
        wires: tuple[Wire, Wire] = ("grpc", "http")
        warm_up = [Call(wire=wire, prompt="Warm up.", max_tokens=TOKENS) for wire in wires]
        for _ in range(WARM_UP_CALLS // len(wires)):
            await asyncio.gather(*(callers.answer(call) for call in warm_up))
        zero_s = time.perf_counter()
        probes = await stack.enter_async_context(Probes(path, zero_s))
        recording.probes = probes.answers

        async def look_at_memory() -> None:
            recording.rss.append(rss_now(path, time.perf_counter() - zero_s))

        async def look_at_load() -> None:
            load = await gauges.load()
            recording.loads.append((time.perf_counter() - zero_s, load))

        await stack.enter_async_context(ticking(RSS_EVERY_S, look_at_memory))
        await stack.enter_async_context(ticking(LOAD_EVERY_S, look_at_load))
        await stack.enter_async_context(ticking(PROBE_EVERY_S, probes.ask_grpc))
        await stack.enter_async_context(ticking(PROBE_EVERY_S, probes.ask_http))
        processes = {"service": path.service, "gateway": path.gateway, "callers": psutil.Process()}
        before = {name: process.cpu_times() for name, process in processes.items()}
        await _make_calls(callers, calls, recording, zero_s)
        took_s = time.perf_counter() - zero_s
        for name, process in processes.items():
            used = process.cpu_times()
            recording.cpu_share[name] = (used.user + used.system - before[name].user - before[name].system) / took_s
        recording.loads.append((time.perf_counter() - zero_s, await gauges.load()))
    return recording


async def _make_calls(callers: Callers, calls: list[Arrival], recording: Recording, zero_s: float) -> None:
    async def make(arrival: Arrival) -> None:
        sent_s = time.perf_counter() - zero_s
        recording.lags_s.append(sent_s - arrival.at_s)
        answer = await callers.answer(arrival.call)
        recording.answered.append(Answered(arrival=arrival, sent_s=sent_s, answer=answer))

    async with asyncio.TaskGroup() as tasks:
        for arrival in calls:
            await asyncio.sleep(arrival.at_s - (time.perf_counter() - zero_s))
            tasks.create_task(make(arrival))
        left_s = recording.plan[-1].end_s - (time.perf_counter() - zero_s)
        await asyncio.sleep(max(0.0, left_s))
