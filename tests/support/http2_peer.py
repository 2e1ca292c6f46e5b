"""An HTTP/2 server that does what a test tells it, frame by frame, for what real servers do not do.

It speaks through hyperframe and hpack's encoder, and shares nothing with
`headrace._http2`.

    async with scripted_peer() as peer:
        connection = await peer.accept()            # after preface and SETTINGS of both sides
        request = await connection.request()        # headers and whole body of the next stream
        connection.headers(request.stream_id)
        connection.data(request.stream_id, message(event))
        connection.trailers(request.stream_id)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import Message
from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

__all__ = ["RESPONSE", "TRAILERS", "PeerConnection", "PeerRequest", "ScriptedPeer", "message", "scripted_peer"]

WAIT_S: Final = 10.0  # bound of every wait in here; a test that reaches it is broken
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RESPONSE: Final = ((":status", "200"), ("content-type", "application/grpc"))
TRAILERS: Final = (("grpc-status", "0"),)

Fields = Sequence[tuple[str, str]]


def message(event: Message, *, is_compressed: bool = False) -> bytes:
    """Return a gRPC message with its prefix."""
    raw = event.SerializeToString()
    return bytes([is_compressed]) + len(raw).to_bytes(4) + raw


@dataclass(slots=True)
class PeerRequest:
    """One stream as the peer has seen it."""

    stream_id: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)


class PeerConnection:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, table_bytes: int) -> None:
        self._reader = reader
        self._writer = writer
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = table_bytes
        self._open: dict[int, PeerRequest] = {}
        self._requests: asyncio.Queue[PeerRequest] = asyncio.Queue()
        self._frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.gives_windows = True  # for what the client sends
        self.data_after_reset = 0  # frames that break the rules
        self.is_over = asyncio.Event()

    async def request(self) -> PeerRequest:
        """Return the next whole request."""
        return await asyncio.wait_for(self._requests.get(), WAIT_S)

    @property
    def has_no_request(self) -> bool:
        """Whether every request was taken."""
        return self._requests.empty()

    @property
    def has_no_frame(self) -> bool:
        """Whether every other frame was taken."""
        return self._frames.empty()

    async def frame(self, kind: type[Frame], stream_id: int | None = None) -> Any:
        """Return the next frame of a kind other than HEADERS and DATA; others before it are dropped."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found = await self._frames.get()
                if isinstance(found, kind) and (stream_id is None or found.stream_id == stream_id):
                    return found

    def send(self, *parts: Frame | bytes) -> None:
        """Send frames, or bytes as they are."""
        self._writer.write(b"".join(part if isinstance(part, bytes) else part.serialize() for part in parts))

    def block(self, fields: Fields) -> bytes:
        """Return fields as a header block, in the order in which they have to be sent."""
        return bytes(self._encoder.encode(fields))

    def headers(self, stream_id: int, fields: Fields = RESPONSE, *flags: str) -> None:
        """Send a header block in one frame."""
        self.send(HeadersFrame(stream_id, self.block(fields), flags=["END_HEADERS", *flags]))

    def data(self, stream_id: int, data: bytes, *flags: str, pad: int = 0) -> None:
        """Send one DATA frame."""
        padding = {"pad_length": pad, "flags": ["PADDED", *flags]} if pad else {"flags": list(flags)}
        self.send(DataFrame(stream_id, data, **padding))

    def trailers(self, stream_id: int, fields: Fields = TRAILERS) -> None:
        """Send trailers; without headers before them they are a trailers-only response."""
        self.headers(stream_id, fields, "END_STREAM")

    def refuse(self, stream_id: int, status: int, **fields: str) -> None:
        """Send a trailers-only response."""
        extra = [(name.replace("_", "-"), value) for name, value in fields.items()]
        self.trailers(stream_id, [*RESPONSE, ("grpc-status", str(status)), *extra])

    def reset(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM."""
        self.send(RstStreamFrame(stream_id, error_code=code))

    def goaway(self, last_id: int, code: int = 0, debug: bytes = b"") -> None:
        """Send GOAWAY."""
        self.send(GoAwayFrame(0, last_stream_id=last_id, error_code=code, additional_data=debug))

    def cut(self) -> None:
        """Close the socket at once."""
        self._writer.transport.abort()

    async def run(self) -> None:
        """Read until the end."""
        try:
            while True:
                head = await self._reader.readexactly(9)
                found, length = Frame.parse_frame_header(memoryview(head))
                found.parse_body(memoryview(await self._reader.readexactly(length)))
                self._take(found)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.is_over.set()
            self._writer.close()

    def _take(self, found: Frame) -> None:
        if isinstance(found, HeadersFrame):
            fields = {str(name): str(value) for name, value in self._decoder.decode(found.data)}
            self._open[found.stream_id] = PeerRequest(found.stream_id, fields)
        elif isinstance(found, DataFrame) and found.stream_id not in self._open:
            self.data_after_reset += 1
            return
        elif isinstance(found, DataFrame):
            self._open[found.stream_id].body += found.data
            if self.gives_windows and found.data:
                size = len(found.data)
                self.send(
                    WindowUpdateFrame(0, window_increment=size),
                    WindowUpdateFrame(found.stream_id, window_increment=size),
                )
        elif isinstance(found, SettingsFrame) and "ACK" not in found.flags:
            self.send(SettingsFrame(0, flags=["ACK"]))
        elif isinstance(found, PingFrame) and "ACK" not in found.flags:
            self._frames.put_nowait(found)
        else:
            if isinstance(found, RstStreamFrame):
                self._open.pop(found.stream_id, None)
            self._frames.put_nowait(found)
        if "END_STREAM" in found.flags and isinstance(found, HeadersFrame | DataFrame):
            self._requests.put_nowait(self._open.pop(found.stream_id))


class ScriptedPeer:
    """Listens. Each connection begins with SETTINGS, unless `greeting` is None, and if `farewell` with a GOAWAY."""

    def __init__(self, greeting: dict[int, int] | None, *, farewell: bool) -> None:
        self.address = ""
        self.greeting = greeting
        self.farewell = farewell
        self.connections: list[PeerConnection] = []
        self._accepted: asyncio.Queue[PeerConnection] = asyncio.Queue()

    async def accept(self) -> PeerConnection:
        """Return the next connection."""
        return await asyncio.wait_for(self._accepted.get(), WAIT_S)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greet one connection and read it to its end."""
        connection = PeerConnection(reader, writer, (self.greeting or {}).get(1, 4096))
        try:
            if await reader.readexactly(len(PREFACE)) != PREFACE:
                raise AssertionError("no preface")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        if self.greeting is not None:
            goodbye = [GoAwayFrame(0)] if self.farewell else []
            connection.send(SettingsFrame(0, settings=self.greeting), *goodbye)
        self.connections.append(connection)
        self._accepted.put_nowait(connection)
        await connection.run()


@asynccontextmanager
async def scripted_peer(
    greeting: dict[int, int] | None = {},  # noqa: B006
    *,
    farewell: bool = False,
) -> AsyncIterator[ScriptedPeer]:
    """Listen on 127.0.0.1 and a free port; leaving the block cuts every connection."""
    peer = ScriptedPeer(greeting, farewell=farewell)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(peer.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    peer.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield peer
    finally:
        server.close()
        for connection in peer.connections:
            connection.cut()
        if tasks:
            await asyncio.wait(tasks, timeout=WAIT_S)
