"""A TCP relay that breaks connections in every way a network can: reset, closed, half-closed, frozen."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

__all__ = ["BreakingRelay", "breaking_relay", "reset"]

_NO_LINGER = struct.pack("ii", 1, 0)
_PIECE_BYTES = 65_536


def reset(writer: asyncio.StreamWriter) -> None:
    """Cut a connection so that the other end gets a reset (RST)."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    with suppress(OSError):
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


class BreakingRelay:
    """Where it listens, and the connections through it. All that is done is done to every one of them."""

    def __init__(self, host: str, port: int) -> None:
        self.address = ""
        self._host = host
        self._port = port
        self._near: set[asyncio.StreamWriter] = set()
        self._far: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_closed = False
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Listen on 127.0.0.1 and a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def refuse(self) -> None:
        """Take no further connections."""
        if self._server is not None:
            self._server.close()

    def reset(self) -> None:
        """Cut both sides of every connection with a reset."""
        self.thaw()
        for writer in self._near | self._far:
            reset(writer)

    def close_connections(self) -> None:
        """Close both sides in order."""
        for writer in self._near | self._far:
            writer.close()

    def half_close(self) -> None:
        """Tell the server that nothing more comes; what it sends still passes."""
        for writer in self._far:
            with suppress(OSError, RuntimeError):
                writer.write_eof()

    def freeze(self) -> None:
        """Pass nothing on, in both directions, and close nothing."""
        self._flows.clear()

    def thaw(self) -> None:
        """Pass everything on again."""
        self._flows.set()

    async def close(self) -> None:
        """End every connection, and wait for what runs."""
        self._is_closed = True
        self.refuse()
        self.reset()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            reset(writer)
            return
        if self._is_closed:
            reset(writer)
            reset(far_writer)
            return
        self._near.add(writer)
        self._far.add(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(_PIECE_BYTES):
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
        except (OSError, RuntimeError):  # of a side that was told to end
            reset(sink)
        finally:
            self._near.discard(sink)
            self._far.discard(sink)
            sink.close()


@asynccontextmanager
async def breaking_relay(target: str) -> AsyncIterator[BreakingRelay]:
    """Relay to `target` ("host:port") for the length of the block."""
    host, _, port = target.rpartition(":")
    relay = BreakingRelay(host, int(port))
    await relay.listen()
    try:
        yield relay
    finally:
        await relay.close()
