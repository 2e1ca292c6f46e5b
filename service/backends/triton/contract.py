"""What a tensor contract gives the backend: how to ask and how to read.

One implementation per family of models; the backend picks by the model's own
tensors, never by its name.
"""

from __future__ import annotations

from typing import Any, Protocol

from service.backends.base import EngineFinished, EngineOutput, EngineRequest, EngineStarted, Feature
from service.backends.triton.facts import ModelFacts

__all__ = ["Contract", "Reader"]


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

    def finished(self) -> EngineFinished:
        """Return the end, once the final response was read.

        Raises `ServiceError` when no response carried output.
        """
        ...


class Contract(Protocol):
    """One family of models."""

    def problems(self, facts: ModelFacts) -> list[str]:
        """Return why a model does not fit, empty when it does."""
        ...

    def features(self, facts: ModelFacts) -> frozenset[Feature]:
        """Return what is passed on to this model and honoured, by its tensors."""
        ...

    def request(self, request: EngineRequest, facts: ModelFacts) -> Any:
        """Return the `ModelInferRequest`; raises `ServiceError` for what the model has no tensor for."""
        ...

    def reader(self, request: EngineRequest) -> Reader:
        """Return the reader of one generation."""
        ...
