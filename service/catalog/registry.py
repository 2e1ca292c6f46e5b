"""Finds a model by id or alias."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.backends.base import Health
from service.catalog.model import Model
from service.core.errors import Reason, ServiceError

__all__ = ["Registry", "not_found", "shown_name"]

# How soon a model that is not ready is worth another try.
RETRY_AFTER_S = 2.0
_SHOWN_CHARS = 64


class Registry:
    """The served models, ordered by id. Ids and aliases are unique together."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = sorted(models, key=lambda model: model.id)
        self._by_name: dict[str, Model] = {}
        for model in self._models:
            for name in (model.id, *model.aliases):
                if name in self._by_name:
                    raise ValueError(f"two models are named {name!r}")
                self._by_name[name] = model

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def get(self, name: str) -> Model:
        """Return the model. Raises MODEL_NOT_FOUND."""
        model = self._by_name.get(name)
        if model is None:
            raise not_found(name)
        return model

    def get_ready(self, name: str) -> Model:
        """Return the model if it takes requests. Raises MODEL_NOT_FOUND or MODEL_NOT_READY."""
        model = self.get(name)
        if model.health is not Health.READY:
            state = "still loading" if model.health is Health.LOADING else "not available now"
            raise ServiceError(
                Reason.MODEL_NOT_READY, f"The model {model.id!r} is {state}; retry later.", retry_after_s=RETRY_AFTER_S
            )
        return model


def not_found(name: str) -> ServiceError:
    """Return what is said of a model that does not exist, or does not for whoever asks."""
    shown = shown_name(name)
    return ServiceError(Reason.MODEL_NOT_FOUND, f"The model {shown!r} does not exist.", metadata={"model": shown})


def shown_name(name: str) -> str:
    """Return the name that a caller used for a model, cut to what an error may hold."""
    return name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
