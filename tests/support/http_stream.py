"""One streamed HTTP answer, read event by event, that can be left at any moment."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.gateway_harness import CHAT, RawClient, RawResponse, read_events

__all__ = ["HttpStream", "open_stream", "text_of_chunks"]

DONE = "[DONE]"


class HttpStream:
    """Events of one answer as they come; `at_s` is the clock (time.monotonic) of the last one."""

    def __init__(self, client: RawClient, head: RawResponse) -> None:
        self.client = client
        self.head = head
        self.at_s = 0.0
        self._rest = b""
        self._ready: list[str] = []

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        """Return the data of the next event; a cut of the connection raises as asyncio does."""
        while not self._ready:
            piece = await self.client.piece()
            if not piece:
                raise StopAsyncIteration
            self.at_s = time.monotonic()
            whole, end, self._rest = (self._rest + piece).rpartition(b"\n\n")
            self._ready = read_events(whole + end)
        return self._ready.pop(0)

    async def texts(self) -> AsyncIterator[str]:
        """Yield the pieces of text; [DONE] and chunks without text are left out."""
        async for data in self:
            if text := text_of_chunks([data]):
                yield text

    async def until_text(self) -> str:
        """Return the first piece of text."""
        async for text in self.texts():
            return text
        raise AssertionError("the stream ended without text")

    async def rest(self) -> list[str]:
        """Return all further events."""
        return [data async for data in self]

    def leave(self) -> float:
        """Close the connection and return the time (time.monotonic) just before."""
        left_s = time.monotonic()
        self.client.leave()
        return left_s


@asynccontextmanager
async def open_stream(
    port: int, body: dict[str, Any], path: str = CHAT, headers: dict[str, str] | None = None
) -> AsyncIterator[HttpStream]:
    """Send a request with "stream": true and wait for the status, which has to be 200."""
    async with RawClient(port) as client:
        await client.send("POST", path, {**body, "stream": True}, headers)
        head = await client.head()
        assert head.status == 200, (head, await client.reader.read(2000))
        yield HttpStream(client, head)


def text_of_chunks(events: list[str]) -> str:
    """Return the text of the first choice in chunks of either endpoint."""
    text = ""
    for data in events:
        choices = [] if data == DONE else json.loads(data).get("choices", [])
        for choice in choices[:1]:
            text += (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]
    return text
