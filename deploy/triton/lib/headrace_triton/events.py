"""An append-only log of what the engine does, on the system-wide monotonic clock.

For tests and for finding out when work really stopped: `t` is
`time.monotonic()`, the same clock in every process of this machine.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

__all__ = ["EventLog"]


class EventLog:
    """Appends one JSON line per event; without a path it does nothing."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if path else None

    def write(self, event: str, request_id: str, **fields: Any) -> None:
        """Append one event. A single write call, so lines never mix."""
        if self._fd is not None:
            line = json.dumps({"t": time.monotonic(), "event": event, "id": request_id, **fields})
            os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
