"""What bounds the waits of a generation, and what may wait for its reader."""

from __future__ import annotations

from dataclasses import dataclass

from service.core.request import Priority

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds, but for the last two.

    `queue_s`, `batch_queue_s`: in the waiting line of its class. `first_token_s`:
    from admission to the engine's first item, and from any item before the first
    token to the next. `token_gap_s`: between items after that. `reader_s`: one
    event handed to a reader that does not take it. `room_s`: the reader's share is
    full and nothing of it is taken. `unsent_events`, `unsent_bytes`: that share.
    """

    queue_s: float = 60.0
    batch_queue_s: float = 3600.0
    first_token_s: float = 120.0
    token_gap_s: float = 60.0
    reader_s: float = 30.0
    room_s: float = 5.0
    unsent_events: int = 64
    unsent_bytes: int = 8 * 1024

    def queue_limit_s(self, priority: Priority) -> float:
        """Return the longest wait for a slot."""
        return self.batch_queue_s if priority is Priority.BATCH else self.queue_s
