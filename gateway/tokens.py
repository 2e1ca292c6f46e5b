"""Serves tokenize and detokenize over HTTP: body to call to answer, within one deadline."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import JSONResponse, Response

from gateway.body import read_json_body
from gateway.config import GatewaySettings
from gateway.exchange import exchange_of
from gateway.openai.tokenize import parse_detokenize, parse_tokenize, tokenize_document
from gateway.timeouts import timeout_s
from gateway.upstream import CallOptions, Upstream, metadata_from

__all__ = ["detokenize", "tokenize"]


async def tokenize(request: Request, settings: GatewaySettings, upstream: Upstream) -> Response:
    """Return the answer to a tokenize request. ApiError for everything that goes wrong."""
    options, body = await _accept(request, settings)
    call = parse_tokenize(body)
    answer = await upstream.tokenize(call, options)
    return JSONResponse(tokenize_document(answer, with_pieces=call.include_pieces))


async def detokenize(request: Request, settings: GatewaySettings, upstream: Upstream) -> Response:
    """Return the answer to a detokenize request. ApiError for everything that goes wrong."""
    options, body = await _accept(request, settings)
    asked, naming = parse_detokenize(body)
    text = await upstream.detokenize(asked.model, asked.tokens, options, naming)
    return JSONResponse({"prompt": text})


async def _accept(request: Request, settings: GatewaySettings) -> tuple[CallOptions, bytes]:
    limit_s = timeout_s(request.headers, default_s=settings.unary_timeout_s, max_s=settings.max_timeout_s)
    body = await read_json_body(
        request.headers, request.receive, limit_bytes=settings.body_limit_bytes, timeout_s=settings.body_timeout_s
    )
    exchange = exchange_of(request.scope)
    metadata = metadata_from(request.headers, exchange.request_id)
    return CallOptions(timeout_s=limit_s, metadata=metadata, context=exchange.context), body
