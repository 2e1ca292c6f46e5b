"""The connections to one address: making them, and when to try again.

It owns connect tasks and the backoff between failures. It must not know calls;
whoever wants a connection asks for one that has room, and is told by
`on_change` when there may be one.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace._http2.connection import Connection
from headrace._http2.keepalive import KeepaliveTimes, bound_unacknowledged
from headrace._http2.security import ALPN
from headrace._http2.target import Address

__all__ = ["Dialing", "Endpoint"]

CONNECT_TIMEOUT_S: Final = 20.0
# https://github.com/grpc/grpc/blob/master/doc/connection-backoff.md, from 0.2 s to 3 s in place of 1 s to
# 120: a service that restarts is wanted back within seconds.
FIRST_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 3.0
BACKOFF_FACTOR: Final = 1.6
JITTER: Final = 0.2
MAX_CONNECTIONS: Final = 4  # when the server's limit of streams is reached; beyond it, calls wait


@dataclass(slots=True)
class Dialing:
    """How connections are made; shared by all endpoints of a channel."""

    context: ssl.SSLContext | None
    server_name: str | None
    keepalive: KeepaliveTimes


class Endpoint:
    """One address. `on_change` is called whenever a new look at it may give another answer."""

    __slots__ = (
        "_backoff_s",
        "_connections",
        "_dialing",
        "_loop",
        "_on_change",
        "_retry_at_s",
        "_task",
        "address",
        "failure",
    )

    def __init__(self, address: Address, dialing: Dialing, on_change: Callable[[], None]) -> None:
        self.address = address
        self.failure: str | None = None  # why there is no connection, after one was lost or not made
        self._dialing = dialing
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._connections: list[Connection] = []  # also those that only finish their streams
        self._task: asyncio.Task[None] | None = None
        self._backoff_s = 0.0
        self._retry_at_s = 0.0

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of it."""
        return self._task is None and not self._connections

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection for new streams, with room or without."""
        return any(connection.is_open for connection in self._connections)

    def connection_with_room(self) -> Connection | None:
        """Return a connection that takes a stream now."""
        for connection in self._connections:
            if connection.has_room:
                return connection
        return None

    def connect(self) -> bool:
        """Begin to connect if that may help; return whether there is reason to wait for this endpoint."""
        if self._task is not None:
            return True
        usable = sum(connection.is_open for connection in self._connections)
        if usable >= MAX_CONNECTIONS:
            return True
        if self._loop.time() < self._retry_at_s:
            return usable > 0
        self._task = self._loop.create_task(self._connect(), name=f"headrace: connect to {self.address}")
        return True

    def close(self) -> None:
        """Stop connecting, take no more streams, and leave when those that run have ended."""
        if self._task is not None:
            self._task.cancel()
        for connection in list(self._connections):
            connection.close()

    async def aclose(self, timeout_s: float) -> None:
        """Close, and return when no socket and no task is left; what is not gone in time is cut."""
        task = self._task
        self.close()
        if task is not None:
            await asyncio.wait([task])
        closing = [connection.closed for connection in self._connections]
        if closing:
            await asyncio.wait(closing, timeout=timeout_s)
        left = [connection for connection in self._connections if not connection.closed.done()]
        for connection in left:
            connection.abort()
        if left:
            await asyncio.wait([connection.closed for connection in left])

    async def _connect(self) -> None:
        connection = Connection(self._dialing.keepalive, self._on_connection_change)
        is_ready = False
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._open_socket(connection)
                await connection.ready
            if not connection.is_open:  # a GOAWAY right behind the greeting, which must not go round and round
                raise ConnectionError("the server closes connections at once")
            is_ready = True
            self._connections.append(connection)
            connection.closed.add_done_callback(lambda _: self._connections.remove(connection))
            self._backoff_s, self.failure = 0.0, None
        except TimeoutError:
            self._fail(f"no connection within {CONNECT_TIMEOUT_S:.0f} s")
        except (OSError, UnicodeError) as error:  # refused, unreachable, TLS, no HTTP/2, no name
            self._fail(str(error))
        finally:
            self._task = None
            if not is_ready:
                connection.abort()
        self._on_change()

    async def _open_socket(self, connection: Connection) -> None:
        dialing, address = self._dialing, self.address
        if address.path is not None:
            name = (dialing.server_name or "localhost") if dialing.context else None
            transport, _ = await self._loop.create_unix_connection(
                lambda: connection, address.path, ssl=dialing.context, server_hostname=name
            )
        else:
            name = (dialing.server_name or address.host) if dialing.context else None
            transport, _ = await self._loop.create_connection(
                lambda: connection, address.host, address.port, ssl=dialing.context, server_hostname=name
            )
        bound_unacknowledged(transport.get_extra_info("socket"), dialing.keepalive)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and secured.selected_alpn_protocol() != ALPN:
            raise ConnectionError("the server does not offer HTTP/2 over TLS (ALPN h2)")

    def _fail(self, text: str) -> None:
        self.failure = f"cannot connect to {self.address}: {text}"
        self._backoff_s = min(self._backoff_s * BACKOFF_FACTOR or FIRST_BACKOFF_S, MAX_BACKOFF_S)
        jitter = random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - spreads load, hides nothing
        self._retry_at_s = self._loop.time() + self._backoff_s * jitter

    def _on_connection_change(self, connection: Connection) -> None:
        if connection.was_told_to_calm and self._dialing.keepalive.interval_s is not None:
            connection.was_told_to_calm = False
            times = self._dialing.keepalive
            self._dialing.keepalive = KeepaliveTimes(
                interval_s=self._dialing.keepalive.interval_s * 2,
                timeout_s=times.timeout_s,
                is_always_on=times.is_always_on,
            )
        self._on_change()
