"""Opens streams over HTTP and reads them, at the least cost that still tells what arrived.

A full HTTP client would take more CPU than the gateway it measures, on the same
two cores. So this reads the socket itself, counts events by their bytes, and
takes a time stamp at the first one that has content.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from bench.sockets import connect

__all__ = ["Reader", "StreamResult", "began", "chat_request", "open_stream", "read_streams"]

# The role chunk has empty content; this only matches a chunk with text in it.
_CONTENT: Final = b'"content":"'
_EMPTY: Final = b'"content":""'
_DONE: Final = b"data: [DONE]"
_USAGE: Final = b'"completion_tokens":'
_TOKENS: Final = re.compile(rb'"completion_tokens": ?(\d+)')
_OK: Final = 200
_FAILURE_BYTES: Final = 4096
_CODE: Final = re.compile(rb'"code": ?"([a-z_]+)"')


@dataclass(slots=True)
class StreamResult:
    """One stream: seconds from the request's last byte to the first content, events with content, and tokens.

    Tokens that waited for their reader come several in an event.
    """

    ttft_s: float | None
    events: int
    tokens: int
    is_whole: bool


class Reader(asyncio.Protocol):
    """One request and its answer. Times are `time.perf_counter()`.

    `first` is done with the first content or the end, `done` with the end: True
    if the answer is whole. `status` is 0 until there is one; `tokens` is what the usage at the end says.
    """

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self._last = b""
        self.status = 0
        self.sent_s = 0.0
        self.answered_s: float | None = None
        self.first_s: float | None = None
        self.events = 0
        self.tokens = 0
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance: uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        self.sent_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.status:
            self.answered_s = time.perf_counter()
            self.status = int(data[9:12])
        # A marker may be cut by the read: a short tail is looked at again.
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        self._tail, data = data[cut:], data[:cut]
        self._last = data or self._last
        found = data.count(_CONTENT) - data.count(_EMPTY)
        if found:
            if self.first_s is None:
                self.first_s = time.perf_counter()
                self.first.set_result(None)
            self.events += found
        if _USAGE in data:
            self.tokens = int(_TOKENS.findall(data)[-1])
        if _DONE in data and not self.done.done():
            self.done.set_result(self.status == _OK)
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(False)
        if not self.first.done():
            self.first.set_result(None)

    @property
    def failure(self) -> bytes:
        """The end of what came: of a refusal its whole body, of a stream its last events."""
        return (self._last + self._tail)[-_FAILURE_BYTES:]

    @property
    def failure_code(self) -> str | None:
        """The code of the error that was the answer, or its last event; None if there was none."""
        found = _CODE.findall(self.failure)
        return found[-1].decode() if found else None

    def pause(self) -> None:
        """Read no more, until `resume`."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def close(self) -> None:
        """Leave, whatever still comes."""
        self._transport.abort()


def chat_request(
    port: int,
    prompt: str,
    max_tokens: int,
    members: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return a streamed chat as bytes; its connection closes behind the answer."""
    body = json.dumps(
        {
            "model": "default",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": prompt}],
            **(members or {}),
        }
    ).encode()
    fields = {
        "Host": f"127.0.0.1:{port}",
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **(headers or {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode() + body


async def open_stream(
    port: int, script: dict[str, object], max_tokens: int, members: Mapping[str, object] | None = None
) -> Reader:
    """Begin one streamed chat whose tokens the simulator makes as `script` says; `members` go into the request."""
    request = chat_request(port, f"simulate: {json.dumps(script)}\n", max_tokens, members)
    return await connect(port, lambda: Reader(request))


async def began(reader: Reader) -> float:
    """Return the seconds from the request to the first content. SystemExit if none comes."""
    await reader.first
    if reader.first_s is None:
        raise SystemExit(f"bench: the gateway answered {reader.status} {reader.failure_code}, and no content")
    return reader.first_s - reader.sent_s


async def read_streams(
    port: int, count: int, script: dict[str, object], max_tokens: int, members: Mapping[str, object] | None = None
) -> list[StreamResult]:
    """Run `count` streams at once to their ends. SystemExit if one is refused."""

    async def run() -> StreamResult:
        reader = await open_stream(port, script, max_tokens, members)
        is_whole = await reader.done
        if reader.status != _OK:
            raise SystemExit(f"bench: the gateway answered {reader.status} {reader.failure_code}")
        ttft_s = None if reader.first_s is None else reader.first_s - reader.sent_s
        return StreamResult(ttft_s, reader.events, reader.tokens, is_whole)

    return list(await asyncio.gather(*(run() for _ in range(count))))
