"""Server-sent events: how one JSON document becomes bytes on the wire.

Knows nothing of what the documents say. Data is ASCII without line breaks
(JSON text with escapes), so one event is one `data:` line: no reader can split
it at U+2028 or inside a character.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CONTENT_TYPE", "DONE", "EVENT_END", "EVENT_START", "HEADERS", "PING", "event"]

EVENT_START: Final = "data: "
EVENT_END: Final = "\n\n"

# Without blanks: one SDK tests for equality. Readers stop here.
DONE: Final = b"data: [DONE]\n\n"

# One newline, not two: a comment needs no blank line after it, and some readers
# dispatch an empty event at every blank line.
PING: Final = b": ping\n"

CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"
HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-type", CONTENT_TYPE.encode()),
    # no-transform keeps proxies from compressing, which would hold events back.
    (b"cache-control", b"no-cache, no-transform"),
    # nginx buffers responses otherwise.
    (b"x-accel-buffering", b"no"),
)


def event(data: str) -> bytes:
    """Return one event that carries `data`: ASCII text without line breaks."""
    return (EVENT_START + data + EVENT_END).encode("ascii")
