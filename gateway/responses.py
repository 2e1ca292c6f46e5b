"""The routes of the Responses API: one that answers, and those of stored responses, which say that there are none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from gateway.openai.errors import invalid_request
from gateway.openai.requests import GenerationCall
from gateway.openai.responses.call import parse
from gateway.openai.responses.documents import ResponseObject, ResponseStreamEvent
from gateway.openai.responses.request import ResponseRequest
from gateway.openapi import error_responses, generation_operation

__all__ = ["add_responses"]

# Runs what a parser makes of a request's body.
Accept = Callable[[Callable[[bytes], GenerationCall], Request], Awaitable[Response]]


def add_responses(api: FastAPI, accept: Accept) -> None:
    """Register the routes; `accept` turns a request into the response that runs it."""

    @api.post(
        "/v1/responses",
        tags=["generation"],
        **generation_operation(ResponseRequest, ResponseObject, ResponseStreamEvent, last="response.completed"),
    )
    async def create_response(request: Request) -> Response:
        """Answer a text or a list of items; nothing is stored."""
        return await accept(parse, request)

    stored: dict[str, Any] = {"tags": ["generation"], "responses": error_responses(404)}

    @api.get("/v1/responses/{response_id}", **stored)
    async def get_response(response_id: str) -> Response:
        """Always 404: nothing is stored."""
        raise _not_stored(response_id)

    @api.delete("/v1/responses/{response_id}", **stored)
    async def delete_response(response_id: str) -> Response:
        """Always 404: nothing is stored."""
        raise _not_stored(response_id)

    @api.post("/v1/responses/{response_id}/cancel", **stored)
    async def cancel_response(response_id: str) -> Response:
        """Always 404: leaving the connection cancels a response."""
        raise _not_stored(response_id)

    @api.get("/v1/responses/{response_id}/input_items", **stored)
    async def list_input_items(response_id: str) -> Response:
        """Always 404: nothing is stored."""
        raise _not_stored(response_id)


def _not_stored(response_id: str) -> Exception:
    return invalid_request(
        f"Response with id '{response_id[:64]}' not found. This server stores no responses.",
        param="response_id",
        http_status=404,
    )
