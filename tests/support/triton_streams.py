"""Streams of the Triton backend by themselves: one request to a fake or a scripted peer, over either transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from service.backends.triton.channel import InferOpener, open_channel, open_infer
from service.backends.triton.options import TritonOptions
from service.backends.triton.stream import InferStream
from service.core.errors import ServiceError
from tests.support.triton_fake import Says

__all__ = ["TRANSPORTS", "Triton", "failure_of", "reached", "request", "says", "words_of"]

TRANSPORTS = ("asyncio", "grpcio")
WAIT_S = 10.0  # bound of every wait in here; a test that reaches it is broken


@dataclass(frozen=True, slots=True)
class Triton:
    """One server as the backend reaches it."""

    opener: InferOpener

    def stream(self, message: Any = None, **limits: Any) -> InferStream:
        """Begin a stream; 10 s unless `timeout_s` says otherwise."""
        return InferStream(self.opener, message or request(), **{"timeout_s": WAIT_S, **limits})


@asynccontextmanager
async def reached(url: str, transport: str, **options: Any) -> AsyncIterator[Triton]:
    """Open the channel and the streams' connection to `url`, and close both."""
    wanted = TritonOptions(url=url, transport=transport, **options)  # type: ignore[arg-type]
    channel = open_channel(wanted)
    opener = open_infer(wanted, service_pb2_grpc.GRPCInferenceServiceStub(channel))
    try:
        yield Triton(opener)
    finally:
        await opener.close()
        await channel.close()


def request(text: bytes = b"") -> Any:
    """Return a request; its tensors mean nothing to a stream."""
    message = service_pb2.ModelInferRequest(model_name="m", id="r1")
    message.raw_input_contents.append(text)
    return message


def says(word: bytes, *, is_final: bool = False) -> Says:
    """Return a response that carries one word, whatever was asked for."""
    return Says(word, is_final=is_final, outputs={"text": ("BYTES", [1], word)})


async def words_of(stream: InferStream) -> list[bytes]:
    """Read to the final response, each word as it came."""
    words: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        while not stream.is_final:
            for response in await stream.take():
                words += response.raw_output_contents
    return words


async def failure_of(stream: InferStream) -> ServiceError:
    """Read to the failure, which has to come."""
    with pytest.raises(ServiceError) as caught:
        await words_of(stream)
    return caught.value
