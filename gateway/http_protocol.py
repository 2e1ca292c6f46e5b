"""The HTTP/1.1 server's connection: what uvicorn's protocol lacks for a public listener.

Cutting: ASGI has no word for it, but a response that cannot be completed must
not look complete, and a client that takes nothing must not hold a connection
whose buffer never drains (closing would wait for it). Bounds: a request head
is bounded in size and time, and a connection has to say something.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["ABORT", "MAX_HEAD_BYTES", "BoundedProtocol"]

# In scope["extensions"]: a function without arguments that cuts the connection.
ABORT: Final = "headrace.connection.abort"

MAX_HEAD_BYTES: Final = 64 * 1024
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol on httptools, bounded, which offers `ABORT` to the application."""

    _is_reading_head = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection; it is closed if no request begins within the keep-alive time."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection and its timers."""
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; a head that is not complete by then is bounded."""
        super().data_received(data)
        if not self._is_reading_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def on_message_begin(self) -> None:
        """Begin a request: add the extension to its scope."""
        super().on_message_begin()
        self._is_reading_head = True
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # its TypedDict knows the standard extensions
        scope["extensions"] = {ABORT: self.transport.abort}

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._is_reading_head = False
        self._head_bytes = 0
        self._stop_head_timer()
        super().on_headers_complete()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
