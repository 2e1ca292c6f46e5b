"""What `url` names: one server, several, or a name with all its addresses. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["parse_targets"]

_DNS: Final = "dns:///"


def parse_targets(url: str) -> tuple[list[str], tuple[str, int] | None]:
    """Return the addresses that `url` lists, and the name and port to resolve if it is dns:///name:port.

    Raises ValueError for a name without a port.
    """
    if url.startswith(_DNS):
        name, _, port = url.removeprefix(_DNS).rpartition(":")
        if not name or not port.isdigit():
            raise ValueError(f"url must be {_DNS}name:port, got {url!r}")
        return [], (name.strip("[]"), int(port))
    return list(dict.fromkeys(part.strip() for part in url.split(",") if part.strip())), None
