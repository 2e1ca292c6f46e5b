"""The servers of one model: which addresses there are, and which of them takes a request.

Each server has a channel of its own instead of one balanced by gRPC: a stop has
to reach the server that runs the request, and a retry another one than failed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection
from typing import Final

from service.backends.triton.endpoint import Endpoint
from service.backends.triton.targets import parse_targets

__all__ = ["Endpoints"]

_log = logging.getLogger(__name__)

# A name is asked again this often, and waited for this long.
_RESOLVE_EVERY_S: Final = 30.0
_RESOLVE_TIMEOUT_S: Final = 5.0


class Endpoints:
    """Picks the least busy server that is well; addresses of a name come and go.

    `open` makes the endpoint of an address. Must be used in one event loop.
    """

    def __init__(self, url: str, open_endpoint: Callable[[str], Endpoint]) -> None:
        addresses, self._name = parse_targets(url)
        self._open = open_endpoint
        self._endpoints = {address: open_endpoint(address) for address in addresses}
        # Their address is no longer among those of the name; closed when nothing runs there.
        self._leaving: list[Endpoint] = []
        self._turn = 0
        self._resolved_at_s = -_RESOLVE_EVERY_S
        self._resolving: asyncio.Task[None] | None = None

    def all(self) -> list[Endpoint]:
        """Return the servers that may take requests."""
        return list(self._endpoints.values())

    def pick(self, tried: Collection[Endpoint] = ()) -> Endpoint | None:
        """Return the server for the next request, None if all were tried.

        Those that are well go before those that are not, then the least busy, then the next in turn.
        """
        endpoints = [endpoint for endpoint in self._endpoints.values() if endpoint not in tried]
        if not endpoints:
            return None
        self._turn += 1
        count = len(endpoints)
        order = (endpoints[(self._turn + step) % count] for step in range(count))
        return min(order, key=lambda endpoint: (not endpoint.is_well, endpoint.running))

    async def refresh(self) -> None:
        """Ask for the addresses of the name, if it is time; those who ask at once share one answer. Never raises."""
        if self._name is None or time.monotonic() - self._resolved_at_s < _RESOLVE_EVERY_S:
            return
        if self._resolving is None:
            self._resolving = asyncio.create_task(self._resolve(*self._name), name="triton-resolve")
            self._resolving.add_done_callback(self._on_resolved)
        await asyncio.shield(self._resolving)

    async def close(self) -> None:
        """Close every server's connections; running generations are cancelled and stopped."""
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.wait([self._resolving])
        await asyncio.gather(*(endpoint.close() for endpoint in [*self._endpoints.values(), *self._leaving]))

    def _on_resolved(self, task: asyncio.Task[None]) -> None:
        self._resolving = None
        if not task.cancelled():
            task.exception()

    async def _resolve(self, name: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_RESOLVE_TIMEOUT_S):
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            # The addresses known so far stay: a name server that is gone must not end the service.
            _log.warning("the addresses of %s could not be asked: %s", name, error or "timeout")
            return
        self._resolved_at_s = time.monotonic()
        addresses = {_joined(address[4][0], port) for address in found}
        for address in sorted(addresses - self._endpoints.keys()):
            self._endpoints[address] = self._open(address)
        for address in self._endpoints.keys() - addresses:
            self._leaving.append(self._endpoints.pop(address))
        idle = [endpoint for endpoint in self._leaving if not endpoint.running]
        self._leaving = [endpoint for endpoint in self._leaving if endpoint.running]
        for endpoint in idle:
            await endpoint.close()


def _joined(host: str | int, port: int) -> str:
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
