"""The gateway on a real socket, a client that sees the bytes, and an independent reader of event streams.

`running_gateway` serves in the test's loop. `RawClient` speaks HTTP/1.1 by
hand: it shows every chunk as it came and can leave rudely. `read_events`
follows the WHATWG text and shares nothing with `gateway.sse`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from gateway.app import Gateway
from gateway.config import GatewaySettings
from gateway.server import GatewayServer

__all__ = ["CHAT", "RawClient", "RawResponse", "RunningGateway", "chat_body", "read_events", "running_gateway"]

WAIT_S: Final = 20.0  # bound of every wait in here; a test that reaches it is broken
CHAT: Final = "/v1/chat/completions"


def chat_body(**members: Any) -> dict[str, Any]:
    """Return a small chat request; keywords add or replace members."""
    return {"model": "fake", "messages": [{"role": "user", "content": "hi"}], **members}


@dataclass(slots=True, eq=False)
class RunningGateway:
    """A gateway that serves."""

    gateway: Gateway
    server: GatewayServer
    task: asyncio.Task[None]
    port: int

    @property
    def url(self) -> str:
        """Base address without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    async def wait_idle(self) -> None:
        """Return when no generation runs; TimeoutError after WAIT_S."""
        async with asyncio.timeout(WAIT_S):
            while self.gateway.generations.running:  # noqa: ASYNC110 - a set has no event
                await asyncio.sleep(0)

    def connect(self) -> RawClient:
        """Return a connection to enter."""
        return RawClient(self.port)


@asynccontextmanager
async def running_gateway(
    target: str, *, tracers: Any = None, meters: Any = None, **settings: Any
) -> AsyncIterator[RunningGateway]:
    """Serve on 127.0.0.1 and a free port; leaving the block shuts down with a short grace."""
    listener = socket.create_server(("127.0.0.1", 0))
    values = {"target": target, "drain_grace_s": 0.2, **settings}
    gateway = Gateway(GatewaySettings(**values), version="1.2.3", tracers=tracers, meters=meters)
    server = GatewayServer(gateway)
    port = listener.getsockname()[1]
    task = asyncio.create_task(server.serve(listener))
    try:
        yield RunningGateway(gateway, server, task, port)
    finally:
        if not task.done():
            server.stop()
        await asyncio.wait_for(task, WAIT_S)
        assert not gateway.generations.running


@dataclass(slots=True)
class RawResponse:
    """One response. `pieces` are the chunks of a chunked body as they were sent."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    pieces: list[bytes] = field(default_factory=list)
    is_whole: bool = False

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


class RawClient:
    """One HTTP/1.1 connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> None:
        """Send one request. A body that is not bytes is sent as JSON."""
        payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"host": "test"}
        if body is not None:
            lines |= {"content-type": "application/json", "content-length": str(len(payload))}
        lines |= headers or {}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + payload)
        await self.writer.drain()

    async def post(self, body: Any, path: str = CHAT, headers: Mapping[str, str] | None = None) -> RawResponse:
        """Send a POST and return the whole response."""
        await self.send("POST", path, body, headers)
        return await self.response()

    async def get(self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> RawResponse:
        """Send a request without a body and return the whole response."""
        await self.send(method, path, headers=headers)
        return await self.response(has_body=method != "HEAD")

    async def head(self) -> RawResponse:
        """Return status and headers of the next response."""
        async with asyncio.timeout(WAIT_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *rest = raw.decode("latin-1").split("\r\n")[:-2]
        headers: dict[str, str] = {}
        for line in rest:
            name, _, value = line.partition(":")
            headers[name.lower()] = (
                f"{headers[name.lower()]}, {value.strip()}" if name.lower() in headers else value.strip()
            )
        return RawResponse(int(first.split()[1]), headers)

    async def piece(self) -> bytes:
        """Return the next chunk of a chunked body; empty at its end."""
        async with asyncio.timeout(WAIT_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def response(self, *, has_body: bool = True) -> RawResponse:
        """Return the next response as a whole; `is_whole` is False if the connection was cut within it."""
        response = await self.head()
        if response.status == 100:  # asked for with "expect", and sent before the body is read
            response = await self.head()
        try:
            if not has_body or response.status in {204, 304}:
                response.is_whole = True
            elif response.headers.get("transfer-encoding") == "chunked":
                while piece := await self.piece():
                    response.pieces.append(piece)
                response.is_whole = True
            else:
                async with asyncio.timeout(WAIT_S):
                    response.body = await self.reader.readexactly(int(response.headers["content-length"]))
                response.is_whole = True
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        response.body = response.body or b"".join(response.pieces)
        return response

    def leave(self) -> None:
        """Close the sending side and the connection in order (FIN)."""
        self.writer.close()

    def reset(self) -> None:
        """Cut the connection (RST)."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def read_events(body: bytes) -> list[str]:
    """Return the data of every event in a whole body, after the WHATWG rules for event streams."""
    events: list[str] = []
    data: list[str] = []
    text = body.decode("utf-8").removeprefix("\ufeff")
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        if not line:
            if data:
                events.append("\n".join(data))
            data = []
            continue
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
    return events
