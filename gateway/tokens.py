"""Serves tokenize and detokenize over HTTP: body to call to answer, within one deadline."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import JSONResponse, Response

from gateway.body import read_json_body
from gateway.call_options import short_call_options
from gateway.config import GatewaySettings
from gateway.openai.tokenize import parse_detokenize, parse_tokenize, tokenize_document
from gateway.short_calls import while_client_waits
from gateway.upstream import CallOptions, Upstream

__all__ = ["detokenize", "tokenize"]


async def tokenize(request: Request, settings: GatewaySettings, upstream: Upstream) -> Response:
    """Return the answer to a tokenize request. ApiError for everything that goes wrong."""
    options, body = await _accept(request, settings)
    call = parse_tokenize(body)
    answer = await while_client_waits(request, upstream.tokenize(call, options))
    return JSONResponse(tokenize_document(answer, with_pieces=call.include_pieces))


async def detokenize(request: Request, settings: GatewaySettings, upstream: Upstream) -> Response:
    """Return the answer to a detokenize request. ApiError for everything that goes wrong."""
    options, body = await _accept(request, settings)
    asked, naming = parse_detokenize(body)
    text = await while_client_waits(request, upstream.detokenize(asked.model, asked.tokens, options, naming))
    return JSONResponse({"prompt": text})


async def _accept(request: Request, settings: GatewaySettings) -> tuple[CallOptions, bytes]:
    options = short_call_options(request, settings)
    body = await read_json_body(
        request.headers,
        request.receive,
        options.budget,
        limit_bytes=settings.body_limit_bytes,
        timeout_s=settings.body_timeout_s,
    )
    return options, body
