"""Serves the application until a signal, and lets it end well.

SIGTERM or SIGINT: /readyz says no at once; after `drain_delay_s` the listener
closes and new work is refused; running requests have `drain_grace_s` to finish
and then end with an error of their own. A second signal ends them
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn

from gateway.app import Gateway
from gateway.config import GatewaySettings
from gateway.http_protocol import BoundedProtocol, protocol_class

__all__ = ["GatewayServer"]

logger = logging.getLogger(__name__)

# After the grace every stream still sends its last event; then it is cut, and
# after one second more uvicorn cancels what is left.
_LAST_WORDS_S: Final = 2.5
_LAST_WORDS_AT_ONCE_S: Final = 0.2
_CANCEL_S: Final = 3.5


class GatewayServer:
    """One listener and one application, in the running loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._server = _Server(_uvicorn_config(gateway, gateway.settings))
        self._drain: asyncio.Task[None] | None = None

    async def serve(self, listener: socket.socket | None = None) -> None:
        """Serve until `stop`, or one of its signals; return when everything has ended.

        SystemExit if the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            await self._server.serve(None if listener is None else [listener])
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if self._drain is not None:
                self._drain.cancel()
                await asyncio.wait([self._drain])

    def stop(self) -> None:
        """Begin to end; called again, end at once."""
        if self._drain is None:
            self._drain = asyncio.create_task(self._leave())
        else:
            self._drain.cancel()
            self._drain = asyncio.create_task(self._leave_at_once())

    async def _leave(self) -> None:
        settings = self._gateway.settings
        self._gateway.is_leaving = True
        logger.info("shutting down", extra={"delay_s": settings.drain_delay_s, "grace_s": settings.drain_grace_s})
        await asyncio.sleep(settings.drain_delay_s)
        self._gateway.is_refusing = True
        self._server.should_exit = True
        await asyncio.sleep(settings.drain_grace_s)
        logger.warning("the grace is over", extra={"running": len(self._gateway.generations.running)})
        self._gateway.end_all()
        self._cut_connections(if_idle=True)
        await asyncio.sleep(_LAST_WORDS_S)
        self._cut_connections()

    async def _leave_at_once(self) -> None:
        self._gateway.is_leaving = self._gateway.is_refusing = True
        self._server.should_exit = True
        self._gateway.end_all()
        self._cut_connections(if_idle=True)
        await asyncio.sleep(_LAST_WORDS_AT_ONCE_S)
        self._cut_connections()

    def _cut_connections(self, *, if_idle: bool = False) -> None:
        for connection in tuple(self._server.server_state.connections):
            assert isinstance(connection, BoundedProtocol)
            connection.cut(if_idle=if_idle)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handling, which raises the signal again behind a clean end."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers if self.started else ():
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                logger.info("running on http://%s:%d", host, port)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(app: Gateway, settings: GatewaySettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol_class(send_timeout_s=settings.send_timeout_s, head_timeout_s=settings.head_timeout_s),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # What a proxy says about addresses is of no use here and not trusted.
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=math.ceil(settings.drain_grace_s + _CANCEL_S),
    )
