"""The syntax of HTTP's Server-Timing, which trailers over gRPC have too."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["server_timing_value"]


def server_timing_value(parts: Iterable[tuple[str, float | None]]) -> str:
    """Return names and milliseconds as one value; points that were not reached (None) are left out."""
    return ", ".join(f"{name};dur={ms:.3f}" for name, ms in parts if ms is not None)
