"""The embedded engine in this process, with the real sample model: how tests ask it, and wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from service.backends.base import EngineFinished, EngineItem, EngineOutput, EngineRequest, EngineStop
from service.backends.llamacpp.backend import LlamaCppBackend
from service.backends.llamacpp.options import LlamaCppOptions
from service.core.deadline import Deadline
from service.core.errors import ServiceError
from service.core.request import Sampling

__all__ = [
    "CONTEXT_TOKENS",
    "FRANCE",
    "SLOTS",
    "Embedded",
    "end",
    "outputs",
    "read_to_the_end",
    "refusal",
    "request",
    "run",
    "text",
    "until_free",
]

SLOTS: Final = 2
CONTEXT_TOKENS: Final = 512
FRANCE: Final = "Q: What is the capital of France?\nA:"
_WAIT_S: Final = 10.0


@dataclass(slots=True)
class Embedded:
    """A backend and what it reported of generations that were left."""

    stops: list[EngineStop] = field(default_factory=list)
    backend: LlamaCppBackend = field(init=False)

    def __post_init__(self) -> None:
        # One thread: an engine with all cores beside another one is ten times as slow.
        options = LlamaCppOptions(context_tokens=CONTEXT_TOKENS, slots=SLOTS, grammars=True, threads=1)
        self.backend = LlamaCppBackend(options, on_stop=self.stops.append)

    async def stop(self) -> EngineStop:
        """Return the report that is made once the engine was let go; takes it from the list."""
        give_up_s = time.monotonic() + _WAIT_S
        while not self.stops:
            assert time.monotonic() < give_up_s, "no report of a stop"
            await asyncio.sleep(0.001)
        return self.stops.pop(0)

    def is_idle(self) -> bool:
        """Return whether llama.cpp itself works for nobody: its own loop answers."""
        assert self.backend._engine is not None
        slots = self.backend._engine._ask("GET", "/slots", None, timeout_s=_WAIT_S)
        return not any(slot["is_processing"] for slot in slots)


def request(prompt: str | tuple[int, ...] = FRANCE, tokens: int = 8, **fields: Any) -> EngineRequest:
    sampling = {"temperature": 0.0, "seed": 1, "max_output_tokens": tokens} | fields.pop("sampling", {})
    deadline = fields.pop("deadline", Deadline.after(100))
    return EngineRequest(request_id="r", prompt=prompt, sampling=Sampling(**sampling), deadline=deadline, **fields)


async def run(backend: LlamaCppBackend, wanted: EngineRequest) -> list[EngineItem]:
    return [item async for item in backend.generate(wanted)]


def outputs(items: list[EngineItem]) -> list[EngineOutput]:
    return [item for item in items if isinstance(item, EngineOutput)]


def text(items: list[EngineItem]) -> str:
    return b"".join(item.data for item in outputs(items)).decode()


def end(items: list[EngineItem]) -> EngineFinished:
    finished = items[-1]
    assert isinstance(finished, EngineFinished)
    return finished


async def refusal(backend: LlamaCppBackend, wanted: EngineRequest) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await run(backend, wanted)
    return caught.value


async def read_to_the_end(items: AsyncIterator[EngineItem]) -> None:
    async for _ in items:
        pass


async def until_free(backend: LlamaCppBackend, timeout_s: float = _WAIT_S) -> float:
    """Wait until no engine thread works; return the seconds that it took."""
    started_s = time.monotonic()
    while backend._runs:
        assert time.monotonic() - started_s < timeout_s
        await asyncio.sleep(0.001)
    return time.monotonic() - started_s
