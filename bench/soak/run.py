"""Keeps the load up for as long as it is told, and writes memory down each second."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from bench.arrivals import poisson
from bench.calls import Callers
from bench.gauges import Gauges, Load
from bench.memory import Rss, rss_now
from bench.processes import Path
from bench.soak.mix import CALLS_PER_S, call
from bench.ticker import ticking

__all__ = ["Soaked", "soak"]

SEED: Final = 1
WARM_UP_CALLS: Final = 40
RSS_EVERY_S: Final = 1.0
# After the last call: the longest wait for the servers to have nothing left.
QUIET_S: Final = 60.0
QUIET_POLL_S: Final = 0.5


@dataclass(slots=True, kw_only=True)
class Soaked:
    """What an hour came to. `files` are the open files of service and gateway, before the load and after it.

    The load lasts `length_s`; memory is looked at until the last call has ended.
    """

    length_s: float
    made: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    rss: list[Rss] = field(default_factory=list)
    files: list[tuple[int, int]] = field(default_factory=list)
    left: Load = field(default_factory=Load)


async def soak(path: Path, length_s: float) -> Soaked:
    """Run the mix for `length_s` seconds, wait for the last call, and return what was seen."""
    soaked, chance = Soaked(length_s=length_s), random.Random(SEED)  # spreads load, hides nothing
    async with AsyncExitStack() as stack:
        callers = await stack.enter_async_context(Callers(path))
        gauges = await stack.enter_async_context(Gauges(path.admin_port))
        # What is opened once, and stays, is opened before files are counted.
        await asyncio.gather(*(callers.answer(call(chance)) for _ in range(WARM_UP_CALLS)))
        await _quiet(gauges)
        soaked.files.append((path.service.num_fds(), path.gateway.num_fds()))
        zero_s = time.perf_counter()

        async def look() -> None:
            soaked.rss.append(rss_now(path, time.perf_counter() - zero_s))

        async def make_one() -> None:
            soaked.outcomes[(await callers.answer(call(chance))).outcome] += 1

        async with ticking(RSS_EVERY_S, look), asyncio.TaskGroup() as tasks:
            for at_s in poisson(CALLS_PER_S, 0.0, length_s, random.Random(SEED + 1)):
                await asyncio.sleep(at_s - (time.perf_counter() - zero_s))
                soaked.made += 1
                tasks.create_task(make_one())
        soaked.left = await _quiet(gauges)
        soaked.files.append((path.service.num_fds(), path.gateway.num_fds()))
    return soaked


async def _quiet(gauges: Gauges) -> Load:
    """Return the load once there is none, or what is left after a minute."""
    polls = int(QUIET_S / QUIET_POLL_S)
    for _ in range(polls):
        if (load := await gauges.load()).is_none:
            break
        await asyncio.sleep(QUIET_POLL_S)
    return load
