"""The service as the gateway sees it: one client, its calls, and their failures as `ApiError`.

The only module of the gateway that knows the client package. It holds no
policy: credentials, request id and trace context are handed on, the deadline
travels as the gRPC deadline.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from opentelemetry.context import Context
from starlette.datastructures import Headers

from gateway.config import GatewaySettings
from gateway.openai.errors import ApiError, Naming, from_upstream
from headrace import AsyncClient, GenerationStream, HeadraceError, TlsConfig
from headrace.v1 import generation_pb2 as gen
from headrace.v1 import model_pb2

__all__ = ["Upstream"]

Metadata = Sequence[tuple[str, str]]

# What a gRPC metadata value may hold. Others cannot be handed on, and a service
# that asks for credentials then finds none.
# The service allows a ping every 10 s; one that vanished is noticed within 40 s.
_KEEPALIVE: Final = {"grpc.keepalive_time_ms": 30_000, "grpc.keepalive_timeout_ms": 10_000}
_REPRESENTABLE: Final = re.compile(r"[\x20-\x7e]{1,4096}")


class Upstream:
    """The channel to the service. Make it inside the running loop, never before a fork."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._unary_timeout_s = settings.unary_timeout_s
        self._ready_timeout_s = settings.ready_timeout_s
        self._client = AsyncClient(
            settings.target, tls=_tls(settings), transport=settings.transport, channel_options=_KEEPALIVE
        )

    async def close(self) -> None:
        """Close the channel and cancel what still runs on it."""
        await self._client.close()

    @asynccontextmanager
    async def generate(
        self, request: gen.GenerateRequest, *, timeout_s: float, metadata: Metadata, context: Context, naming: Naming
    ) -> AsyncIterator[GenerationStream]:
        """Run one generation; leaving the block cancels it. ApiError for every failure of the call."""
        try:
            async with self._client.generate(
                request, timeout_s=timeout_s, metadata=metadata, context=context
            ) as events:
                yield events
        except HeadraceError as error:
            raise _api_error(error, naming) from error

    async def list_models(self) -> list[model_pb2.Model]:
        """Return every model. ApiError if the service does not answer."""
        try:
            return await self._client.list_models(timeout_s=self._unary_timeout_s)
        except HeadraceError as error:
            raise _api_error(error) from error

    async def get_model(self, model: str) -> model_pb2.Model:
        """Return one model by id or alias. ApiError (404) if there is none."""
        try:
            return await self._client.get_model(model, timeout_s=self._unary_timeout_s)
        except HeadraceError as error:
            raise _api_error(error, Naming(fields={}, prompt="", model=model)) from error

    async def is_serving(self) -> bool:
        """Return whether the service says that it takes requests; False if it does not say so in time."""
        return await self._client.health(timeout_s=self._ready_timeout_s)


def metadata_from(headers: Headers, request_id: str) -> Metadata:
    """Return what goes with a call: credentials as they came, and the request's id."""
    credentials = [
        ("authorization", value) for value in headers.getlist("authorization") if _REPRESENTABLE.fullmatch(value)
    ]
    return [*credentials, ("x-request-id", request_id)]


def _api_error(error: HeadraceError, naming: Naming | None = None) -> ApiError:
    return from_upstream(
        error.status.name,
        error.reason,
        error.message,
        naming=naming,
        violations=[(violation.field, violation.description) for violation in error.violations],
        retry_after_s=error.retry_after_s,
    )


def _tls(settings: GatewaySettings) -> TlsConfig | None:
    if not settings.uses_tls:
        return None
    return TlsConfig.from_files(
        ca=settings.tls_ca_file,
        cert=settings.tls_cert_file,
        key=settings.tls_key_file,
        server_name=settings.tls_server_name,
    )
