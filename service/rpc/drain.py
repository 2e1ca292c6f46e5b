"""The end of a server's life: no new work, running work may finish, the rest is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from service.core.errors import Reason, ServiceError
from service.generation.watch import Cause, Watch

__all__ = ["Drain"]

# A client that retries at once reaches another replica through its balancer.
RETRY_AFTER_S = 1.0


class Drain:
    """Knows every running generation, and whether new ones are taken."""

    def __init__(self) -> None:
        self.is_draining = False
        self._running: set[Watch] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Generations being served, waiting ones included."""
        return len(self._running)

    def check(self) -> None:
        """Raise DRAINING if new work is refused."""
        if self.is_draining:
            raise ServiceError(
                Reason.DRAINING, "The server is shutting down; retry on another one.", retry_after_s=RETRY_AFTER_S
            )

    @contextmanager
    def running_under(self, watch: Watch) -> Iterator[None]:
        """Count the block as a running generation that `finish` may interrupt."""
        self._running.add(watch)
        self._idle.clear()
        try:
            yield
        finally:
            self._running.discard(watch)
            if not self._running:
                self._idle.set()

    def hurry(self) -> None:
        """End what runs now; whoever waits in `finish` need not wait longer."""
        for watch in list(self._running):
            watch.interrupt(Cause.DRAIN)

    async def finish(self, grace_s: float) -> None:
        """Refuse new work, wait up to `grace_s` for what runs, then end the rest with DRAINING."""
        self.is_draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            self.hurry()
            try:
                async with asyncio.timeout(2.0):
                    await self._idle.wait()
            except TimeoutError:
                pass  # the server's own stop cancels what is left
