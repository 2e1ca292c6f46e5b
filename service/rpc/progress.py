"""Tokens of generations that go on, counted while they do: a stream of minutes is no silence of minutes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from service.core.request import Priority
from service.generation.live import LiveGeneration
from service.sharing.tasks import stop
from service.telemetry.instruments import record_progress

__all__ = ["Progress", "count_progress"]

logger = logging.getLogger("headrace.service")

# Metrics are read each ten seconds or so. Looking at 10,000 generations takes some 20 ms.
_INTERVAL_S: Final = 5.0


def count_progress(generations: Iterable[LiveGeneration]) -> None:
    """Record what the generations have made since they were last looked at."""
    made: Counter[tuple[str, str, str, Priority]] = Counter()
    for live in generations:
        generation = live.generation
        tokens = (generation.output_tokens_so_far or 0) - live.counted_tokens
        if tokens > 0:
            live.counted_tokens += tokens
            model = generation.model
            key = (generation.trace.operation, model.backend.info.provider, model.id, generation.request.priority)
            made[key] += tokens
    for key, tokens in made.items():
        record_progress(*key, tokens)


class Progress:
    """Looks at generations every few seconds while it runs."""

    def __init__(self, generations: Iterable[LiveGeneration]) -> None:
        self._generations = generations
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="progress")

    async def stop(self) -> None:
        """End."""
        await stop(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                count_progress(tuple(self._generations))
            except Exception:
                logger.exception("tokens under way could not be counted")
