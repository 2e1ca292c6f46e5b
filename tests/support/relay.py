"""A TCP relay in front of a server, so that a test can break connections that gRPC would end politely."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

__all__ = ["Relay", "relay"]


@dataclass(slots=True, eq=False)
class Relay:
    """Where it listens, and the connections through it."""

    address: str = ""
    is_refusing: bool = False
    _ends: set[asyncio.StreamWriter] = field(default_factory=set)
    _pumps: set[asyncio.Task[None]] = field(default_factory=set)

    def refuse(self) -> None:
        """Break new connections as well, from now on."""
        self.is_refusing = True

    async def cut(self) -> None:
        """Break every connection at once; new ones pass."""
        for end in self._ends:
            end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_s: float | None = None) -> None:
    try:
        while data := await asyncio.wait_for(reader.read(65_536), idle_s):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    except TimeoutError:
        writer.transport.abort()
    finally:
        writer.close()


@asynccontextmanager
async def relay(target: str, idle_s: float | None = None) -> AsyncIterator[Relay]:
    """Listen on 127.0.0.1 and a free port for the length of the block, and pass everything on to `target`.

    A connection on which the server says nothing for `idle_s` is cut, as balancers do.
    """
    host, _, port = target.rpartition(":")
    between = Relay()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if between.is_refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        between._ends |= {writer, far_writer}
        back_to_client = _pump(far_reader, writer, idle_s)
        there, back = asyncio.create_task(_pump(reader, far_writer)), asyncio.create_task(back_to_client)
        between._pumps |= {there, back}

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    listening, number = server.sockets[0].getsockname()
    between.address = f"{listening}:{number}"
    try:
        yield between
    finally:
        server.close()
        await between.cut()
        await asyncio.gather(*between._pumps, return_exceptions=True)
