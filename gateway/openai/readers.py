"""Which reader writes the answer of a call: one table for every endpoint that generates."""

from __future__ import annotations

from gateway.openai.answers import GenerationReader, WholeAnswer
from gateway.openai.chunks import ChunkStream
from gateway.openai.requests import GenerationCall
from gateway.openai.responses.call import ResponsesCall
from gateway.openai.responses.rest import RestOfResponse
from gateway.openai.responses.stream import ResponseStream
from gateway.openai.responses.whole import WholeResponse

__all__ = ["reader_of"]


def reader_of(call: GenerationCall, created_s: int) -> GenerationReader:
    """Return the reader that writes what `call` asks for: the events of a stream, or one document."""
    if isinstance(call, ResponsesCall):
        if not call.stream:
            return WholeResponse(call, created_s)
        return ResponseStream(call, created_s) if call.starting_after is None else RestOfResponse(call, created_s)
    return ChunkStream(call, created_s) if call.stream else WholeAnswer(call, created_s)
