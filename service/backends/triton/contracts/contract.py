"""What a tensor contract gives the backend: how to ask, how to read, and how a stop gets there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from service.backends.base import EngineFinished, EngineOutput, EngineRequest, EngineStarted, Feature
from service.backends.triton.facts import ModelFacts

__all__ = ["Contract", "ContractSettings", "Reader", "TextMode", "Tokenizer"]


class Tokenizer(Protocol):
    """Text to token ids and ids to exact bytes; `service.tokens` has the implementation."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a generation; empty where the file does not tell."""
        ...

    @property
    def bos_text(self) -> str:
        """Text of the token that begins a prompt; empty if there is none."""
        ...

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts that are read as control tokens wherever they stand in a prompt."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Return the ids of `text`."""
        ...

    def piece(self, token_id: int) -> bytes:
        """Return the exact bytes of a token; empty for a control token and outside the vocabulary."""
        ...

    def piece_with(self, marks: Sequence[str]) -> Callable[[int], bytes]:
        """Return what gives the exact bytes of a token: none outside the vocabulary and for control tokens.

        The control tokens among `marks` have their text as bytes.
        """
        ...


class TextMode(Enum):
    """What the text of one response is: what is new, or everything so far."""

    DELTA = "delta"
    CUMULATIVE = "cumulative"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractSettings:
    """What the model's own description does not say; see `TritonOptions` for the meaning of each."""

    max_context_tokens: int | None = None
    bos_text: str = ""
    text_mode: TextMode | None = None
    lora_task_id: int | None = None
    lora_name: str = ""
    lora_path: str = ""
    end_ids: tuple[int, ...] = ()
    tokenizer: Tokenizer | None = None


class Reader(Protocol):
    """Reads the responses of one generation, in order."""

    def read(self, response: Any) -> EngineOutput | None:
        """Return what a `ModelInferResponse` brought, None if it carries no tensors.

        Raises `ServiceError` for tensors that break the contract.
        """
        ...

    def started(self) -> EngineStarted:
        """Return the facts known with the first response."""
        ...

    def rest(self) -> EngineOutput | None:
        """Return what was held back, once the final response was read."""
        ...

    def finished(self) -> EngineFinished:
        """Return the end, once the final response was read.

        Raises `ServiceError` when no response carried output, and when the
        engine says that it did not get to the end.
        """
        ...


class Contract(Protocol):
    """One family of models, with the settings of one model."""

    @property
    def name(self) -> str:
        """The contract's name in settings, metrics and documentation."""
        ...

    @property
    def takes_ids(self) -> bool:
        """Whether the model takes token ids alone: a prompt of text is encoded before `request` sees it."""
        ...

    def problems(self, facts: ModelFacts) -> list[str]:
        """Return why a model cannot be served by this contract, empty when it can."""
        ...

    def features(self, facts: ModelFacts) -> frozenset[Feature]:
        """Return what is passed on to this model and honoured, by its tensors."""
        ...

    def request(self, request: EngineRequest, facts: ModelFacts) -> Any:
        """Return the `ModelInferRequest`; raises `ServiceError` for what the model has no tensor for."""
        ...

    def reader(self, request: EngineRequest, facts: ModelFacts) -> Reader:
        """Return the reader of one generation."""
        ...
