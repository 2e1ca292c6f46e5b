"""One generation as the engines see it, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Engine", "EngineError", "Job", "Listener", "Step"]


class EngineError(Exception):
    """A request that the engine refuses or fails; the message goes to the client."""


@dataclass(frozen=True)
class Job:
    """What to generate. None is unset and takes TensorRT-LLM's default.

    `stop_words` are exact bytes. `grammar` is empty or a grammar that the
    engine understands. Without `top_k` and `top_p` the choice is greedy, as in
    TensorRT-LLM.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int = 0
    ignores_eos: bool = False
    stop_words: Sequence[bytes] = ()
    grammar: str = ""
    logprobs: bool = False


class Step(NamedTuple):
    """New tokens. `is_last` is only True when the engine knew it when it sent them."""

    ids: list[int]
    logprobs: list[float]
    prompt_s: float
    is_last: bool


# Called for every step, and with None while the prompt is read; True stops the engine.
Listener = Callable[[Step | None], bool]


class Engine:
    """What the token-level model needs of an engine."""

    def generate(self, job: Job, listener: Listener) -> None:
        """Run `job` to its end in the calling thread; raises EngineError."""
        raise NotImplementedError
