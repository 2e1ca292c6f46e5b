"""One request and its response on a connection: what uvicorn's cycle does otherwise than HTTP asks.

A response that begins before its request has wholly arrived announces that the
connection closes behind it; a caller of HTTP/1.0 gets no chunks, which it
cannot read; and a cancelled application is cut without a traceback.
"""

from __future__ import annotations

import asyncio
import urllib.parse

import httptools
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["Cycle", "Flow", "OldCycle", "target_scope"]


def target_scope(url: bytes, root_path: str) -> dict[str, str | bytes]:
    """Return what a scope says of the target of its request."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return {
        "path": root_path + (urllib.parse.unquote(path) if "%" in path else path),
        "raw_path": root_path.encode("ascii") + parsed.path,
        "query_string": parsed.query or b"",
    }


class Flow(FlowControl):
    """uvicorn's flow control; harmless on a connection that is closing."""

    def resume_reading(self) -> None:
        """Read on, if reading was paused."""
        # The loop's transport refuses it with a traceback once it is closed.
        if self.read_paused and not self._transport.is_closing():
            super().resume_reading()


class Cycle(RequestResponseCycle):
    """uvicorn's cycle for HTTP/1.1."""

    is_early = False  # the response began before the request had arrived
    _keep_alive = True

    @property
    def keep_alive(self) -> bool:
        """Whether the connection is announced, or left, as open; uvicorn asks when a response begins and ends.

        At the end of an early response it says yes, because closing at once
        could destroy what the client has not read: the connection sees to it.
        """
        if self.response_complete:
            return self._keep_alive or self.is_early
        if self.more_body:
            self.is_early = True
        return self._keep_alive and not self.is_early

    @keep_alive.setter
    def keep_alive(self, value: bool) -> None:
        self._keep_alive = value

    def leave(self) -> None:
        """Tell the application that the client has left; what it still sends is dropped."""
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Run the application; cancelling cuts the connection."""
        cancelled: list[asyncio.CancelledError] = []

        async def run(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError as error:
                # uvicorn would log it as a failure of the application.
                cancelled.append(error)
                self.disconnected = True
                self.transport.abort()

        await super().run_asgi(run)
        if cancelled:
            raise cancelled[0]


class OldCycle(Cycle):
    """The cycle for HTTP/1.0: without a length, the end of the connection is the end of the response (RFC 9112 6.3)."""

    _is_close_delimited = False

    async def send(self, message: ASGISendEvent) -> None:
        """Send one message of the application; waits while the connection is full."""
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                self._is_close_delimited = True
                self.chunked_encoding = False
        elif self._is_close_delimited and message["type"] == "http.response.body":
            while self.flow.write_paused and not self.disconnected:
                await self.flow.drain()
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)
