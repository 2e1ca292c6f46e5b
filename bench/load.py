"""Opens streams and reads them, at the least cost that still tells what arrived.

A full HTTP client would take more CPU than the gateway it measures, on the same
two cores. So this reads the socket itself, counts events by their bytes, and
takes a time stamp at the first one that has content.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

__all__ = ["StreamResult", "open_stream", "read_streams"]

# The role chunk has empty content; this only matches a chunk with text in it.
_CONTENT = b'"content":"'
_EMPTY = b'"content":""'
_DONE = b"data: [DONE]"


@dataclass(slots=True)
class StreamResult:
    """One stream: seconds from the request's last byte to the first content, and events with content."""

    ttft_s: float | None
    tokens: int
    is_whole: bool


class _Reader(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self._status = b""
        self.sent_s = 0.0
        self.first_s: float | None = None
        self.tokens = 0
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance: uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        self.sent_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._status:
            self._status = data[:12]
            if not self._status.endswith(b" 200"):
                raise SystemExit(f"bench: the gateway answered {data[:300]!r}")
        # A marker may be cut by the read: a short tail is looked at again.
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        self._tail, data = data[cut:], data[:cut]
        found = data.count(_CONTENT) - data.count(_EMPTY)
        if found:
            if self.first_s is None:
                self.first_s = time.perf_counter()
                self.first.set_result(None)
            self.tokens += found
        if _DONE in data and not self.done.done():
            self.done.set_result(True)
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(False)
        if not self.first.done():
            self.first.set_result(None)

    def close(self) -> None:
        self._transport.abort()


async def open_stream(
    port: int, script: dict[str, object], max_tokens: int, members: Mapping[str, object] | None = None
) -> _Reader:
    """Begin one streamed chat whose tokens the simulator makes as `script` says; `members` go into the request."""
    body = json.dumps(
        {
            "model": "default",
            "stream": True,
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": f"simulate: {json.dumps(script)}\n"}],
            **(members or {}),
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: _Reader(head.encode() + body), "127.0.0.1", port)
    return reader


async def read_streams(
    port: int, count: int, script: dict[str, object], max_tokens: int, members: Mapping[str, object] | None = None
) -> list[StreamResult]:
    """Run `count` streams at once to their ends."""

    async def run() -> StreamResult:
        reader = await open_stream(port, script, max_tokens, members)
        is_whole = await reader.done
        ttft_s = None if reader.first_s is None else reader.first_s - reader.sent_s
        return StreamResult(ttft_s, reader.tokens, is_whole)

    return list(await asyncio.gather(*(run() for _ in range(count))))
