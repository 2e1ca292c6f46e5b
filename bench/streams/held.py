"""Connections whose streams are begun and then held open, at next to no cost for the process that holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from bench.load import chat_request
from bench.processes import Path
from bench.sockets import connect
from bench.streams.cases import MAX_TOKENS, Case, Reading
from headrace._http2 import frames
from headrace._http2.frames import Flag, FrameType, Setting
from headrace._http2.metadata import NO_TABLE, encode_prefix, encode_timeout
from headrace.v1 import generation_pb2 as pb

__all__ = ["Held", "close_all", "hold"]

METHOD: Final = "/headrace.v1.GenerationService/Generate"
DEADLINE_S: Final = 3000.0
CONNECTIONS_AT_ONCE: Final = 16
BEGIN_S: Final = 300.0
# As wide as clients make them that measure the bandwidth, so that the socket is what fills.
WIDE_WINDOW_BYTES: Final = 16 * 1024 * 1024


class Held(asyncio.Protocol):
    """One connection with some streams. `begun` is done when the heads of all their answers are there."""

    def __init__(self, request: bytes, streams: int, reading: Reading) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.streams = streams
        self._request = request
        self._reading = reading
        self._waiting = streams

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(SystemExit(f"bench: a connection was lost before its streams began: {error}"))

    def close(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def _on_head(self) -> None:
        self._waiting -= 1
        if not self._waiting and not self.begun.done():
            self.begun.set_result(None)
            if self._reading is Reading.SOCKET:
                self._transport.pause_reading()

    def _refuse(self, text: str) -> None:
        if not self.begun.done():
            self.begun.set_exception(SystemExit(f"bench: {text}"))


class HeldHttp(Held):
    """A streamed chat over HTTP/1.1."""

    def data_received(self, data: bytes) -> None:
        if self._waiting:
            if not data.startswith(b"HTTP/1.1 200 "):
                self._refuse(f"the gateway answered {data[:300]!r}")
            self._on_head()


class HeldGrpc(Held):
    """A gRPC connection: answers what keeps it alive, skips what comes, and never gives a stream's window back."""

    def __init__(self, request: bytes, streams: int, reading: Reading) -> None:
        super().__init__(request, streams, reading)
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        start = 0
        while len(data) - start >= frames.HEAD_BYTES:
            word, flags, stream_id = frames.HEAD.unpack_from(data, start)
            end = start + frames.HEAD_BYTES + (word >> 8)
            if end > len(data):
                break
            self._on_frame(word & 0xFF, flags, stream_id, data[start + frames.HEAD_BYTES : end])
            start = end
        self._rest = data[start:]

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        match kind:
            case FrameType.SETTINGS if not flags & Flag.ACK:
                self._transport.write(frames.frame(FrameType.SETTINGS, Flag.ACK, 0))
            case FrameType.PING if not flags & Flag.ACK:
                self._transport.write(frames.ping(payload, is_ack=True))
            case FrameType.HEADERS if flags & Flag.END_STREAM:
                self._refuse(f"stream {stream_id} ended before it began")
            case FrameType.HEADERS:
                self._on_head()
            case _:
                pass


async def hold(path: Path, case: Case, into: list[Held]) -> None:
    """Open all streams of the case, a few connections at a time; the connections go `into` a list at once.

    Returns when every stream has begun. SystemExit if one does not.
    """
    connections = -(-case.streams // case.per_connection)
    places = asyncio.Semaphore(CONNECTIONS_AT_ONCE)
    request = _grpc_request(case) if case.wire == "grpc" else chat_request(path.http_port, case.prompt, MAX_TOKENS)
    port, kind = (path.grpc_port, HeldGrpc) if case.wire == "grpc" else (path.http_port, HeldHttp)

    async def open_one() -> None:
        async with places, asyncio.timeout(BEGIN_S):
            held = await connect(
                port,
                lambda: kind(request, case.per_connection, case.reading),
                is_narrow=case.reading is Reading.SOCKET,
            )
            into.append(held)
            await held.begun

    try:
        await asyncio.gather(*(open_one() for _ in range(connections)))
    except TimeoutError:
        raise SystemExit(f"bench: not all streams began within {BEGIN_S:.0f} s ({case.name})") from None


def _grpc_request(case: Case) -> bytes:
    """Return all that a client says: its greeting, and the requests of the streams."""
    window = frames.WINDOW_BYTES if case.reading is Reading.WINDOW else WIDE_WINDOW_BYTES
    request = pb.GenerateRequest(
        model="default", prompt=case.prompt, sampling={"max_output_tokens": MAX_TOKENS}
    ).SerializeToString()
    body = b"\x00" + len(request).to_bytes(4) + request
    fields = encode_prefix(METHOD, "bench", "headrace-bench", is_secure=False) + encode_timeout(DEADLINE_S)
    parts = [
        frames.PREFACE,
        frames.settings({Setting.ENABLE_PUSH: 0, Setting.INITIAL_WINDOW_SIZE: window}),
        # For the connection as a whole, so that the streams' own windows count.
        frames.window_update(0, WIDE_WINDOW_BYTES * 16),
    ]
    for number in range(case.per_connection):
        stream_id = 2 * number + 1
        block = fields if number else NO_TABLE + fields
        parts.append(frames.headers(stream_id, block, frames.MAX_FRAME_BYTES))
        parts.append(frames.frame(FrameType.DATA, Flag.END_STREAM, stream_id, body))
    return b"".join(parts)


def close_all(connections: Sequence[Held]) -> None:
    """Cut all of them."""
    for held in connections:
        held.close()
