"""Models of the service in the shape of the OpenAI API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.v1 import model_pb2

__all__ = ["model_document", "model_list_document"]


def model_document(model: model_pb2.Model) -> dict[str, Any]:
    """Return one model."""
    return {
        "id": model.id,
        "object": "model",
        "created": model.create_time.seconds,
        "owned_by": model.owned_by or "headrace",
    }


def model_list_document(models: Iterable[model_pb2.Model]) -> dict[str, Any]:
    """Return the list, in the service's order."""
    return {"object": "list", "data": [model_document(model) for model in models]}
