"""ModelService: what is served."""

from __future__ import annotations

from typing import Any, Final

from headrace.v1 import model_pb2, model_pb2_grpc
from service.catalog.registry import Registry
from service.core.errors import Violation, invalid
from service.rpc.call import current_call
from service.rpc.convert import model_to_proto
from service.rpc.drain import Drain
from service.rpc.permission import visible_model, visible_models

__all__ = ["ModelServicer"]

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 200


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Serves ListModels and GetModel. Errors leave as `ServiceError`."""

    def __init__(self, registry: Registry, drain: Drain) -> None:
        self._registry = registry
        self._drain = drain

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> model_pb2.ListModelsResponse:  # noqa: ARG002
        """Return a page of what the caller may use, ordered by id. The page token is the id that it begins after."""
        models = visible_models(self._registry, current_call().identity)
        found = []
        if not 0 <= request.page_size <= MAX_PAGE:
            found.append(Violation("page_size", f"must be from 0 to {MAX_PAGE}, got {request.page_size}"))
        ids = [model.id for model in models]
        if request.page_token and request.page_token not in ids:
            found.append(Violation("page_token", "is not a token of this server; start again without one"))
        if found:
            raise invalid(found)
        begin = ids.index(request.page_token) + 1 if request.page_token else 0
        end = begin + (request.page_size or DEFAULT_PAGE)
        return model_pb2.ListModelsResponse(
            models=[model_to_proto(model, is_draining=self._drain.is_draining) for model in models[begin:end]],
            next_page_token=ids[end - 1] if end < len(ids) else "",
        )

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> model_pb2.GetModelResponse:  # noqa: ARG002
        """Return one model. MODEL_NOT_FOUND if no model that the caller may use has that id or alias."""
        if not request.model:
            raise invalid([Violation("model", "required")])
        model = visible_model(self._registry, request.model, current_call().identity)
        return model_pb2.GetModelResponse(model=model_to_proto(model, is_draining=self._drain.is_draining))
