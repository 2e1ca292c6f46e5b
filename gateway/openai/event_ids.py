"""Ids of server-sent events: where in a generation an event stands, and what comes behind it. Pure.

`<sequence>` stands for the last event made from that event of the generation,
`<sequence>.<part>` for those before it. Of a generation that can be joined
again the generation's id stands in front: `gen_...:12.1`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gateway import sse
from gateway.openai.errors import invalid_request

__all__ = ["LAST_EVENT_ID", "Position", "generation_id_of", "position_of"]

LAST_EVENT_ID: Final = "Last-Event-ID"

_ID: Final = re.compile(r"(?:(gen_[0-9a-zA-Z]{1,64}):)?([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_ANSWER_ID: Final = re.compile(r"(?:(?:chatcmpl|cmpl|resp)[-_])?(gen_[0-9a-zA-Z]{1,64})")
_END: Final = sse.EVENT_END.encode()


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream was read: through event `sequence`, or through `part` of what it was made into."""

    sequence: int
    part: int | None = None
    generation_id: str | None = None

    def behind(self, frame: bytes, sequence: int) -> bytes:
        """Return what of `frame`, all that was made from event `sequence`, comes behind this position."""
        if sequence != self.sequence or not frame:
            return frame if sequence > self.sequence else b""
        kept = [one for one in frame.split(_END)[:-1] if not self._has(one)]
        return b"".join(one + _END for one in kept)

    def _has(self, frame: bytes) -> bool:
        """Return whether this frame was read. One without an id ends the stream, and was not."""
        first, _, _ = frame.partition(b"\n")
        if not first.startswith(b"id: "):
            return False
        _, _, part = first.rpartition(b":")[2].strip().partition(b".")
        if self.part is None:
            return True
        return bool(part) and int(part) <= self.part


def position_of(text: str) -> Position:
    """Return the position that a `Last-Event-ID` names. ApiError (400) if it is none of ours."""
    found = _ID.fullmatch(text.strip())
    if found is None:
        raise invalid_request(
            f"Invalid '{LAST_EVENT_ID}' header: expected the id of an event of this server, such as 'gen_...:12'.",
            param=LAST_EVENT_ID,
            code="invalid_value",
        )
    generation_id, sequence, part = found.groups()
    return Position(int(sequence), None if part is None else int(part), generation_id)


def generation_id_of(text: str) -> str | None:
    """Return the id of a generation from its own form or an answer's (`chatcmpl-gen_...`); None if it is neither."""
    found = _ANSWER_ID.fullmatch(text)
    return None if found is None else found[1]
