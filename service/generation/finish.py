"""Why a choice ended, read off what ended it."""

from __future__ import annotations

from typing import Final

from service.backends.base import EngineFinish
from service.core.events import ChoiceFinished, Completed, Event, FinishReason, Started
from service.generation.watch import Cause

__all__ = ["SOFT_ENDS", "events_without_run", "finish_reason"]

SOFT_ENDS: Final = {Cause.TIME_LIMIT: FinishReason.TIME_LIMIT, Cause.CANCEL: FinishReason.CANCELLED}
_BY_ENGINE: Final = {
    EngineFinish.STOP: FinishReason.STOP,
    EngineFinish.LENGTH: FinishReason.LENGTH,
    EngineFinish.CONTEXT_LENGTH: FinishReason.CONTEXT_LENGTH,
}


def finish_reason(by_engine: EngineFinish, tokens: int | None, limit: int | None) -> FinishReason:
    """Return why the engine ended; where its contract does not say, a full limit tells it."""
    if by_engine is EngineFinish.UNKNOWN:
        return FinishReason.LENGTH if tokens is not None and limit and tokens >= limit else FinishReason.STOP
    return _BY_ENGINE[by_engine]


def events_without_run(choices: int, seed: int, completed: Completed) -> list[Event]:
    """Return the events of a generation that was cancelled before it had a slot."""
    ends = [ChoiceFinished(choice=at, reason=FinishReason.CANCELLED, output_tokens=0) for at in range(choices)]
    return [Started(prompt_tokens=None, seed=seed), *ends, completed]
