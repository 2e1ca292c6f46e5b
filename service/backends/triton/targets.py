"""What `url` names: one server, several, or a name with all its addresses. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["parse_targets"]

_DNS: Final = "dns:///"
# Other targets that gRPC itself understands.
_SCHEMES: Final = ("unix:", "ipv4:", "ipv6:", "xds:")
_HIGHEST_PORT: Final = 65535


def parse_targets(url: str) -> tuple[list[str], tuple[str, int] | None]:
    """Return the addresses that `url` lists, and the name and port to resolve if it is dns:///name:port.

    Raises ValueError for what is neither.
    """
    if url.startswith(_DNS):
        return [], _host_and_port(url.removeprefix(_DNS), url)
    targets = list(dict.fromkeys(part.strip() for part in url.split(",") if part.strip()))
    if not targets:
        raise ValueError(f"url names no server, got {url!r}")
    for target in targets:
        if not target.startswith(_SCHEMES):
            _host_and_port(target, url)
    return targets, None


def _host_and_port(text: str, url: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    is_host = bool(host) and not set(host) & set("/, \t\r\n\0") and len(host) <= 255
    is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _HIGHEST_PORT
    if not is_host or not is_port:
        raise ValueError(f"url must be host:port, several with commas between, or {_DNS}name:port, got {url[:200]!r}")
    return host.strip("[]"), int(port)
