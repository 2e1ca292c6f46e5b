"""Opens the streams of one case against fresh processes, and reads their memory before, meanwhile and afterwards."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final

import uvloop

from bench.calls import Call, Callers, Wire
from bench.gauges import Gauges, Load
from bench.memory import Rss, rss_now
from bench.processes import Path, running_path
from bench.streams.cases import MODELS, Case
from bench.streams.held import Held, close_all, hold
from bench.ticker import ticking

__all__ = ["Seen", "measure_case"]

RSS_EVERY_S: Final = 0.25
LOAD_EVERY_S: Final = 0.5
WARM_UP_CALLS: Final = 40
# Memory is at its height when nothing has been added for so long.
SETTLED_S: Final = 6.0
SETTLED_SHARE: Final = 0.005
SETTLE_S: Final = 300.0
# Of the rise: what comes behind it is the allocators', and comes whenever it likes.
HIGH_SHARE: Final = 0.95
# Beyond the servers' own patience with a reader: their keepalive, and the end itself.
FREED_S: Final = 60.0
CLOSED_S: Final = 3.0


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one case did. `height` is the largest memory of each process while the streams were there.

    `opened_s`: until all had begun. `running`: slots in use when memory had risen nearly so far; of idle streams,
    at most. `freed_s`: from the first tokens until nothing waited or ran any more, though no reader had left; None
    if that did not happen. `closed_s`: from the end of all connections until nothing was left. `after`: a little
    later.
    """

    case: Case
    before: Rss
    height: Rss
    opened_s: float
    running: int
    freed_s: float | None
    closed_s: float | None
    after: Rss
    files_before: tuple[int, int]
    files_after: tuple[int, int]


def measure_case(case: Case) -> Seen:
    """Run the case against processes of its own: what others have left in an allocator would hide in it."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        models = FilePath(folder) / "models.toml"
        models.write_text(MODELS)
        with running_path({"HEADRACE_MODELS_FILE": str(models), **case.settings}) as path:
            return uvloop.run(_measure(path, case))


async def _measure(path: Path, case: Case) -> Seen:
    async with Gauges(path.admin_port) as gauges:
        await _warm_up(path)
        await _free(gauges, CLOSED_S)
        begun_s = time.perf_counter()
        before, files_before = rss_now(path, 0.0), _files(path)
        samples: list[Rss] = []
        loads: list[tuple[float, Load]] = []
        connections: list[Held] = []

        async def look_at_memory() -> None:
            samples.append(rss_now(path, time.perf_counter() - begun_s))

        async def look_at_load() -> None:
            load = await gauges.load()
            loads.append((time.perf_counter() - begun_s, load))

        try:
            async with ticking(RSS_EVERY_S, look_at_memory), ticking(LOAD_EVERY_S, look_at_load):
                await hold(path, case, connections)
                opened_s = time.perf_counter() - begun_s
                await asyncio.sleep(case.begins_s)
                tokens_s = time.perf_counter() - begun_s
                await _settle(samples)
                freed_s = await _freed_s(loads, tokens_s, case.timeout_s + FREED_S) if case.is_frozen else None
        finally:
            close_all(connections)
        closed_s = await _free(gauges, FREED_S)
        await asyncio.sleep(CLOSED_S)
        height = Rss(0.0, max(one.service_kib for one in samples), max(one.gateway_kib for one in samples))
        high_kib = before.both_kib + HIGH_SHARE * (max(one.both_kib for one in samples) - before.both_kib)
        high_s = next(one.at_s for one in samples if one.both_kib >= high_kib)
        # Of streams that fill up: those that were there when nearly all memory was. Idle ones have all they ever get.
        then = min(loads, key=lambda one: abs(one[0] - high_s)) if case.is_frozen else max(loads, key=_running)
        return Seen(
            case=case,
            before=before,
            height=height,
            opened_s=opened_s,
            running=then[1].running,
            freed_s=freed_s,
            closed_s=closed_s,
            after=rss_now(path, 0.0),
            files_before=files_before,
            files_after=_files(path),
        )


def _running(seen: tuple[float, Load]) -> int:
    return seen[1].running


async def _warm_up(path: Path) -> None:
    wires: tuple[Wire, Wire] = ("grpc", "http")
    calls = [Call(wire=wire, prompt="simulate: {}\n", max_tokens=20) for wire in wires]
    async with Callers(path) as callers:
        for _ in range(WARM_UP_CALLS // len(wires)):
            await asyncio.gather(*(callers.answer(call) for call in calls))


async def _settle(samples: list[Rss]) -> None:
    """Return when memory has stopped growing, or after five minutes."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + SETTLE_S
    height, since_s = 0.0, loop.time()
    while loop.time() < min(give_up_s, since_s + SETTLED_S):
        now = max(one.both_kib for one in samples[-4:]) if samples else 0.0
        if now > height * (1 + SETTLED_SHARE):
            height, since_s = now, loop.time()
        await asyncio.sleep(RSS_EVERY_S)


async def _freed_s(loads: list[tuple[float, Load]], since_s: float, limit_s: float) -> float | None:
    """Return how long after `since_s` nothing waited or ran; None if that takes longer than `limit_s` from now on."""
    for _ in range(int(limit_s / LOAD_EVERY_S)):
        none_s = [at_s for at_s, load in loads if at_s > since_s and load.is_none]
        if none_s:
            return none_s[0] - since_s
        await asyncio.sleep(LOAD_EVERY_S)
    return None


async def _free(gauges: Gauges, limit_s: float) -> float | None:
    """Return the seconds until nothing waits or runs; None if that takes longer than `limit_s`."""
    begun_s = time.perf_counter()
    while (took_s := time.perf_counter() - begun_s) < limit_s:
        if (await gauges.load()).is_none:
            return took_s
        await asyncio.sleep(LOAD_EVERY_S)
    return None


def _files(path: Path) -> tuple[int, int]:
    return path.service.num_fds(), path.gateway.num_fds()
