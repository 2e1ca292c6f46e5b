"""One generation as the engines see it, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Engine", "EngineError", "Job", "Listener", "NoOutputError", "ProcessDiedError", "Step", "ThreadDiedError"]


class EngineError(Exception):
    """A request that the engine refuses or fails; the message goes to the client."""


class ThreadDiedError(Exception):
    """A fault of the scripted engine: the generation ends here, and the client is told nothing."""


class ProcessDiedError(Exception):
    """A fault of the scripted engine: the model's process kills itself."""


class NoOutputError(Exception):
    """A fault of the scripted engine: nothing but the final flag is sent."""


@dataclass(frozen=True)
class Job:
    """What to generate, in the engine's own terms; each contract has its own defaults.

    `temperature` 0 takes the likeliest token. `top_k` 0, `top_p` 1 and `min_p` 0
    are off, as are the penalties 1, 0 and 0. `seed` None lets the engine pick one.
    `stop_words` are exact bytes. `grammar` is empty or a grammar that the engine
    understands. `logprobs` is None (off) or the number of alternatives.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    ignores_eos: bool = False
    stop_words: Sequence[bytes] = ()
    stop_ids: frozenset[int] = frozenset()
    banned_ids: frozenset[int] = frozenset()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str = ""
    logprobs: int | None = None


class Step(NamedTuple):
    """New tokens; without any it is a sign of life.

    `is_last` is only True when the engine knew it when it sent them.
    `alternatives` are, per token, the likeliest ones with their log-probability,
    best first. `error` and `is_counted` = False (tokens beyond every limit) are
    faults of the scripted engine.
    """

    ids: Sequence[int]
    logprobs: Sequence[float] = ()
    prompt_s: float = 0.0
    is_last: bool = False
    alternatives: Sequence[Sequence[tuple[int, float]]] = ()
    error: str = ""
    is_counted: bool = True


# Called for every step, and with None while the prompt is read; True stops the engine.
Listener = Callable[["Step | None"], bool]


class Engine:
    """What the models need of an engine. `takes_biases`: single tokens can be banned or made likelier."""

    takes_biases = True

    def generate(self, job: Job, listener: Listener) -> None:
        """Run `job` to its end in the calling thread; raises EngineError."""
        raise NotImplementedError

    def separates_final(self, job: Job) -> bool:  # noqa: ARG002
        """Return whether the final flag goes out by itself, after the last response: a fault, so normally not."""
        return False
