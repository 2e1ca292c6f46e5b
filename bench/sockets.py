"""Connections to the servers under test: ordinary ones, and ones behind which little is hidden."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["connect", "raise_file_limit"]

P = TypeVar("P", bound=asyncio.Protocol)

# The least that Linux gives, so that the kernel at the reader's end holds next to nothing ...
NARROW_RECEIVE_BYTES: Final = 4096
# ... and the segments of an Ethernet: with the loopback's own of 64 KiB the kernel at the other end would
# hold megabytes of each connection, and no server would ever notice that nobody reads.
ETHERNET_SEGMENT_BYTES: Final = 1448


async def connect(port: int, make: Callable[[], P], *, is_narrow: bool = False) -> P:
    """Connect to a port of this machine and return the protocol that `make` made."""
    loop = asyncio.get_running_loop()
    if not is_narrow:
        _, protocol = await loop.create_connection(make, "127.0.0.1", port)
        return protocol
    narrow = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        narrow.settimeout(0)
        # Before the connection is made: both are settled by its handshake.
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_RECEIVE_BYTES)
        narrow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, ETHERNET_SEGMENT_BYTES)
        await loop.sock_connect(narrow, ("127.0.0.1", port))
        _, protocol = await loop.create_connection(make, sock=narrow)
    except BaseException:
        narrow.close()
        raise
    return protocol


def raise_file_limit() -> int:
    """Raise this process's limit of open files as far as it may, its children's with it, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
