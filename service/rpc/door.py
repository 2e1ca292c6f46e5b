"""How a server is stopped so that no call is caught between two connections."""

from __future__ import annotations

import asyncio
from typing import Any, Final

__all__ = ["Door"]

# Longer than from an answer to that caller's next call, and a bound for those who never pause.
_QUIET_S: Final = 0.02
_LONGEST_HOLD_S: Final = 0.25


class Door:
    """Every call passes it on its way to its handler.

    A stopping gRPC server tells its connections to go elsewhere (GOAWAY) and goes on
    with the calls that it was given. One that has arrived and was not given to it
    yet ends as CANCELLED, which hardly any client repeats. So the door is held for a
    moment first: who waits for an answer sends no other call, and then hardly any is
    under way. What was held is served.
    """

    def __init__(self) -> None:
        self._arrivals = 0
        self._held: asyncio.Event | None = None

    async def enter(self) -> None:
        """Let a call pass, once the door is not held; behind it no other wait may lie before its work is counted."""
        self._arrivals += 1
        if self._held is not None:
            await self._held.wait()

    async def close(self, server: Any, grace_s: float) -> asyncio.Task[None]:
        """Begin to stop `server`; return what is done when its last call has ended, after `grace_s` at the latest."""
        self._held = asyncio.Event()
        try:
            await self._quiet()
            stopping = asyncio.create_task(server.stop(grace_s), name="connections leave")
            await asyncio.sleep(0)
        finally:
            self._held.set()
        await asyncio.sleep(0)  # those that were held are counted as work from here on
        return stopping

    async def _quiet(self) -> None:
        loop = asyncio.get_running_loop()
        until_s, seen = loop.time() + _LONGEST_HOLD_S, -1
        while seen != self._arrivals and loop.time() < until_s:
            seen = self._arrivals
            await asyncio.sleep(_QUIET_S)
