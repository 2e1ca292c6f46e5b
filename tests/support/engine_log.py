"""What an engine in a real Triton does from now on, by its own event log."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["EngineLog"]


class EngineLog:
    """Events of the engines since this was made, without those of health checks.

    `t` is `time.monotonic()`, the clock of every process of this machine. Below a
    BLS model a request has an id of that model's own; health checks there ask
    for one token, which no test does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = path.stat().st_size if path.exists() else 0
        self._events: list[dict[str, Any]] = []

    def events(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the events of one kind that have all of `fields`."""
        with self._path.open("rb") as file:
            file.seek(self._seen, os.SEEK_SET)
            new, end, _ = file.read().rpartition(b"\n")
        self._seen += len(new + end)
        self._events += [json.loads(line) for line in new.splitlines()]
        checks = {e["id"] for e in self._events if e["event"] == "start" and e.get("max_tokens") == 1}
        mine = [e for e in self._events if not e["id"].startswith("canary") and e["id"] not in checks]
        return [e for e in mine if e["event"] == event and all(e.get(name) == value for name, value in fields.items())]

    async def next(self, event: str, *, timeout_s: float = 10, **fields: Any) -> dict[str, Any]:
        """Return the first such event; waits for it."""
        return (await self.several(event, 1, timeout_s=timeout_s, **fields))[0]

    async def several(self, event: str, count: int, *, timeout_s: float = 10, **fields: Any) -> list[dict[str, Any]]:
        """Return the first `count` such events; waits for them."""
        give_up_s = time.monotonic() + timeout_s
        while len(found := self.events(event, **fields)) < count:
            assert time.monotonic() < give_up_s, (
                f"{len(found)} of {count} events {event} {fields} in {timeout_s} s; the engine did {self._events[-5:]}"
            )
            await asyncio.sleep(0.002)
        return found[:count]
