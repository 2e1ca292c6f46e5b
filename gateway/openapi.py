"""The OpenAPI document of the gateway.

Bodies are parsed by `gateway.openai.requests` and not by the framework, so
their schemas are put into the document here.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.openai import documents
from gateway.openai.chat import ChatRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.responses.documents import ResponseObject, ResponseStreamEvent
from gateway.openai.responses.request import ResponseRequest
from gateway.openai.tokenize import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from gateway.timeouts import REQUEST_TIMEOUT, TIME_LIMIT

__all__ = [
    "error_responses",
    "generation_operation",
    "install_openapi",
    "json_operation",
    "kept_operation",
    "short_operation",
]

_REF: Final = "#/components/schemas/"
_NAME: Final = re.compile(f'"{_REF}([^"]+)"')
_MODELS: Final[tuple[type[BaseModel], ...]] = (
    ChatRequest,
    CompletionRequest,
    documents.ChatCompletion,
    documents.ChatCompletionChunk,
    documents.Completion,
    documents.CompletionChunk,
    documents.ErrorDocument,
    documents.Model,
    documents.ModelList,
    ResponseRequest,
    ResponseObject,
    ResponseStreamEvent,
    TokenizeRequest,
    TokenizeAnswer,
    DetokenizeRequest,
    DetokenizeAnswer,
)
_ERRORS: Final = {
    400: "The request is wrong; the message names every problem.",
    404: "Nothing has this name.",
    410: "The events are no longer kept.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    500: "A fault of the server.",
    503: "Overloaded, loading or shutting down; see retry-after.",
    504: "The deadline passed.",
}

# Bodies that work as they are, where the model "default" exists.
_EXAMPLES: Final[dict[type[BaseModel], dict[str, object]]] = {
    ChatRequest: {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 32},
    CompletionRequest: {"prompt": "The capital of France is", "max_tokens": 8},
    ResponseRequest: {"input": "What is the capital of France?", "max_output_tokens": 32},
    TokenizeRequest: {"prompt": "The capital of France is", "return_token_strs": True},
    DetokenizeRequest: {"tokens": [1, 2, 3]},
}

Json = dict[str, Any]

_STRING: Final = {"type": "string"}
_TIMEOUT: Final[Json] = {
    "name": REQUEST_TIMEOUT,
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 1},
    "description": "Deadline of the request in milliseconds.",
}
_TIME_LIMIT: Final[Json] = {
    **_TIMEOUT,
    "name": TIME_LIMIT,
    "description": "After so many milliseconds the answer ends with what there is: finish_reason length, "
    "native_finish_reason time_limit.",
}
_STREAMED: Final[list[Json]] = [
    {
        "name": "stream",
        "in": "query",
        "required": False,
        "schema": {"type": "boolean", "default": False},
        "description": "Answer as server-sent events.",
    },
    {
        "name": "starting_after",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 0},
        "description": "Of a stream: the sequence_number of the event behind which it begins.",
    },
]
_DONE: Final = "[DONE]"


def error_responses(*statuses: int) -> dict[int | str, Json]:
    """Return the `responses` of an operation for these statuses."""
    return {status: {"description": _ERRORS[status], "content": _json("ErrorDocument")} for status in statuses}


def generation_operation(
    request: type[BaseModel], answer: type[BaseModel], chunk: type[BaseModel], last: str = _DONE
) -> Json:
    """Return what the framework cannot know of a generation endpoint: keywords for its route."""
    return _posted(request, _answered(answer, chunk, last), _TIME_LIMIT)


def kept_operation(answer: type[BaseModel], chunk: type[BaseModel], last: str, *statuses: int) -> Json:
    """Return keywords for the route of a GET that answers as a generation endpoint did; `stream` decides how."""
    return {
        "responses": {200: _answered(answer, chunk, last), **error_responses(*statuses)},
        "openapi_extra": {"parameters": [*_STREAMED, _TIMEOUT]},
    }


def _answered(answer: type[BaseModel], chunk: type[BaseModel], last: str) -> Json:
    # An event as OpenAPI describes one: an object of its fields, whose data is a document in a string.
    documents_of = [{"$ref": _REF + chunk.__name__}, {"$ref": _REF + "ErrorDocument"}]
    data = [{"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": documents_of}}]
    if last == _DONE:
        data.append({"const": last})
    # Only OpenAPI 3.2 has a word of its own for the schema of one event.
    stream = {
        "schema": {
            "description": f"Each server-sent event; the data of each is one {chunk.__name__}, the last is {last}. "
            "A failure on the way is told by the last event. Comment lines keep the connection alive.",
            "type": "object",
            "properties": {"data": {"anyOf": data}, "event": _STRING, "id": _STRING},
            "required": ["data"],
        },
    }
    return {
        "description": "The whole answer, or a stream of events.",
        "content": {**_json(answer.__name__), "text/event-stream": stream},
    }


def json_operation(request: type[BaseModel], answer: type[BaseModel]) -> Json:
    """Return the same for an endpoint whose answer is one document."""
    return _posted(request, {"description": "The answer.", "content": _json(answer.__name__)})


def short_operation(answer: type[BaseModel], *statuses: int) -> Json:
    """Return keywords for the route of a GET whose errors may have these statuses."""
    return {
        "response_model": answer,
        "responses": error_responses(*statuses),
        "openapi_extra": {"parameters": [_TIMEOUT]},
    }


def _posted(request: type[BaseModel], success: Json, *headers: Json) -> Json:
    return {
        "responses": {200: success, **error_responses(*_ERRORS)},
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        **_json(request.__name__)["application/json"],
                        "example": {"model": "default", **_EXAMPLES[request]},
                    }
                },
            },
            "parameters": [_TIMEOUT, *headers],
        },
    }


def install_openapi(app: FastAPI) -> None:
    """Make `app` serve a document with the schemas of bodies and answers in it."""

    def document() -> Json:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, definitions = models_json_schema(
                [(model, "validation") for model in _MODELS], ref_template=_REF + "{model}"
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(definitions.get("$defs", {}))
            # The framework announces its own answer to bad parameters; ours is an ErrorDocument.
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            schema["components"]["schemas"] = _referenced(schema["paths"], schemas)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # the framework's documented way


def _referenced(paths: Json, schemas: Json) -> Json:
    """Return those of `schemas` that something refers to: the library leaves those in that a union hides."""
    found: set[str] = set()
    waiting = [json.dumps(paths)]
    while waiting:
        names = set(_NAME.findall(waiting.pop())) - found
        found |= names
        waiting += [json.dumps(schemas[name]) for name in names]
    return {name: schema for name, schema in schemas.items() if name in found}


def _json(name: str) -> Json:
    return {"application/json": {"schema": {"$ref": _REF + name}}}
