"""The routes of generations that are known by their id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import FastAPI, Header, Request
from starlette.responses import Response

from gateway import sse
from gateway.call_options import generation_options, short_call_options
from gateway.config import GatewaySettings
from gateway.generation import Generations
from gateway.openai.event_ids import LAST_EVENT_ID
from gateway.openapi import error_responses
from gateway.resuming import cancel_generation, generation_document, read_events
from gateway.short_calls import while_client_waits

__all__ = ["add_generations"]

_EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {sse.CONTENT_TYPE.partition(";")[0]: {}}, "description": "The stream as it was asked for."},
    204: {"description": "It was read to its end; an EventSource does not come back."},
}


def add_generations(api: FastAPI, settings: GatewaySettings, generations: Callable[[], Generations]) -> None:
    """Register the routes."""

    @api.get("/v1/generations/{generation_id}", tags=["generations"], responses=error_responses(404, 503, 504))
    async def get_generation(generation_id: str, request: Request) -> Response:
        """Say where a generation is; its id may be that of an answer."""
        options = short_call_options(request, settings)
        return await while_client_waits(request, generation_document(generations().upstream, generation_id, options))

    @api.post("/v1/generations/{generation_id}/cancel", tags=["generations"], responses=error_responses(404, 503, 504))
    async def cancel(generation_id: str, request: Request) -> Response:
        """Stop a generation; its stream ends with an error that says so."""
        options = short_call_options(request, settings)
        return await while_client_waits(request, cancel_generation(generations().upstream, generation_id, options))

    @api.get(
        "/v1/generations/{generation_id}/events",
        tags=["generations"],
        responses={**_EVENTS, **error_responses(400, 404, 410, 503, 504)},
        response_class=Response,
    )
    async def stream_events(
        generation_id: str,
        request: Request,
        last_event_id: Annotated[str | None, Header(alias=LAST_EVENT_ID)] = None,
    ) -> Response:
        """Read the stream of a retained generation, from its beginning or behind an event."""
        options = generation_options(request, settings)
        return await read_events(generations(), generation_id, options, last_event_id)
