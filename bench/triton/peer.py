"""A Triton without models, in a process of its own, that can be faster than the service: `python -m bench.triton.peer`.

It answers with responses that are serialised once per request, of the size that
the ensemble's have, through a bare grpc.aio server. Prints its port.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import uvloop
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2

MODELS: Final = Path(__file__).resolve().parents[2] / "deploy" / "triton" / "models" / "inflight_batcher_llm"
WORD: Final = b" word"
TIMES: Final = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
# Nobody may forget it running.
MOST_S: Final = 900.0


async def _stream(_: AsyncIterator[Any], context: Any) -> None:
    request = await context.read()
    inputs = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
    if "stop" in inputs:
        await context.write(_response(request.id, None))
        return
    (tokens,) = struct.unpack("<i", inputs["max_tokens"])
    pace = re.search(rb"token_ms=(\d+)", inputs["text_input"])
    token_s = int(pace[1]) / 1000 if pace else 0.0
    message = _response(request.id, WORD)
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    for _number in range(tokens):
        if token_s:
            due_s += token_s
            await asyncio.sleep(due_s - loop.time())
        await context.write(message)
    await context.write(_response(request.id, None))
    await context.read()  # the half-close: like Triton, the stream ends with it


def _response(request_id: str, word: bytes | None) -> bytes:
    """Return a serialised response with one token, without one the final response."""
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    response.id, response.model_name, response.model_version = request_id, "ensemble", "1"
    response.parameters["triton_final_response"].bool_param = word is None
    response.parameters["sequence_id"].int64_param = 0
    response.parameters["sequence_start"].bool_param = response.parameters["sequence_end"].bool_param = False
    if word is not None:
        one, now = struct.pack("<i", 1), struct.pack("<q", 1_000_000_000)
        tensors = [("text_output", "BYTES", struct.pack("<I", len(word)) + word)]
        tensors += [(name, "INT32", one) for name in ("num_output_tokens", "num_input_tokens")]
        tensors += [(name, "INT64", now) for name in TIMES]
        for name, datatype, raw in tensors:
            response.outputs.add(name=name, datatype=datatype, shape=[1, 1])
            response.raw_output_contents.append(raw)
    serialized: bytes = message.SerializeToString()
    return serialized


def _answers() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Return what is answered to each unary method: the type of its request, and the response to one."""

    def config(request: Any) -> Any:
        text = (MODELS / request.name / "config.pbtxt").read_text()
        return service_pb2.ModelConfigResponse(config=text_format.Parse(text, model_config_pb2.ModelConfig()))

    return {
        "ServerLive": (service_pb2.ServerLiveRequest, lambda _: service_pb2.ServerLiveResponse(live=True)),
        "ServerReady": (service_pb2.ServerReadyRequest, lambda _: service_pb2.ServerReadyResponse(ready=True)),
        "ModelReady": (service_pb2.ModelReadyRequest, lambda _: service_pb2.ModelReadyResponse(ready=True)),
        "ServerMetadata": (
            service_pb2.ServerMetadataRequest,
            lambda _: service_pb2.ServerMetadataResponse(name="triton", version="2.51.0"),
        ),
        "ModelConfig": (service_pb2.ModelConfigRequest, config),
    }


def _unary(answer: Callable[[Any], Any]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def handle(request: Any, _context: Any) -> Any:
        return answer(request)

    return handle


async def _serve() -> None:
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(
            _unary(answer),
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        for name, (request, answer) in _answers().items()
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        _stream, request_deserializer=service_pb2.ModelInferRequest.FromString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination(timeout=MOST_S)


if __name__ == "__main__":
    uvloop.run(_serve())
