"""Cancels generations on a real Triton, and reads in the engine's own log when each of them really stopped."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace import AsyncClient

__all__ = ["measure_cancels"]

AT_ONCE: Final = 8
TOKEN_MS: Final = 10
MOST_TOKENS: Final = 300  # what nobody stops runs for three seconds
LEFT_AFTER: Final = (3, 25)  # events that a client reads before it leaves
LOG_WAIT_S: Final = 15.0
TIMEOUT_S: Final = 30.0
RAN_ON: Final = "end"  # why a generation ended that nobody stopped


@dataclass(slots=True)
class _End:
    """How one generation went on after it was left at `left_s`."""

    left_s: float
    wasted_tokens: int = 0
    stopped_s: float | None = None
    reason: str = ""


async def measure_cancels(client: AsyncClient, model: str, event_log: Path, count: int) -> dict[str, Any]:
    """Cancel `count` generations at random moments, and wait until the engine has ended all of them.

    Returns milliseconds from the client's cancel to the engine's end (p50, p99),
    the tokens that the engine made after the cancel (p50, most), and how many
    generations nobody stopped.
    """
    dice = random.Random(1)
    left: dict[str, float] = {}
    while len(left) < count:
        left.update(await asyncio.gather(*(_leave(client, model, dice) for _ in range(AT_ONCE))))
    give_up_s = time.monotonic() + LOG_WAIT_S
    while True:
        ends = _ends(event_log, left)
        if all(end.stopped_s is not None for end in ends):
            break
        if time.monotonic() > give_up_s:
            raise SystemExit(f"bench: the engine's log does not say when {model} ended")
        await asyncio.sleep(0.1)
    delays = [(end.stopped_s - end.left_s) * 1000 for end in ends if end.stopped_s is not None]
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    wasted = [end.wasted_tokens for end in ends]
    return {
        "cancels": len(ends),
        "stop_ms": {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1)},
        "wasted_tokens": {"p50": round(statistics.median(wasted), 1), "most": max(wasted)},
        "ran_on": sum(end.reason == RAN_ON for end in ends),
    }


async def _leave(client: AsyncClient, model: str, dice: random.Random) -> tuple[str, float]:
    """Begin a generation, leave it between two tokens, and return its id and the time of that (`time.monotonic()`)."""
    events, pause_s = dice.randint(*LEFT_AFTER), dice.uniform(0, TOKEN_MS / 1000)
    prompt = f"token_ms={TOKEN_MS} text=word%20"
    async with client.generate(
        model=model, prompt=prompt, max_output_tokens=MOST_TOKENS, timeout_s=TIMEOUT_S
    ) as stream:
        async for _ in stream:
            events -= 1
            if not events:
                break
        await asyncio.sleep(pause_s)
        assert stream.started is not None
        left_s = time.monotonic()
    # What the service calls the only choice of a generation towards its engine.
    return f"{stream.started.generation_id}-0", left_s


def _ends(event_log: Path, left: dict[str, float]) -> list[_End]:
    """Return what the log says so far about the generations that were left."""
    ends = {one: _End(left_s) for one, left_s in left.items()}
    for event in _lines(event_log):
        if event["event"] == "call" and event["id"] in ends:  # BLS: the engine knows it by an id of its own
            ends[event["child"]] = ends[event["id"]]
        end = ends.get(event["id"])
        if end is None:
            continue
        if event["event"] == "tokens" and event["t"] > end.left_s:
            end.wasted_tokens += 1
        elif event["event"] == "end":
            # A BLS model's own end may come before that of the engine below it.
            end.stopped_s, end.reason = max(event["t"], end.stopped_s or 0.0), event["reason"]
    return [ends[one] for one in left]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        if line.endswith("}"):  # the last one may be half written
            yield json.loads(line)
