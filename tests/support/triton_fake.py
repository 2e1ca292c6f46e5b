"""A scripted Triton: the real protocol over a real socket, the models from a script.

Speaks the inference protocol through tritonclient's generated stubs, and takes
its model configurations from deploy/triton, so that it has the same tensors as
the real one. Each generation follows the steps of `script`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

__all__ = ["Abort", "Do", "Drop", "Error", "FakeTriton", "Final", "Hang", "Says", "Step", "model_config"]

MODELS = Path(__file__).resolve().parents[2] / "deploy" / "triton" / "models"


def model_config(name: str, family: str = "inflight_batcher_llm") -> Any:
    """Return a model's configuration from one of the repositories of deploy/triton."""
    text = (MODELS / family / name / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@dataclass(frozen=True, slots=True)
class Says:
    """One response with text, and counts and times where they were asked for."""

    data: bytes
    tokens: int = 1
    is_final: bool = False
    # Outputs by name, instead of what a well-behaved model would send.
    outputs: Mapping[str, tuple[str, list[int], bytes]] | None = None


@dataclass(frozen=True, slots=True)
class Final:
    """The empty final response."""


@dataclass(frozen=True, slots=True)
class Error:
    """An in-band error."""

    text: str
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """The server ends the stream, with status OK and without the final flag."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing more until the client goes away."""


@dataclass(frozen=True, slots=True)
class Abort:
    """A gRPC status."""

    code: grpc.StatusCode
    details: str


@dataclass(frozen=True, slots=True)
class Do:
    """Nothing is sent; `action` runs to its end, for pauses and for what a test does in the middle."""

    action: Callable[[], Awaitable[object]]


Step = Says | Final | Error | Drop | Hang | Abort | Do


@dataclass(slots=True)
class FakeTriton:
    """Use as an async context manager; `url` is its address.

    What it saw stays readable afterwards: `requests`, `metadata`, `timeouts_s`
    and `sent` (how many responses) per generation, `stops` (ids in the order of
    their arrival), `order` ("cancel" and "stop" as they came in), `cancelled_at_s`
    (`time.monotonic` of each cancel) and `half_closed`.
    """

    script: Sequence[Step] = (Says(b"Hello"), Final())
    # What the canaries of health checks get, which are then not among `requests`; None: the script, as everybody.
    canary_script: Sequence[Step] | None = None
    version: str = "2.51.0"
    is_live: bool = True
    is_model_ready: bool = True
    # ModelConfig is not answered any more.
    is_description_stuck: bool = False
    # Like the real one: the empty final response is only for a request that asked for it, and an id that runs
    # already is refused, in TensorRT-LLM's words.
    is_strict: bool = False
    # A stream stays open behind its final response, until the client ends it.
    is_kept_open: bool = False
    # Of the server, for example its limit of streams on one connection.
    options: Sequence[tuple[str, Any]] = ()
    configs: dict[str, Any] = field(
        default_factory=lambda: {
            name: model_config(name) for name in ("ensemble", "tensorrt_llm", "preprocessing", "postprocessing")
        }
    )
    url: str = ""
    requests: list[Any] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    timeouts_s: list[float | None] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    cancelled_at_s: list[float] = field(default_factory=list)
    stops: list[Any] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    half_closed: list[bool] = field(default_factory=list)
    received: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    # Answer of the tokenizer model, and the texts it was asked about.
    prompt_tokens: int = 7
    counted: list[str] = field(default_factory=list)
    credentials: Any = None
    _server: Any = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self, port: int = 0) -> None:
        """Listen; port 0 takes a free one."""
        # Like Triton, which takes messages of any size.
        fixed = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        self._server = grpc.aio.server(options=[*fixed, *self.options])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(self), self._server)
        address = f"127.0.0.1:{port}"
        if self.credentials is None:
            bound = self._server.add_insecure_port(address)
        else:
            bound = self._server.add_secure_port(address, self.credentials)
        await self._server.start()
        self.url = f"127.0.0.1:{bound}"

    async def close(self) -> None:
        """Cut every stream."""
        await self._server.stop(None)


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, fake: FakeTriton) -> None:
        self._fake = fake

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=self._fake.is_live)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self._fake.is_live)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=self._fake.is_model_ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version=self._fake.version)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        if self._fake.is_description_stuck:
            await asyncio.Event().wait()
        config = self._fake.configs.get(request.name)
        if config is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        return service_pb2.ModelConfigResponse(config=config)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        names = [tensor.name for tensor in request.inputs]
        texts = deserialize_bytes_tensor(request.raw_input_contents[names.index("QUERY")])
        self._fake.counted.append(texts[0].decode())
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        response.outputs.add(name="REQUEST_INPUT_LEN", datatype="INT32", shape=[1, 1])
        response.raw_output_contents.append(np.array([[self._fake.prompt_tokens]], np.int32).tobytes())
        return response

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        fake = self._fake
        first = await anext(aiter(requests))
        if any(tensor.name == "stop" for tensor in first.inputs):
            # As many stops as the client sends, each answered.
            while first is not None:
                fake.order.append("stop")
                fake.stops.append(first)
                fake.stopped.set()
                yield _message(first, Final())
                first = await anext(aiter(requests), None)
            return
        if fake.canary_script is not None and first.id.startswith("canary-"):
            for step in fake.canary_script:
                yield _message(first, step)
            return
        fake.requests.append(first)
        fake.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
        fake.timeouts_s.append(context.time_remaining())
        at = len(fake.sent)
        fake.sent.append(0)
        fake.received.set()
        if fake.is_strict and first.id in fake.running:
            yield _message(first, Error(f"requestId {first.id} is already in progress, request is ignored."))
            return
        fake.running.add(first.id)
        try:
            for step in fake.script:
                if isinstance(step, Drop):
                    return
                if isinstance(step, Abort):
                    await context.abort(step.code, step.details)
                if isinstance(step, Hang):
                    await asyncio.Event().wait()
                if isinstance(step, Do):
                    await step.action()
                    continue
                if fake.is_strict and isinstance(step, Final) and not _takes_empty_final(first):
                    continue
                fake.sent[at] += 1
                yield _message(first, step)
            # Like Triton: the stream ends once the client has half-closed.
            fake.half_closed.append(await anext(aiter(requests), None) is None)
            if fake.is_kept_open:
                await asyncio.Event().wait()
        except (asyncio.CancelledError, GeneratorExit):
            fake.order.append("cancel")
            fake.cancelled_at_s.append(time.monotonic())
            fake.cancelled.set()
            raise
        finally:
            fake.running.discard(first.id)


