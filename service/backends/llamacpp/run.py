"""One running request: what its engine thread does, and what its task sees."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from service.backends.base import EngineFinished, EngineItem, EngineRequest, EngineStop, StopOutcome
from service.backends.llamacpp.chunks import ChunkReader
from service.backends.llamacpp.engine import Engine
from service.backends.llamacpp.guard import ConstraintGuard
from service.backends.llamacpp.handover import Handover
from service.core.errors import Reason, ServiceError

__all__ = ["Run"]

_CONTRACT: Final = "llamacpp"
_TOKENIZE_TIMEOUT_S: Final = 30.0


class Run:
    """One request in the engine. `drive` belongs to the engine thread, the rest to the event loop."""

    __slots__ = (
        "_engine",
        "_guard",
        "_handover",
        "_is_finished",
        "_is_in_engine",
        "_is_over",
        "_left_s",
        "_moved_s",
        "_reader",
        "_request",
        "_tokens_when_left",
    )

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
        # The engine has failed, or no thread works on it any more: nothing is left to stop.
        self._is_over = False
        # When it was left before its end, and the tokens until then.
        self._left_s: float | None = None
        self._tokens_when_left = 0

    async def next(self) -> EngineItem | None:
        """Return the next item, None after the last. Raises what the run failed with."""
        return await self._handover.next()

    def cancel(self) -> None:
        """Stop the engine's work at its next step. Idempotent."""
        self._leave()
        self._handover.cancel()

    @property
    def is_waiting_for_engine(self) -> bool:
        """True while the engine has to move, and not the reader."""
        return self._is_in_engine and not self._handover.is_full

    def silence_s(self, now_s: float) -> float:
        """Return how long the engine has said nothing about this run."""
        return now_s - self._moved_s

    def stop(self) -> EngineStop | None:
        """Return what became of a run that was left before its end, None for any other; once it is over.

        The engine itself sees the stop one step later: that one token is counted,
        if it was at one.
        """
        if self._left_s is None:
            return None
        made = self._reader.output_tokens
        wasted = made - self._tokens_when_left + (1 if made and not self._is_finished else 0)
        rest = (self._request.sampling.max_output_tokens or made) - self._tokens_when_left
        stop_s = time.monotonic() - self._left_s
        return EngineStop(_CONTRACT, StopOutcome.ACKNOWLEDGED, stop_s, max(0, min(wasted, rest)))

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
            if not self._handover.is_cancelled:
                self._engine.run(body, self._on_chunk)
            if not self._is_finished:
                # A cut must never look like success.
                failure = _stopped() if self._handover.is_cancelled else _without_result()
        except Exception as error:
            failure = error
        finally:
            self._is_in_engine = False
            self._is_over = True
            self._handover.end(failure)

    def drop(self) -> None:
        """End the run if it did not end by itself: no thread will work on it (any thread)."""
        self._is_over = True
        self._handover.end(_stopped())

    def _leave(self) -> None:
        if self._left_s is None and not self._is_over and not self._is_finished:
            self._left_s = time.monotonic()
            self._tokens_when_left = self._reader.output_tokens

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
                self._leave()
                raise ServiceError(Reason.DEADLINE_IN_DECODE, "The deadline passed while the engine worked.")
            for item in self._reader.read(chunk):
                if isinstance(item, EngineFinished):
                    self._is_finished = True
                if not self._handover.put(item):
                    return True
            # Also for chunks without an item: a long prefill has nothing else.
            return self._handover.is_cancelled
        except Exception as error:
            self._is_over = True
            self._handover.end(error)
            return True


def _stopped() -> ServiceError:
    return ServiceError(Reason.BACKEND_UNAVAILABLE, "The engine was stopped.")


def _without_result() -> ServiceError:
    return ServiceError(Reason.BACKEND_ERROR, "The engine ended this request without a result.")
