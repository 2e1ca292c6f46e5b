"""The service as the gateway sees it: one client, its calls, and their failures as `ApiError`.

The only module of the gateway that knows the client package. It holds no
policy: credentials, request id and trace context are handed on, the deadline
travels as the gRPC deadline.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.context import Context
from starlette.datastructures import Headers

from gateway.config import GatewaySettings
from gateway.openai.errors import ApiError, Naming, from_upstream, invalid_request
from gateway.openai.tokenize import TokenizeCall, no_tokenizer
from gateway.readiness import ServiceHealth
from gateway.timeouts import Budget
from headrace import AsyncClient, GenerationStream, HeadraceError, TlsConfig
from headrace.v1 import generation_pb2 as gen
from headrace.v1 import model_pb2, tokenize_pb2

__all__ = ["CallOptions", "Upstream", "metadata_from"]

Metadata = Sequence[tuple[str, str]]

# The name under which the service says that nothing is wrong at all.
HEALTHY: Final = "healthy"
_TOLD_HEADERS: Final = ("x-ratelimit-", "idempotent-replayed")
# What a gRPC metadata value may hold. Others cannot be handed on, and a service
# that asks for credentials then finds none.
# The service allows a ping every 10 s; one that vanished is noticed within 40 s.
_KEEPALIVE: Final = {"grpc.keepalive_time_ms": 30_000, "grpc.keepalive_timeout_ms": 10_000}
_REPRESENTABLE: Final = re.compile(r"[\x20-\x7e]+")
# Above 8 KiB of metadata a gRPC server may refuse a call; the rest is the request's id and the trace.
_MAX_CREDENTIALS_BYTES: Final = 6 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What goes with calls besides their requests: their time, what is handed on, and the span that they belong to."""

    budget: Budget
    metadata: Metadata
    context: Context
    # The generations that were begun with them.
    begun: list[GenerationStream] = field(default_factory=list)
    # Filled with the trailing metadata of each that has ended.
    trailers: dict[str, str] = field(default_factory=dict)

    def left_s(self) -> float:
        """Return the deadline of a call that begins now, seconds. ApiError (504) if nothing is left for one."""
        return self.budget.left_s(time.perf_counter())

    def told(self) -> dict[str, str]:
        """Return headers for the caller: where its limits stand, and whether it joined what another call began."""
        found: dict[str, str] = {}
        for generation in self.begun:
            found |= {name: value for name, value in generation.headers.items() if name.startswith(_TOLD_HEADERS)}
        return found

    @property
    def has_key(self) -> bool:
        """Whether the caller sent credentials that can be handed on."""
        return any(name == "authorization" for name, _ in self.metadata)


