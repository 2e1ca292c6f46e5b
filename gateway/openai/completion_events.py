"""What legacy completions do to the events of one prompt before they are shown: its echo, and the best of several.

Pure: events in, events out, in the order of the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.openai.content import ContractError
from headrace.v1 import generation_pb2 as gen

__all__ = ["BestOf", "Echo", "EventFilter"]

# Of a choice without a token: nothing speaks for it.
_WORST: Final = float("-inf")


class EventFilter(Protocol):
    """Turns one event into those that take its place."""

    def feed(self, event: gen.GenerateResponse) -> Sequence[gen.GenerateResponse]:
        """Return what is shown for `event`. ContractError if it may not come here."""


class Echo:
    """Puts `text` before each of `choices` choices."""

    def __init__(self, text: str, choices: int) -> None:
        self._text = text
        self._choices = choices

    def feed(self, event: gen.GenerateResponse) -> Sequence[gen.GenerateResponse]:
        """Return `event`, with the text behind it if it begins the generation."""
        if not event.HasField("started"):
            return (event,)
        echoes = [
            gen.GenerateResponse(delta=gen.ChoiceDelta(index=index, text=self._text)) for index in range(self._choices)
        ]
        return (event, *echoes)


@dataclass(slots=True)
class _Candidate:
    """One choice until it is known whether it is shown."""

    events: list[gen.GenerateResponse] = field(default_factory=list)
    logprob: float = 0.0
    tokens: int = 0
    is_finished: bool = False

    @property
    def mean_logprob(self) -> float:
        return self.logprob / self.tokens if self.tokens else _WORST


class BestOf:
    """Shows `keep` choices of several, best first by their mean log-prob per token, once all have ended.

    Holds everything that was generated until then. Of equals the earlier one is
    better. `shows_logprobs` keeps the log-probs, which are needed in any case.
    """

    def __init__(self, keep: int, *, shows_logprobs: bool) -> None:
        self._keep = keep
        self._shows_logprobs = shows_logprobs
        self._candidates: dict[int, _Candidate] = {}

    def feed(self, event: gen.GenerateResponse) -> Sequence[gen.GenerateResponse]:
        """Return what is shown for `event`: the best choices where the generation is complete."""
        kind = event.WhichOneof("event")
        if kind == "delta":
            self._add(event)
            return ()
        if kind == "choice_finished":
            candidate = self._open(event.choice_finished.index)
            candidate.events.append(event)
            candidate.is_finished = True
            return ()
        if kind == "completed":
            return (*self._best(), event)
        return (event,)

    def _add(self, event: gen.GenerateResponse) -> None:
        delta = event.delta
        candidate = self._open(delta.index)
        for token in delta.logprobs:
            if token.HasField("logprob"):
                candidate.logprob += token.logprob
                candidate.tokens += 1
        if not self._shows_logprobs:
            del delta.logprobs[:]
        if delta.text or delta.logprobs:
            candidate.events.append(event)

    def _open(self, index: int) -> _Candidate:
        candidate = self._candidates.setdefault(index, _Candidate())
        if candidate.is_finished:
            raise ContractError(f"choice {index} is not open")
        return candidate

    def _best(self) -> list[gen.GenerateResponse]:
        ended = [candidate for _, candidate in sorted(self._candidates.items()) if candidate.is_finished]
        if len(ended) < max(self._keep, len(self._candidates)):
            raise ContractError("completed came before every choice had ended")
        ended.sort(key=lambda candidate: candidate.mean_logprob, reverse=True)
        shown = []
        for rank, candidate in enumerate(ended[: self._keep]):
            for event in candidate.events:
                if event.HasField("delta"):
                    event.delta.index = rank
                else:
                    event.choice_finished.index = rank
                shown.append(event)
        return shown
