"""What a gRPC target names: sockets to connect to, or names to resolve.

https://github.com/grpc/grpc/blob/master/doc/naming.md, without the schemes
that need gRPC itself (xds, DNS servers of one's own, abstract sockets).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import urllib.request
from dataclasses import dataclass
from typing import Final

__all__ = ["Address", "Target", "parse_target", "resolve", "uses_proxy"]

DEFAULT_PORT: Final = 443
MAX_ADDRESSES: Final = 32  # of one name; each gets a connection
_SCHEME: Final = re.compile(r"^([a-z][a-z0-9+.-]*):(?!\d+$)(.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One place to connect to: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`addresses` if they are known, else `name` and `port` to resolve; `authority` is what the server is called."""

    addresses: tuple[Address, ...] = ()
    name: str = ""
    port: int = 0
    authority: str


def parse_target(target: str) -> Target | None:
    """Return what a target names; None for one that only gRPC itself can use."""
    found = _SCHEME.match(target)
    scheme, rest = (found[1], found[2]) if found and found[1] in _KNOWN else ("dns", target)
    if scheme == "unix":
        path = rest.removeprefix("//")
        return Target(addresses=(Address(path=path),), authority="localhost") if path else None
    if scheme not in ("dns", "ipv4", "ipv6"):
        return None
    if rest.startswith("//"):
        server, _, rest = rest[2:].partition("/")
        if server:
            return None
    places = [_split(part) for part in rest.split(",")] if scheme != "dns" else [_split(rest)]
    known = [place for place in places if place is not None]
    if len(known) != len(places) or any("/" in host or not host for host, _ in known):
        return None
    if scheme != "dns" or _is_literal(known[0][0]):
        return Target(addresses=tuple(Address(host=host, port=port) for host, port in known), authority=rest)
    return Target(name=known[0][0], port=known[0][1], authority=rest)


_KNOWN: Final = frozenset({"dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p"})


def _split(place: str) -> tuple[str, int] | None:
    if _is_literal(place.strip("[]")):
        return place.strip("[]"), DEFAULT_PORT
    host, colon, port = place.rpartition(":")
    if not colon:
        return place, DEFAULT_PORT
    if not port.isdigit() or int(port) > 65_535 or (":" in host and not host.startswith("[")):
        return None
    return host.strip("[]"), int(port)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


async def resolve(name: str, port: int) -> list[Address]:
    """Return the addresses of a name, without repeats. OSError if there are none."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(Address(host=str(info[4][0]), port=port) for info in found))[:MAX_ADDRESSES]


def uses_proxy(target: Target) -> bool:
    """Whether gRPC would reach the target through an HTTP proxy of the environment."""
    proxies = urllib.request.getproxies_environment()
    if not {"grpc", "https", "http"} & proxies.keys() or any(address.path for address in target.addresses):
        return False
    hosts = [address.host for address in target.addresses] or [target.name]
    return not all(urllib.request.proxy_bypass(host) for host in hosts)
