"""The HTTP application: routes, and what stands behind them while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi_offline import FastAPIOffline
from opentelemetry import metrics, trace
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway import tokens
from gateway.body import read_json_body
from gateway.call_options import generation_options, short_call_options
from gateway.config import GatewaySettings
from gateway.cors import with_cors
from gateway.event_stream import StreamTimes
from gateway.generation import Generations, draining
from gateway.handover import Handover
from gateway.kept_routes import add_generations
from gateway.openai import documents
from gateway.openai.chat import ChatRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.errors import ApiError
from gateway.openai.models import model_document, model_list_document
from gateway.openai.requests import Endpoint, GenerationCall, parse
from gateway.openai.tokenize import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from gateway.openapi import generation_operation, install_openapi, json_operation, short_operation
from gateway.outermost import OutermostLayer
from gateway.page_routes import Page, add_page
from gateway.readiness import Readiness, ServiceHealth
from gateway.refusals import on_api_error, on_bug, on_http_exception, unknown_url
from gateway.responses import add_responses
from gateway.resuming import started_or_joined
from gateway.short_calls import while_client_waits
from gateway.telemetry import GatewayTelemetry
from gateway.upstream import Upstream

__all__ = ["Gateway"]

_DEGRADED: Final = (
    "the inference service is degraded: a model or a replica is not ready, or a waiting line was full within the last "
    "seconds"
)
_NO_TELEMETRY_OF_ITS_OWN: Final = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False}


class Gateway:
    """The ASGI application. Its channel to the service lives from lifespan startup to shutdown."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        version: str = "0",
        tracers: trace.TracerProvider | None = None,
        meters: metrics.MeterProvider | None = None,
    ) -> None:
        self.settings = settings
        self.is_leaving = False  # /readyz says no
        self.is_refusing = False  # new generations are refused
        self._generations: Generations | None = None
        self._readiness: Readiness | None = None
        app = with_cors(Handover(_api(self, version)), settings.cors_origins)
        telemetry = GatewayTelemetry(settings.trust_inbound_trace, settings.objectives, tracers=tracers, meters=meters)
        self._app = OutermostLayer(app, telemetry, lambda: self.is_leaving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        await self._app(scope, receive, send)

    @property
    def generations(self) -> Generations:
        """The running generations; the application must have started."""
        assert self._generations is not None, "the application has not started"
        return self._generations

    def end_all(self) -> None:
        """End every running generation with an error; for the end of a shutdown's grace."""
        if self._generations is not None:
            self._generations.end_all()

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """Hold the channel to the service open."""
        upstream = Upstream(self.settings)
        times = StreamTimes(
            status_hold_s=self.settings.status_hold_s,
            heartbeat_s=self.settings.heartbeat_s,
            send_timeout_s=self.settings.send_timeout_s,
        )
        self._generations = Generations(upstream, times)
        self._readiness = Readiness(upstream.health)
        try:
            async with self._readiness:
                yield
        finally:
            await upstream.close()

    async def accept(self, parse_body: Callable[[bytes], GenerationCall], request: Request) -> Response:
        """Return the response to a generation request. ApiError if it is refused here."""
        if self.is_refusing:
            raise draining()
        options = generation_options(request, self.settings)
        body = await read_json_body(
            request.headers,
            request.receive,
            options.budget,
            limit_bytes=self.settings.body_limit_bytes,
            timeout_s=self.settings.body_timeout_s,
        )
        return await started_or_joined(self.generations, parse_body(body), options, request, body)

    async def readiness(self) -> Response:
        """Return the answer to whoever asks whether requests should come here."""
        assert self._readiness is not None, "the application has not started"
        if self.is_leaving:
            return _not_ready("the gateway is shutting down")
        match await self._readiness.now():
            case ServiceHealth.SERVING:
                return JSONResponse({"status": "ready"})
            case ServiceHealth.DEGRADED:
                return JSONResponse({"status": "degraded", "reason": _DEGRADED})
            case ServiceHealth.NOT_SERVING:
                return _not_ready("the inference service does not report that it is serving")


def _not_ready(reason: str) -> Response:
    return JSONResponse({"status": "not ready", "reason": reason}, 503)


def _api(gateway: Gateway, version: str) -> FastAPI:
    common: dict[str, Any] = {
        "title": "Headrace",
        "version": version,
        "description": "OpenAI-shaped HTTP API of a gRPC streaming inference service.",
        "lifespan": gateway.lifespan,
        # A redirect of a POST loses its body in many clients.
        "redirect_slashes": False,
        "generate_unique_id_function": lambda route: route.name,
        "telemetry": _NO_TELEMETRY_OF_ITS_OWN,
    }
    if gateway.settings.docs:
        api = FastAPIOffline(docs_url="/docs", redoc_url=None, **common)
    else:
        api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, **common)
    api.add_exception_handler(ApiError, on_api_error)
    api.add_exception_handler(HTTPException, on_http_exception)
    api.add_exception_handler(Exception, on_bug)
    install_openapi(api)

    @api.post(
        "/v1/chat/completions",
        tags=["generation"],
        **generation_operation(ChatRequest, documents.ChatCompletion, documents.ChatCompletionChunk),
    )
    async def create_chat_completion(request: Request) -> Response:
        """Continue a conversation."""
        return await gateway.accept(partial(parse, Endpoint.CHAT), request)

    @api.post(
        "/v1/completions",
        tags=["generation"],
        **generation_operation(CompletionRequest, documents.Completion, documents.CompletionChunk),
    )
    async def create_completion(request: Request) -> Response:
        """Continue a text."""
        return await gateway.accept(partial(parse, Endpoint.COMPLETION), request)

    add_responses(api, gateway.accept, gateway.settings, lambda: gateway.generations)

    add_generations(api, gateway.settings, lambda: gateway.generations)

    @api.post("/v1/tokenize", tags=["tokens"], **json_operation(TokenizeRequest, TokenizeAnswer))
    async def tokenize(request: Request) -> Response:
        """Return the token ids of a text or a conversation."""
        return await tokens.tokenize(request, gateway.settings, gateway.generations.upstream)

    @api.post("/v1/detokenize", tags=["tokens"], **json_operation(DetokenizeRequest, DetokenizeAnswer))
    async def detokenize(request: Request) -> Response:
        """Return the text of token ids."""
        return await tokens.detokenize(request, gateway.settings, gateway.generations.upstream)

    @api.get("/v1/models", tags=["models"], **short_operation(documents.ModelList, 400, 503, 504))
    async def list_models(request: Request) -> Response:
        """List the models of the service."""
        options = short_call_options(request, gateway.settings)
        listing = gateway.generations.upstream.list_models(options)
        return JSONResponse(model_list_document(await while_client_waits(request, listing)))

    @api.get("/v1/models/{model:path}", tags=["models"], **short_operation(documents.Model, 400, 404, 503, 504))
    async def get_model(model: str, request: Request) -> Response:
        """Get one model by id or alias; ids may contain slashes."""
        if not model:
            raise unknown_url(request)
        options = short_call_options(request, gateway.settings)
        lookup = gateway.generations.upstream.get_model(model, options)
        return JSONResponse(model_document(await while_client_waits(request, lookup)))

    page = Page.packaged() if gateway.settings.page else None
    if page is not None:
        add_page(api, page)

    @api.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        """Show the page to a browser, and say to others where to go."""
        if page is not None and (shown := page.index(request)) is not None:
            return shown
        pages = {"docs": "/docs", "openapi": "/openapi.json"} if gateway.settings.docs else {}
        document = {"name": "headrace", "version": version, "models": "/v1/models", **pages}
        return JSONResponse(document, headers={"vary": "accept"} if page is not None else None)

    @api.get("/healthz", tags=["health"])
    async def is_alive() -> dict[str, str]:
        """Say that the process lives; asks nobody else."""
        return {"status": "ok"}

    @api.get("/readyz", tags=["health"], responses={503: {"description": "Not now; the body says why."}})
    async def is_ready() -> Response:
        """Say whether requests should come here: ready, degraded (they should, but something is wrong), or not."""
        return await gateway.readiness()

    return api
