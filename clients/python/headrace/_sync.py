"""The client for programs without an event loop: the asynchronous one on a loop of its own, in a thread.

One implementation of deadlines, retries, resuming and errors, and two ways to call it.
A round trip to the other thread costs some 0.1 ms for each event that is read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack
from weakref import finalize

from opentelemetry import context as otel_context
from opentelemetry.trace import TracerProvider

from headrace._aio import DEFAULT_TARGET, AsyncClient
from headrace._answer import Answer
from headrace._channel import ChannelOptions, TlsConfig
from headrace._connection import Transport
from headrace._requests import RequestFields
from headrace._stream import GenerationStream
from headrace._tokenize import Conversation
from headrace._unary import CallMetadata
from headrace.v1 import generation_pb2 as pb
from headrace.v1 import model_pb2, tokenize_pb2, usage_pb2

__all__ = ["Client", "Generation"]

T = TypeVar("T")

_END_S: Final = 5.0


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="headrace client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; whatever interrupts the wait, Ctrl-C included, cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of this client cannot wait for it")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Have `function` called there, soon."""
        self.loop.call_soon_threadsafe(function)

    def end(self) -> None:
        """End the thread. Idempotent."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join(_END_S)


class Client:
    """A client of one Headrace service, for any thread of a program without an event loop.

    Takes what `AsyncClient` takes, does what it does and raises what it raises. Use it as
    a context manager, or call `close`. Generations of several threads share the connection.

        with Client("127.0.0.1:50051") as client:
            with client.generate(model="default", prompt="The river") as stream:
                for piece in stream.deltas():
                    print(piece, end="", flush=True)
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
        self._client = AsyncClient(
            target,
            tls=tls,
            metadata=metadata,
            channel_options=channel_options,
            tracer_provider=tracer_provider,
            transport=transport,
        )
        self._loop = _Loop()
        self._is_closed = False
        self._finalizer = finalize(self, _Loop.end, self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel and end the thread; what still runs ends as cancelled. Closing again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._loop.run(self._client.close())
        finally:
            self._finalizer()

    def generate(
        self,
        request: pb.GenerateRequest | None = None,
        *,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
        context: otel_context.Context | None = None,
        **fields: Unpack[RequestFields],
    ) -> Generation:
        """Return a generation to enter and read, as `AsyncClient.generate` does."""
        self._check_open()
        parent = context or otel_context.get_current()  # the loop's thread has none
        stream = self._client.generate(request, timeout_s=timeout_s, metadata=metadata, context=parent, **fields)
        return Generation(stream, self._loop)

    def attach(
        self,
        generation_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        after_sequence: int = 0,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
    ) -> Generation:
        """Return a retained generation to enter and read, as `AsyncClient.attach` does."""
        self._check_open()
        stream = self._client.attach(
            generation_id,
            idempotency_key=idempotency_key,
            after_sequence=after_sequence,
            timeout_s=timeout_s,
            metadata=metadata,
            context=otel_context.get_current(),
        )
        return Generation(stream, self._loop)

    def get_generation(
        self,
        generation_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
    ) -> pb.GetGenerationResponse:
        """Return where a generation is, as `AsyncClient.get_generation` does."""
        return self._run(
            self._client.get_generation(
                generation_id,
                idempotency_key=idempotency_key,
                timeout_s=timeout_s,
                metadata=metadata,
                context=otel_context.get_current(),
            )
        )

    def cancel_generation(
        self,
        generation_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        metadata: CallMetadata = (),
    ) -> pb.CancelGenerationResponse:
        """Stop a generation, as `AsyncClient.cancel_generation` does."""
        return self._run(
            self._client.cancel_generation(
                generation_id,
                idempotency_key=idempotency_key,
                timeout_s=timeout_s,
                metadata=metadata,
                context=otel_context.get_current(),
            )
        )

    def list_models(self, *, timeout_s: float | None = None, metadata: CallMetadata = ()) -> list[model_pb2.Model]:
        """Return every model, ordered by id."""
        return self._run(
            self._client.list_models(timeout_s=timeout_s, metadata=metadata, context=otel_context.get_current())
        )

    def get_model(self, model: str, *, timeout_s: float | None = None, metadata: CallMetadata = ()) -> model_pb2.Model:
        """Return one model by id or alias. Raises NotFound if there is none."""
        return self._run(
            self._client.get_model(model, timeout_s=timeout_s, metadata=metadata, context=otel_context.get_current())
        )

    def default_model(self, *, timeout_s: float | None = None) -> str:
        """Return the id of the first model that is ready, else of the first one."""
        return self._run(self._client.default_model(timeout_s=timeout_s))

    def tokenize(
        self,
        model: str,
        text: str | None = None,
        *,
        chat: Conversation | None = None,
        skip_special_tokens: bool = False,
        include_pieces: bool = False,
        timeout_s: float | None = None,
    ) -> tokenize_pb2.TokenizeResponse:
        """Return the token ids of a text or a conversation, as `AsyncClient.tokenize` does."""
        return self._run(
            self._client.tokenize(
                model,
                text,
                chat=chat,
                skip_special_tokens=skip_special_tokens,
                include_pieces=include_pieces,
                timeout_s=timeout_s,
                context=otel_context.get_current(),
            )
        )

    def detokenize(
        self,
        model: str,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        timeout_s: float | None = None,
    ) -> str:
        """Return the text of token ids."""
        return self._run(
            self._client.detokenize(
                model,
                token_ids,
                skip_special_tokens=skip_special_tokens,
                timeout_s=timeout_s,
                context=otel_context.get_current(),
            )
        )

    def health(self, service: str = "headrace.v1.GenerationService", *, timeout_s: float = 1.0) -> bool:
        """Return whether `service` reports SERVING."""
        return self._run(self._client.health(service, timeout_s=timeout_s))

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this client is closed")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            work.close()
            self._check_open()
        return self._loop.run(work)


class Generation:
    """One generation: `with client.generate(...) as stream`, then iterate. As `GenerationStream`, but it waits.

    Leaving the block cancels what is left of it, and frees the slot on the server.
    `cancel` may be called from another thread.
    """

    def __init__(self, stream: GenerationStream, loop: _Loop) -> None:
        self._stream = stream
        self._loop = loop

    def __enter__(self) -> Self:
        self._loop.run(self._stream.__aenter__())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.run(self._stream.__aexit__(exc_type, exc, None))

    def __iter__(self) -> Iterator[pb.GenerateResponse]:
        while (event := self._loop.run(_next(self._stream))) is not None:
            yield event

    def deltas(self) -> Iterator[str]:
        """Yield the pieces of text of choice 0 as they come."""
        for event in self:
            if event.HasField("delta") and event.delta.index == 0 and event.delta.text:
                yield event.delta.text

    def text(self) -> str:
        """Read what is left and return the text of choice 0 in it."""
        return self._loop.run(self._stream.text())

    def texts(self) -> dict[int, str]:
        """Read what is left and return the text in it by choice index."""
        return self._loop.run(self._stream.texts())

    def collect(self) -> Answer:
        """Read to the end, from the first event on, and return the whole."""
        return self._loop.run(self._stream.collect())

    def cancel(self) -> None:
        """Stop the call at once; a read that waits, and every later one, raises `errors.Cancelled`."""
        self._loop.call(self._stream.cancel)

    @property
    def generation_id(self) -> str | None:
        """For `Client.get_generation` and `cancel_generation`; known with the first event."""
        return self._stream.generation_id

    @property
    def request_id(self) -> str | None:
        """As the server's log knows the request."""
        return self._stream.request_id

    @property
    def headers(self) -> Mapping[str, str]:
        """The initial metadata."""
        return self._stream.headers

    @property
    def trailers(self) -> Mapping[str, str]:
        """The trailing metadata."""
        return self._stream.trailers

    @property
    def usage(self) -> usage_pb2.Usage | None:
        """Token counts, once the generation completed."""
        return self._stream.usage

    @property
    def timing(self) -> usage_pb2.Timing | None:
        """The server's own timing, once the generation completed."""
        return self._stream.timing

    @property
    def finish_reasons(self) -> dict[int, str]:
        """Why each choice ended, so far."""
        return self._stream.finish_reasons

    @property
    def time_to_first_delta_s(self) -> float | None:
        """From entering to the first output."""
        return self._stream.time_to_first_delta_s

    @property
    def resumed(self) -> int:
        """How often the connection was lost, and the generation joined again."""
        return self._stream.resumed


async def _next(stream: GenerationStream) -> pb.GenerateResponse | None:
    return await anext(aiter(stream), None)
