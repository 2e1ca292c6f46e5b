"""The routes of the Responses API: the one that answers, and those of responses that are known by their id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from gateway.call_options import generation_options, short_call_options
from gateway.config import GatewaySettings
from gateway.generation import Generations
from gateway.kept_responses import cancelled_response, not_stored, rest_of_response, retrieved_response
from gateway.openai.errors import ApiError, invalid_request
from gateway.openai.requests import GenerationCall
from gateway.openai.responses.call import parse
from gateway.openai.responses.documents import ResponseObject, ResponseStreamEvent
from gateway.openai.responses.request import ResponseRequest
from gateway.openapi import error_responses, generation_operation, kept_operation, short_operation
from gateway.short_calls import while_client_waits

__all__ = ["add_responses"]

# Runs what a parser makes of a request's body.
Accept = Callable[[Callable[[bytes], GenerationCall], Request], Awaitable[Response]]

_LAST: Final = "response.completed"
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}
_MAX_DIGITS: Final = 9
_GOES_AWAY: Final = "This server stores no responses: what is kept of one goes away by itself."
_NO_INPUT: Final = "This server stores no responses: of its input nothing is kept."


def add_responses(
    api: FastAPI, accept: Accept, settings: GatewaySettings, generations: Callable[[], Generations]
) -> None:
    """Register the routes; `accept` turns a request into the response that runs it."""

    @api.post(
        "/v1/responses",
        tags=["generation"],
        **generation_operation(ResponseRequest, ResponseObject, ResponseStreamEvent, last=_LAST),
    )
    async def create_response(request: Request) -> Response:
        """Answer a text or a list of items; one in the background is kept for some minutes, others on request."""
        return await accept(parse, request)

    @api.get(
        "/v1/responses/{response_id}",
        tags=["generation"],
        **kept_operation(ResponseObject, ResponseStreamEvent, _LAST, 400, 404, 410, 503, 504),
    )
    async def get_response(response_id: str, request: Request) -> Response:
        """Return a response that is kept as it is now, or its stream, from the beginning or behind an event."""
        is_stream, starting_after = _asked(request.query_params)
        if is_stream:
            options = generation_options(request, settings)
            return await rest_of_response(generations(), response_id, options, starting_after)
        options = short_call_options(request, settings)
        answer = retrieved_response(generations().upstream, response_id, options)
        return await while_client_waits(request, answer)

    @api.post(
        "/v1/responses/{response_id}/cancel",
        tags=["generation"],
        **short_operation(ResponseObject, 400, 404, 503, 504),
    )
    async def cancel_response(response_id: str, request: Request) -> Response:
        """Stop a response in the background; one that has ended stays as it ended."""
        options = short_call_options(request, settings)
        answer = cancelled_response(generations().upstream, response_id, options)
        return await while_client_waits(request, answer)

    missing: dict[str, Any] = {"tags": ["generation"], "responses": error_responses(404)}

    @api.delete("/v1/responses/{response_id}", **missing)
    async def delete_response(response_id: str) -> Response:
        """Always 404: what is kept goes away by itself."""
        raise not_stored(response_id, _GOES_AWAY)

    @api.get("/v1/responses/{response_id}/input_items", **missing)
    async def list_input_items(response_id: str) -> Response:
        """Always 404: of the input nothing is kept."""
        raise not_stored(response_id, _NO_INPUT)


def _asked(query: Mapping[str, str]) -> tuple[bool, int | None]:
    """Return whether a stream is asked for, and behind which number. ApiError (400)."""
    is_stream = _FLAGS.get(query.get("stream", "").lower())
    if is_stream is None:
        raise _wrong("stream", "true or false")
    after = query.get("starting_after", "")
    if after and not (after.isascii() and after.isdigit() and len(after) <= _MAX_DIGITS):
        raise _wrong("starting_after", "the sequence_number of an event")
    return is_stream, int(after) if after else None


def _wrong(name: str, expected: str) -> ApiError:
    return invalid_request(f"Invalid '{name}': expected {expected}.", param=name, code="invalid_value")
