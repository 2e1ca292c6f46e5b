"""What a parser of model output takes and gives.

The seam between a generation, which knows when text arrives and when it ends,
and the formats in which models write reasoning and tool calls.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from service.core.events import ToolCallPiece

__all__ = ["MAX_CALLS", "OutputParser", "Piece"]

# As many as a conversation may carry back (`service.core.validate_chat`). What comes after them is text.
MAX_CALLS: Final = 128


# A tuple for the reason that `Delta` is one: one is built per token.
class Piece(NamedTuple):
    """New output of one choice; exactly one of the first three is set.

    `rest` is how many of the characters fed so far stand behind those that the
    piece was made of: what a token wrote can be found again by its place. The
    characters of a text stand together; between pieces may be marks.
    """

    text: str = ""
    reasoning: str = ""
    call: ToolCallPiece | None = None
    rest: int = 0


class OutputParser(Protocol):
    """Tells apart what one choice says, reasons and calls. Pure, and independent of how the text is cut.

    No input makes it raise. Text is never lost: what turns out to be no call
    becomes text, except for whitespace around calls and brackets too many behind one.
    """

    def feed(self, text: str) -> list[Piece]:
        """Return what is certain now that `text` has arrived; nothing once `is_complete`."""
        ...

    def flush(self) -> list[Piece]:
        """Return what was held back, because no more text will come. Called once, last."""
        ...

    @property
    def calls(self) -> int:
        """Tool calls begun so far."""
        ...

    @property
    def is_call_open(self) -> bool:
        """True while the arguments of the call begun last are not whole; after `flush`: it was cut."""
        ...

    @property
    def is_complete(self) -> bool:
        """True once nothing may follow, so that the engine can be stopped: further text is dropped."""
        ...

    @property
    def is_reasoning(self) -> bool:
        """True while what arrives is reasoning."""
        ...