def _takes_empty_final(request: Any) -> bool:
    return bool(request.parameters["triton_enable_empty_final_response"].bool_param)


def _message(request: Any, step: Step) -> Any:
    if isinstance(step, Error):
        message = service_pb2.ModelStreamInferResponse(error_message=step.text)
        message.infer_response.id = request.id
        message.infer_response.parameters["triton_final_response"].bool_param = step.is_final
        return message
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    response.id, response.model_name = request.id, request.model_name
    response.parameters["triton_final_response"].bool_param = isinstance(step, Final) or getattr(
        step, "is_final", False
    )
    if isinstance(step, Says):
        for name, (datatype, shape, raw) in (step.outputs or _outputs(request, step)).items():
            response.outputs.add(name=name, datatype=datatype, shape=shape)
            response.raw_output_contents.append(raw)
    return message


def _outputs(request: Any, step: Says) -> dict[str, tuple[str, list[int], bytes]]:
    asked = {output.name for output in request.outputs}
    text = serialize_byte_tensor(np.array([[step.data]], dtype=np.object_)).item()
    everything = {
        "num_output_tokens": ("INT32", [1, 1], np.array([[step.tokens]], np.int32).tobytes()),
        "text_output": ("BYTES", [1, 1], text),
        "num_input_tokens": ("INT32", [1, 1], np.array([[7]], np.int32).tobytes()),
        "arrival_time_ns": ("INT64", [1, 1], np.array([[1_000_000_000]], np.int64).tobytes()),
        "first_scheduled_time_ns": ("INT64", [1, 1], np.array([[1_250_000_000]], np.int64).tobytes()),
        "first_token_time_ns": ("INT64", [1, 1], np.array([[1_750_000_000]], np.int64).tobytes()),
        "last_token_time_ns": ("INT64", [1, 1], np.array([[2_750_000_000]], np.int64).tobytes()),
    }
    return {name: value for name, value in everything.items() if name in asked}