class Upstream:
    """The channel to the service. Make it inside the running loop, never before a fork."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._ready_timeout_s = settings.ready_timeout_s
        self._client = AsyncClient(
            settings.target, tls=_tls(settings), transport=settings.transport, channel_options=_KEEPALIVE
        )

    async def close(self) -> None:
        """Close the channel and cancel what still runs on it."""
        await self._client.close()

    @asynccontextmanager
    async def generate(
        self, request: gen.GenerateRequest, options: CallOptions, naming: Naming
    ) -> AsyncIterator[GenerationStream]:
        """Run one generation; leaving the block cancels it. ApiError for every failure of the call."""
        with _as_api_error(options, naming):
            generation = self._client.generate(
                request, timeout_s=options.left_s(), metadata=options.metadata, context=options.context
            )
            try:
                async with generation as events:
                    options.begun.append(events)
                    yield events
            finally:
                options.trailers.update(generation.trailers)

    @asynccontextmanager
    async def attach(self, generation_id: str, options: CallOptions, naming: Naming) -> AsyncIterator[GenerationStream]:
        """Read a retained generation from its first event on. ApiError for every failure of the call."""
        with _as_api_error(options, naming):
            async with self._client.attach(
                generation_id, timeout_s=options.left_s(), metadata=options.metadata, context=options.context
            ) as events:
                yield events

    async def get_generation(
        self, generation_id: str | None, options: CallOptions, *, idempotency_key: str | None = None
    ) -> gen.GetGenerationResponse:
        """Return where a generation is, by id or key. ApiError for every failure of the call, 404 if there is none."""
        with _as_api_error(options):
            return await self._client.get_generation(
                generation_id,
                idempotency_key=idempotency_key,
                timeout_s=options.left_s(),
                metadata=options.metadata,
                context=options.context,
            )

    async def cancel_generation(
        self, generation_id: str | None, options: CallOptions, *, idempotency_key: str | None = None
    ) -> gen.CancelGenerationResponse:
        """Stop a generation, by id or key. ApiError for every failure of the call, 404 if there is none."""
        with _as_api_error(options):
            return await self._client.cancel_generation(
                generation_id,
                idempotency_key=idempotency_key,
                timeout_s=options.left_s(),
                metadata=options.metadata,
                context=options.context,
            )

    async def tokenize(self, call: TokenizeCall, options: CallOptions) -> tokenize_pb2.TokenizeResponse:
        """Return the token ids of a text or a conversation. ApiError for every failure of the call."""
        try:
            return await self._client.tokenize(
                call.model,
                call.text,
                chat=call.chat,
                skip_special_tokens=call.skip_special_tokens,
                include_pieces=call.include_pieces,
                timeout_s=options.left_s(),
                metadata=options.metadata,
                context=options.context,
            )
        except HeadraceError as error:
            raise _token_error(error, call.naming, options) from error

    async def detokenize(
        self,
        model: str,
        token_ids: Sequence[int],
        options: CallOptions,
        naming: Naming,
        *,
        skip_special_tokens: bool = False,
    ) -> str:
        """Return the text of token ids. ApiError for every failure of the call."""
        try:
            return await self._client.detokenize(
                model,
                token_ids,
                skip_special_tokens=skip_special_tokens,
                timeout_s=options.left_s(),
                metadata=options.metadata,
                context=options.context,
            )
        except HeadraceError as error:
            raise _token_error(error, naming, options) from error

    async def list_models(self, options: CallOptions) -> list[model_pb2.Model]:
        """Return every model. ApiError for every failure of the call."""
        with _as_api_error(options):
            return await self._client.list_models(
                timeout_s=options.left_s(), metadata=options.metadata, context=options.context
            )

    async def get_model(self, model: str, options: CallOptions) -> model_pb2.Model:
        """Return one model by id or alias. ApiError for every failure of the call, 404 if there is none."""
        with _as_api_error(options, Naming(fields={}, prompt="", model=model)):
            return await self._client.get_model(
                model, timeout_s=options.left_s(), metadata=options.metadata, context=options.context
            )

    async def health(self) -> ServiceHealth:
        """Return what the service says of itself within `ready_timeout_s`; NOT_SERVING if it says nothing."""
        timeout_s = self._ready_timeout_s / 2
        if await self._client.health(timeout_s=timeout_s):
            is_well = await self._client.health(HEALTHY, timeout_s=timeout_s)
            return ServiceHealth.SERVING if is_well else ServiceHealth.DEGRADED
        # Calls go to all addresses of a target in turn: another replica may serve.
        is_serving = await self._client.health(timeout_s=timeout_s)
        return ServiceHealth.DEGRADED if is_serving else ServiceHealth.NOT_SERVING


def metadata_from(headers: Headers, request_id: str) -> Metadata:
    """Return what goes with a call: credentials as they came, and its id. ApiError (431) if they are too large."""
    credentials = [
        ("authorization", value) for value in headers.getlist("authorization") if _REPRESENTABLE.fullmatch(value)
    ]
    # HTTP/2 counts 32 bytes for each entry besides its name and value.
    if sum(len(name) + len(value) + 32 for name, value in credentials) > _MAX_CREDENTIALS_BYTES:
        raise invalid_request(
            f"The request's 'Authorization' header fields are larger than can be handed on ({_MAX_CREDENTIALS_BYTES} "
            "bytes).",
            code="request_header_fields_too_large",
            http_status=431,
        )
    return [*credentials, ("x-request-id", request_id)]


@contextmanager
def _as_api_error(options: CallOptions, naming: Naming | None = None) -> Iterator[None]:
    """Raise the failure of a call as what is said of it over HTTP."""
    try:
        yield
    except HeadraceError as error:
        raise _api_error(error, naming, has_key=options.has_key) from error


def _api_error(error: HeadraceError, naming: Naming | None = None, *, has_key: bool = True) -> ApiError:
    return from_upstream(
        error.status.name,
        error.reason,
        error.message,
        naming=naming,
        violations=[(violation.field, violation.description) for violation in error.violations],
        metadata=error.metadata,
        retry_after_s=error.retry_after_s,
        limits=error.headers,
        has_key=has_key,
    )


def _token_error(error: HeadraceError, naming: Naming, options: CallOptions) -> ApiError:
    if error.reason == "CAPABILITY_UNSUPPORTED" and error.metadata.get("capability") == "tokenize":
        return no_tokenizer(naming.model or "")
    return _api_error(error, naming, has_key=options.has_key)


def _tls(settings: GatewaySettings) -> TlsConfig | None:
    if not settings.uses_tls:
        return None
    return TlsConfig.from_files(
        ca=settings.tls_ca_file,
        cert=settings.tls_cert_file,
        key=settings.tls_key_file,
        server_name=settings.tls_server_name,
    )
