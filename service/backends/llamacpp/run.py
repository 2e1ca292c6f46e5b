"""One running request: what its engine thread does, and what its task sees."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from service.backends.base import EngineFinished, EngineItem, EngineRequest
from service.backends.llamacpp.chunks import ChunkReader
from service.backends.llamacpp.engine import Engine
from service.backends.llamacpp.guard import ConstraintGuard
from service.backends.llamacpp.handover import Handover
from service.core.errors import Reason, ServiceError

__all__ = ["Run"]

_TOKENIZE_TIMEOUT_S: Final = 30.0


class Run:
    """One request in the engine. `drive` belongs to the engine thread, the rest to the event loop."""

    __slots__ = ("_engine", "_guard", "_handover", "_is_finished", "_is_in_engine", "_moved_s", "_reader", "_request")

    def __init__(
        self, engine: Engine, guard: ConstraintGuard, request: EngineRequest, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._engine = engine
        self._guard = guard
        self._request = request
        self._handover = Handover(loop)
        self._reader = ChunkReader(
            max_output_tokens=request.sampling.max_output_tokens,
            alternatives=request.logprobs,
            token_ids=request.token_ids,
        )
        self._is_finished = False
        self._moved_s = time.monotonic()
        self._is_in_engine = False

    async def next(self) -> EngineItem | None:
        """Return the next item, None after the last. Raises what the run failed with."""
        return await self._handover.next()

    def cancel(self) -> None:
        """Stop the engine's work at its next step. Idempotent."""
        self._handover.cancel()

    @property
    def is_waiting_for_engine(self) -> bool:
        """True while the engine has to move, and not the reader."""
        return self._is_in_engine and not self._handover.is_full

    def silence_s(self, now_s: float) -> float:
        """Return how long the engine has said nothing about this run."""
        return now_s - self._moved_s

    def drive(self, body: dict[str, Any]) -> None:
        """Run to the end in this thread. Never raises: a failure goes to the reader."""
        if self._handover.is_cancelled:
            return
        self._moved_s = time.monotonic()
        self._is_in_engine = True
        failure: BaseException | None = None
        try:
            self._guard.check(body, self._request.constraint)
            body["prompt"] = self._prompt()
            self._engine.run(body, self._on_chunk)
            if not self._is_finished:
                # A cut must never look like success.
                failure = _stopped() if self._handover.is_cancelled else _without_result()
        except Exception as error:
            failure = error
        finally:
            self._is_in_engine = False
            self._handover.end(failure)

    def drop(self) -> None:
        """End the run if it did not end by itself: no thread will work on it (any thread)."""
        self._handover.end(_stopped())

    def _prompt(self) -> str | list[int]:
        prompt = self._request.prompt
        if isinstance(prompt, tuple):
            return list(prompt)
        if self._request.add_special_tokens:
            return prompt
        # Given text, llama.cpp puts a second BOS in front of the template's own.
        try:
            timeout_s = max(0.001, min(self._request.deadline.remaining_s(), _TOKENIZE_TIMEOUT_S))
            return self._engine.tokenize(prompt, add_special_tokens=False, timeout_s=timeout_s)
        except (OSError, ValueError) as error:
            raise ServiceError(
                Reason.BACKEND_UNAVAILABLE, "The engine did not tokenize the prompt in time.", detail=repr(error)
            ) from error

    def _on_chunk(self, chunk: bytes) -> bool:
        """Take one chunk. True stops the run."""
        # The library swallows what a callback raises, so that it must be kept here.
        try:
            now_s = self._moved_s = time.monotonic()
            if self._request.deadline.at_s <= now_s:
                raise ServiceError(Reason.DEADLINE_IN_DECODE, "The deadline passed while the engine worked.")
            for item in self._reader.read(chunk):
                if not self._handover.put(item):
                    return True
                if isinstance(item, EngineFinished):
                    self._is_finished = True
            # Also for chunks without an item: a long prefill has nothing else.
            return self._handover.is_cancelled
        except Exception as error:
            self._handover.end(error)
            return True


def _stopped() -> ServiceError:
    return ServiceError(Reason.BACKEND_UNAVAILABLE, "The engine was stopped.")


def _without_result() -> ServiceError:
    return ServiceError(Reason.BACKEND_ERROR, "The engine ended this request without a result.")
