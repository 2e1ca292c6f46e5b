"""The asyncio client.

It owns one channel and makes calls on it. It must not know events
(`_stream`), the wire (`_reader`, `_channel`) or how a status becomes an
exception (`errors`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Unpack

import grpc
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider

from headrace._channel import ChannelOptions, TlsConfig, open_channel
from headrace._http2.channel import Http2Channel, open_http2_channel
from headrace._http2.security import ssl_context
from headrace._reader import EventReader, GrpcAioReader
from headrace._requests import RequestFields, build_request
from headrace._stream import GenerationStream
from headrace._telemetry import CallSpan, client_tracer
from headrace.errors import NotFound, error_from_rpc
from headrace.v1 import generation_pb2 as pb
from headrace.v1 import generation_pb2_grpc, model_pb2, model_pb2_grpc

__all__ = ["AsyncClient", "CallMetadata", "Transport"]

CallMetadata = Sequence[tuple[str, str]] | Mapping[str, str]
# What carries Generate: gRPC's own transport, or this package's on the event loop's sockets.
Transport = Literal["grpcio", "asyncio"]
UnaryCall = Callable[..., Awaitable[Any]]

DEFAULT_TARGET: Final = "127.0.0.1:50051"
DEFAULT_TRANSPORT: Transport = "grpcio"
GENERATE_TIMEOUT_S: Final = 600.0
UNARY_TIMEOUT_S: Final = 10.0
GENERATE: Final = "headrace.v1.GenerationService/Generate"
LIST_MODELS: Final = "headrace.v1.ModelService/ListModels"
GET_MODEL: Final = "headrace.v1.ModelService/GetModel"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
SERVING: Final = 1  # grpc.health.v1.HealthCheckResponse.SERVING
PAGE_SIZE: Final = 200


class _Connection:
    """A channel and the calls on it, for one event loop."""

    __slots__ = ("channel", "check_health", "generation", "http2", "loop", "models")

    def __init__(self, target: str, tls: TlsConfig | None, options: ChannelOptions, transport: Transport) -> None:
        self.loop = asyncio.get_running_loop()
        self.http2: Http2Channel | None = None
        if transport == "asyncio":
            self.http2 = open_http2_channel(target, tls, options)
        self.channel = open_channel(target, tls, options)
        self.generation: Any = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.models: Any = model_pb2_grpc.ModelServiceStub(self.channel)
        # The two wrapper messages have the wire format of HealthCheckRequest and HealthCheckResponse
        # (one string, one enum, both field 1), which saves a dependency for one call.
        self.check_health = self.channel.unary_unary(
            HEALTH_CHECK, request_serializer=StringValue.SerializeToString, response_deserializer=Int32Value.FromString
        )

    def open_generation(
        self, request: pb.GenerateRequest, timeout_s: float, metadata: tuple[tuple[str, str], ...]
    ) -> EventReader:
        """Begin a Generate call."""
        if self.http2 is None:
            return GrpcAioReader(self.generation.Generate(request, timeout=timeout_s, metadata=metadata))
        body = request.SerializeToString()
        parse = pb.GenerateResponse.FromString
        return self.http2.call(GENERATE, body, parse, timeout_s=timeout_s, metadata=metadata)

    async def close(self) -> None:
        """Close both transports; calls that still run end as cancelled."""
        try:
            if self.http2 is not None:
                await self.http2.close()
        finally:
            await self.channel.close(None)


class AsyncClient:
    """A client of one Headrace service, for one event loop.

    `target` is a gRPC target ("host:port", "dns:///name:port"). The channel
    opens with the first call, inside the running loop, and is shared by all
    calls; `async with` or `close()` closes it and cancels what still runs.
    `metadata` goes with every call. `channel_options` win over the defaults.
    Every call makes a CLIENT span; None takes the global tracer provider.
    `transport` is what carries generations, "grpcio" if None. "asyncio" reads
    them on the event loop itself, for less than half of the CPU per message; a
    target or channel option that only gRPC's own transport knows (xds, proxies,
    service configs) falls back to that. Without roots in `tls` it trusts the
    system's, where grpcio brings its own; certificates that cannot be used are a
    ValueError here.

    Every call has a timeout; `timeout_s=None` means 600 s for a generation and
    10 s for the others. All of them raise HeadraceError (see
    `headrace.errors`); cancelling the awaiting task cancels the call.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        tls: TlsConfig | None = None,
        metadata: CallMetadata = (),
        channel_options: ChannelOptions = (),
        tracer_provider: TracerProvider | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.target = target
        self._tls = tls
        self._metadata = _pairs(metadata)
        self._options = channel_options
        self._transport: Transport = transport or DEFAULT_TRANSPORT
        if tls is not None and self._transport == "asyncio":
            ssl_context(tls)  # what is wrong with it is better said now than by every call
        self._tracer = client_tracer(tracer_provider)
        self._connection: _Connection | None = None
        self._is_closed = False

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; calls that still run end as cancelled. Closing again does nothing."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def generate(
        self,
        request: pb.GenerateRequest | None = None,
        *,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
        context: Context | None = None,
        **fields: Unpack[RequestFields],
    ) -> GenerationStream:
        """Return a generation to enter and read; nothing is sent before it is entered.

        Give a whole `request`, or its fields as keywords (`RequestFields`):
        `model`, one of `prompt`, `chat`, `tokens`, and what else it needs.
        `context` is the parent of the call's span; None takes the current one.
        Raises TypeError for fields that do not make a request, and ValueError
        for a timeout that is not a finite number.
        """
        if request is None:
            request = build_request(fields)
        elif fields:
            raise TypeError("give a request or its fields, not both")
        limit_s = _timeout(timeout_s, GENERATE_TIMEOUT_S)

        def open_call() -> tuple[EventReader, CallSpan]:
            connection = self._connect()
            span = CallSpan(self._tracer, GENERATE, self.target, context)
            return connection.open_generation(request, limit_s, self._call_metadata(metadata, span)), span

        return GenerationStream(open_call)

    async def list_models(self, *, timeout_s: float | None = None) -> list[model_pb2.Model]:
        """Return every model, ordered by id. The timeout covers all pages."""
        call = self._connect().models.ListModels
        ends_s = asyncio.get_running_loop().time() + _timeout(timeout_s, UNARY_TIMEOUT_S)
        models: list[model_pb2.Model] = []
        request = model_pb2.ListModelsRequest(page_size=PAGE_SIZE)
        while True:
            left_s = ends_s - asyncio.get_running_loop().time()
            page: model_pb2.ListModelsResponse = await self._unary(LIST_MODELS, call, request, left_s)
            models.extend(page.models)
            if not page.next_page_token:
                return models
            request.page_token = page.next_page_token

    async def get_model(self, model: str, *, timeout_s: float | None = None) -> model_pb2.Model:
        """Return one model by id or alias. Raises NotFound if there is none."""
        call = self._connect().models.GetModel
        request = model_pb2.GetModelRequest(model=model)
        found: model_pb2.GetModelResponse = await self._unary(
            GET_MODEL, call, request, _timeout(timeout_s, UNARY_TIMEOUT_S)
        )
        return found.model

    async def default_model(self, *, timeout_s: float | None = None) -> str:
        """Return the id of the first model that is ready, else of the first one. Raises NotFound if there is none."""
        models = await self.list_models(timeout_s=timeout_s)
        if not models:
            raise NotFound("the service lists no models", status=grpc.StatusCode.NOT_FOUND)
        ready = (model for model in models if model.state == model_pb2.MODEL_STATE_READY)
        return next(ready, models[0]).id

    async def health(self, service: str = "headrace.v1.GenerationService", *, timeout_s: float = 1.0) -> bool:
        """Return whether `service` reports SERVING; False for every other answer, and for none in time."""
        call = self._connect().check_health(
            StringValue(value=service), timeout=_timeout(timeout_s, timeout_s), metadata=self._metadata
        )
        try:
            answer = await call
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.value == SERVING)

    async def _unary(self, method: str, call: UnaryCall, request: Message, timeout_s: float) -> Any:
        span = CallSpan(self._tracer, method, self.target)
        try:
            response = await call(request, timeout=timeout_s, metadata=self._call_metadata((), span))
        except grpc.aio.AioRpcError as failure:
            error = error_from_rpc(failure)
            span.end_error(error)
            raise error from failure
        except BaseException:
            span.end_cancelled()
            raise
        span.end_ok()
        return response

    def _call_metadata(self, metadata: CallMetadata, span: CallSpan) -> tuple[tuple[str, str], ...]:
        return (*self._metadata, *_pairs(metadata), *span.metadata)

    def _connect(self) -> _Connection:
        if self._is_closed:
            raise RuntimeError("this client is closed")
        if self._connection is None:
            self._connection = _Connection(self.target, self._tls, self._options, self._transport)
        elif self._connection.loop is not asyncio.get_running_loop():
            raise RuntimeError("a client belongs to the event loop of its first call; make another for this loop")
        return self._connection


def _pairs(metadata: CallMetadata) -> tuple[tuple[str, str], ...]:
    items = metadata.items() if isinstance(metadata, Mapping) else metadata
    return tuple((key.lower(), value) for key, value in items)  # gRPC refuses upper case


def _timeout(timeout_s: float | None, default_s: float) -> float:
    if timeout_s is None:
        return default_s
    if not math.isfinite(timeout_s):
        raise ValueError(f"timeout_s has to be a finite number of seconds, got {timeout_s}")
    return timeout_s
