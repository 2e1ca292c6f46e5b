"""Streams through the service's gRPC, and their counts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from headrace import AsyncClient, HeadraceError

__all__ = ["Load", "run_streams", "wait_until_served"]

TIMEOUT_S: Final = 120.0
READY_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a set of streams brought, all together."""

    tokens: int
    events: int
    wall_s: float


async def run_streams(client: AsyncClient, model: str, prompt: str, streams: int, tokens: int) -> Load:
    """Run `streams` generations of `tokens` each, all at once. SystemExit if one is not whole."""

    async def run() -> int:
        events = 0
        async with client.generate(model=model, prompt=prompt, max_output_tokens=tokens, timeout_s=TIMEOUT_S) as stream:
            async for event in stream:
                events += event.HasField("delta")
        made = stream.usage.output_token_count if stream.usage is not None else None
        if made != tokens:
            raise SystemExit(f"bench: {model} made {made} of {tokens} tokens; the figures would mean nothing")
        return events

    begun_s = time.perf_counter()
    events = await asyncio.gather(*(run() for _ in range(streams)))
    return Load(streams * tokens, sum(events), time.perf_counter() - begun_s)


async def wait_until_served(client: AsyncClient, model: str) -> None:
    """Return when the model generates; SystemExit if it does not within 40 s."""
    give_up_s = time.monotonic() + READY_S
    while True:
        try:
            async with client.generate(model=model, prompt="token_ms=0", max_output_tokens=1, timeout_s=10) as stream:
                await stream.text()
            return
        except HeadraceError as error:
            if time.monotonic() > give_up_s:
                raise SystemExit(f"bench: {model} does not generate: {error}") from None
        await asyncio.sleep(0.2)
