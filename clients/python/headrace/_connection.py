"""The transports of one client: gRPC's channel, and the package's own HTTP/2 where generations go over that."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from headrace._channel import ChannelOptions, TlsConfig, open_channel
from headrace._http2.channel import Http2Channel, open_http2_channel
from headrace._reader import EventReader, GrpcAioReader
from headrace.v1 import generation_pb2 as pb
from headrace.v1 import generation_pb2_grpc, model_pb2_grpc, tokenize_pb2_grpc

__all__ = ["ATTACH", "GENERATE", "Connection", "Transport"]

# What carries Generate: gRPC's own transport, or this package's on the event loop's sockets.
Transport = Literal["grpcio", "asyncio"]

GENERATE: Final = "headrace.v1.GenerationService/Generate"
ATTACH: Final = "headrace.v1.GenerationService/AttachGeneration"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"


class Connection:
    """A channel and the stubs on it, for the event loop that runs when it is made."""

    __slots__ = ("channel", "check_health", "generation", "http2", "loop", "models", "tokens")

    def __init__(self, target: str, tls: TlsConfig | None, options: ChannelOptions, transport: Transport) -> None:
        self.loop = asyncio.get_running_loop()
        self.http2: Http2Channel | None = None
        if transport == "asyncio":
            self.http2 = open_http2_channel(target, tls, options)
        self.channel = open_channel(target, tls, options)
        self.generation: Any = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.models: Any = model_pb2_grpc.ModelServiceStub(self.channel)
        self.tokens: Any = tokenize_pb2_grpc.TokenizeServiceStub(self.channel)
        # The two wrapper messages have the wire format of HealthCheckRequest and HealthCheckResponse
        # (one string, one enum, both field 1), which saves a dependency for one call.
        self.check_health = self.channel.unary_unary(
            HEALTH_CHECK, request_serializer=StringValue.SerializeToString, response_deserializer=Int32Value.FromString
        )

    def open_generation(
        self,
        request: pb.GenerateRequest | pb.AttachGenerationRequest,
        timeout_s: float,
        metadata: tuple[tuple[str, str | bytes], ...],
    ) -> EventReader:
        """Begin a Generate or AttachGeneration call."""
        is_attach = isinstance(request, pb.AttachGenerationRequest)
        if self.http2 is None:
            call = self.generation.AttachGeneration if is_attach else self.generation.Generate
            return GrpcAioReader(call(request, timeout=timeout_s, metadata=metadata))
        body = request.SerializeToString()
        parse = pb.GenerateResponse.FromString
        method = ATTACH if is_attach else GENERATE
        return self.http2.call(method, body, parse, timeout_s=timeout_s, metadata=metadata)

    async def close(self) -> None:
        """Close both transports; calls that still run end as cancelled."""
        try:
            if self.http2 is not None:
                await self.http2.close()
        finally:
            await self.channel.close(None)
