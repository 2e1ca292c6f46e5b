"""The asyncio client.

It owns one connection and which calls there are on it. It must not know events
(`_stream`), the wire (`_reader`, `_connection`) or how a status becomes an
exception (`_unary`, `errors`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Unpack

import grpc
from google.protobuf.wrappers_pb2 import StringValue
from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider

from headrace._channel import ChannelOptions, TlsConfig
from headrace._connection import ATTACH, GENERATE, Connection, Transport
from headrace._http2.security import ssl_context
from headrace._reader import EventReader
from headrace._requests import RequestFields, build_request
from headrace._stream import GenerationStream
from headrace._telemetry import CallSpan, client_tracer
from headrace._tokenize import Conversation, tokenize_request
from headrace._unary import UNARY_TIMEOUT_S, CallMetadata, UnaryCaller, finite_s, metadata_pairs
from headrace.errors import NotFound
from headrace.v1 import generation_pb2 as pb
from headrace.v1 import model_pb2, tokenize_pb2

__all__ = ["AsyncClient", "CallMetadata", "Transport"]

DEFAULT_TARGET: Final = "127.0.0.1:50051"
DEFAULT_TRANSPORT: Transport = "grpcio"
GENERATE_TIMEOUT_S: Final = 600.0
GET_GENERATION: Final = "headrace.v1.GenerationService/GetGeneration"
CANCEL_GENERATION: Final = "headrace.v1.GenerationService/CancelGeneration"
LIST_MODELS: Final = "headrace.v1.ModelService/ListModels"
GET_MODEL: Final = "headrace.v1.ModelService/GetModel"
TOKENIZE: Final = "headrace.v1.TokenizeService/Tokenize"
DETOKENIZE: Final = "headrace.v1.TokenizeService/Detokenize"
SERVING: Final = 1  # grpc.health.v1.HealthCheckResponse.SERVING
PAGE_SIZE: Final = 200


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
        self._options = channel_options
        self._transport: Transport = transport or DEFAULT_TRANSPORT
        if tls is not None and self._transport == "asyncio":
            ssl_context(tls)  # what is wrong with it is better said now than by every call
        self._unary = UnaryCaller(target, metadata, client_tracer(tracer_provider))
        self._connection: Connection | None = None
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
        for a timeout that is not a finite number and metadata that cannot be sent.
        """
        if request is None:
            request = build_request(fields)
        elif fields:
            raise TypeError("give a request or its fields, not both")
        is_retained = bool(request.idempotency_key) or request.HasField("retention")
        return self._stream(GENERATE, request, timeout_s, metadata, context, resumes=is_retained)

    def attach(
        self,
        generation_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        after_sequence: int = 0,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
        context: Context | None = None,
    ) -> GenerationStream:
        """Return a retained generation to enter and read, from the event behind `after_sequence` on.

        Give its id or its key. What is kept comes at once, the rest as it is
        generated. The stream raises NotFound if nothing is kept (any more), and
        InvalidRequest for a number above the newest event's. Leaving it does not stop
        the generation. Raises TypeError for no target or two.
        """
        request = pb.AttachGenerationRequest(after_sequence=after_sequence, **_target(generation_id, idempotency_key))
        return self._stream(ATTACH, request, timeout_s, metadata, context, resumes=True, after=after_sequence)

    def _stream(
        self,
        method: str,
        request: pb.GenerateRequest | pb.AttachGenerationRequest,
        timeout_s: float | None,
        metadata: CallMetadata,
        context: Context | None,
        *,
        resumes: bool,
        after: int = 0,
    ) -> GenerationStream:
        limit_s, own = finite_s(timeout_s, GENERATE_TIMEOUT_S), metadata_pairs(metadata)

        def open_call() -> tuple[EventReader, CallSpan]:
            connection = self._connect()
            span = self._unary.span(method, context)
            try:
                return connection.open_generation(request, limit_s, self._unary.metadata_of(own, span)), span
            except BaseException:
                span.end_cancelled()
                raise

        def reopen(generation_id: str | None, after: int, left_s: float) -> EventReader | None:
            again = request
            if generation_id is not None:
                again = pb.AttachGenerationRequest(generation_id=generation_id, after_sequence=after)
            elif isinstance(request, pb.AttachGenerationRequest):
                again = pb.AttachGenerationRequest(idempotency_key=request.idempotency_key, after_sequence=after)
            elif not request.idempotency_key:
                return None  # it may run, and nobody knows its id
            return self._connect().open_generation(again, left_s, (*self._unary.metadata, *own))

        return GenerationStream(open_call, reopen=reopen if resumes else None, timeout_s=limit_s, after=after)

    async def get_generation(
        self,
        generation_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
        context: Context | None = None,
    ) -> pb.GetGenerationResponse:
        """Return where a generation is: one that waits or runs, or ended within the last minutes.

        Give its id or its key. Raises NotFound if the server that answers knows none
        of this caller's by that, and TypeError for no target or two.
        """
        request = pb.GetGenerationRequest(**_target(generation_id, idempotency_key))
        call = self._connect().generation.GetGeneration
        found: pb.GetGenerationResponse = await self._unary.call(
            GET_GENERATION, call, request, timeout_s, metadata, context
        )
        return found

    async def cancel_generation(
        self,
        generation_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
        context: Context | None = None,
    ) -> pb.CancelGenerationResponse:
        """Stop a generation, from whichever client it was begun; return the state that it was in.

        Its reader gets what was generated until then, finish reason CANCELLED for
        every choice that was open, usage, and no error; that takes the moment in
        which the engine stops. May be repeated: one that has ended stays as it
        ended. Raises NotFound as `get_generation` does.
        """
        request = pb.CancelGenerationRequest(**_target(generation_id, idempotency_key))
        call = self._connect().generation.CancelGeneration
        cancelled: pb.CancelGenerationResponse = await self._unary.call(
            CANCEL_GENERATION, call, request, timeout_s, metadata, context
        )
        return cancelled

    async def list_models(
        self, *, timeout_s: float | None = None, metadata: CallMetadata = (), context: Context | None = None
    ) -> list[model_pb2.Model]:
        """Return every model, ordered by id. The timeout covers all pages."""
        call = self._connect().models.ListModels
        ends_s = asyncio.get_running_loop().time() + finite_s(timeout_s, UNARY_TIMEOUT_S)
        models: list[model_pb2.Model] = []
        request = model_pb2.ListModelsRequest(page_size=PAGE_SIZE)
        while True:
            left_s = ends_s - asyncio.get_running_loop().time()
            page: model_pb2.ListModelsResponse = await self._unary.call(
                LIST_MODELS, call, request, left_s, metadata, context
            )
            models.extend(page.models)
            if not page.next_page_token:
                return models
            request.page_token = page.next_page_token

    async def get_model(
        self,
        model: str,
        *,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
        context: Context | None = None,
    ) -> model_pb2.Model:
        """Return one model by id or alias. Raises NotFound if there is none."""
        call = self._connect().models.GetModel
        request = model_pb2.GetModelRequest(model=model)
        found: model_pb2.GetModelResponse = await self._unary.call(
            GET_MODEL, call, request, timeout_s, metadata, context
        )
        return found.model

    async def default_model(self, *, timeout_s: float | None = None) -> str:
        """Return the id of the first model that is ready, else of the first one. Raises NotFound if there is none."""
        models = await self.list_models(timeout_s=timeout_s)
        if not models:
            raise NotFound("the service lists no models", status=grpc.StatusCode.NOT_FOUND)
        ready = (model for model in models if model.state == model_pb2.MODEL_STATE_READY)
        return next(ready, models[0]).id

    async def tokenize(
        self,
        model: str,
        text: str | None = None,
        *,
        chat: Conversation | None = None,
        skip_special_tokens: bool = False,
        include_pieces: bool = False,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
        context: Context | None = None,
    ) -> tokenize_pb2.TokenizeResponse:
        """Return the token ids of a text, or of a conversation as the model sees it, and the room that they leave.

        Give `text` or `chat`. `skip_special_tokens` leaves out those that the
        tokenizer adds to a text; `include_pieces` asks for the bytes of each token.
        Raises CapabilityUnsupported where the model's tokenizer is not to be had.
        """
        request = tokenize_request(
            model, text, chat, skip_special_tokens=skip_special_tokens, include_pieces=include_pieces
        )
        call = self._connect().tokens.Tokenize
        answer: tokenize_pb2.TokenizeResponse = await self._unary.call(
            TOKENIZE, call, request, timeout_s, metadata, context
        )
        return answer

    async def detokenize(
        self,
        model: str,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
        context: Context | None = None,
    ) -> str:
        """Return the text of token ids. Raises CapabilityUnsupported where the model's tokenizer is not to be had."""
        request = tokenize_pb2.DetokenizeRequest(
            model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
        )
        call = self._connect().tokens.Detokenize
        answer: tokenize_pb2.DetokenizeResponse = await self._unary.call(
            DETOKENIZE, call, request, timeout_s, metadata, context
        )
        return answer.text

    async def health(self, service: str = "headrace.v1.GenerationService", *, timeout_s: float = 1.0) -> bool:
        """Return whether `service` reports SERVING; False for every other answer, and for none in time."""
        call = self._connect().check_health(
            StringValue(value=service), timeout=finite_s(timeout_s, timeout_s), metadata=self._unary.metadata
        )
        try:
            answer = await call
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.value == SERVING)

    def _connect(self) -> Connection:
        if self._is_closed:
            raise RuntimeError("this client is closed")
        if self._connection is None:
            self._connection = Connection(self.target, self._tls, self._options, self._transport)
        elif self._connection.loop is not asyncio.get_running_loop():
            raise RuntimeError("a client belongs to the event loop of its first call; make another for this loop")
        return self._connection


def _target(generation_id: str | None, idempotency_key: str | None) -> dict[str, Any]:
    """Return the field that names a generation."""
    if (generation_id is None) is (idempotency_key is None):
        raise TypeError("give a generation_id or an idempotency_key")
    return {"idempotency_key": idempotency_key} if generation_id is None else {"generation_id": generation_id}
