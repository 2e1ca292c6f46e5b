"""The rest of a response's stream, behind an event that its reader has."""

from __future__ import annotations

from typing import Final

from gateway import sse
from gateway.openai.errors import ApiError
from gateway.openai.responses.call import ResponsesCall
from gateway.openai.responses.stream import ResponseStream
from headrace.v1 import generation_pb2 as gen

__all__ = ["RestOfResponse"]

_END: Final = sse.EVENT_END.encode()


class RestOfResponse(ResponseStream):
    """Writes the whole stream, so that every event has its number, and returns what comes behind `starting_after`."""

    def __init__(self, call: ResponsesCall, created_s: int) -> None:
        super().__init__(call, created_s)
        self._first = 0 if call.starting_after is None else call.starting_after + 1  # number of what is returned first

    def feed(self, event: gen.GenerateResponse) -> bytes:
        """Take one event; return what of its frames is new to the reader."""
        return self._new(super().feed(event))

    def failure(self, error: ApiError) -> bytes:
        """Return what is new to the reader of how the stream failed."""
        return self._new(super().failure(error))

    def _new(self, frames: bytes) -> bytes:
        new = self._number - self._first
        if new <= 0:
            return b""
        return b"".join(frame + _END for frame in frames.split(_END)[:-1][-new:])
