"""Which models a caller sees, and which it may use."""

from __future__ import annotations

from service.catalog.model import Model
from service.catalog.registry import Registry, not_found, shown_name
from service.core.errors import Reason, ServiceError
from service.core.identity import Identity

__all__ = ["allowed_model", "visible_model", "visible_models"]


def allowed_model(registry: Registry, name: str, identity: Identity) -> Model:
    """Return the model with this id or alias if it takes requests and the caller may use it.

    Raises MODEL_NOT_FOUND, PERMISSION_DENIED or MODEL_NOT_READY.
    """
    model = registry.get(name)
    if not identity.may_use(model.id):
        shown = shown_name(name)
        raise ServiceError(
            Reason.PERMISSION_DENIED, f"These credentials are not for the model {shown!r}.", metadata={"model": shown}
        )
    return registry.get_ready(name)


def visible_model(registry: Registry, name: str, identity: Identity) -> Model:
    """Return the model with this id or alias. MODEL_NOT_FOUND if there is none, or it is not for the caller."""
    model = registry.get(name)
    if not identity.may_use(model.id):
        raise not_found(name)
    return model


def visible_models(registry: Registry, identity: Identity) -> list[Model]:
    """Return the models that the caller may use, ordered by id."""
    return [model for model in registry if identity.may_use(model.id)]
