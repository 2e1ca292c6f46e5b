"""Writes down what a parser has found: text, and calls with their numbers and ids."""

from __future__ import annotations

import secrets

from service.core.events import ToolCallPiece
from service.parsing.base import MAX_CALLS, Piece

__all__ = ["PieceWriter"]


class PieceWriter:
    """Collects pieces. Whitespace that stands alone before, between or after calls is dropped."""

    __slots__ = ("_has_arguments", "_in_text", "_pieces", "_spaces", "calls")

    def __init__(self) -> None:
        self.calls = 0
        self._pieces: list[Piece] = []
        self._in_text = False
        self._spaces: list[str] = []
        self._has_arguments = False

    def text(self, text: str, rest: int = 0) -> None:
        """Write text that is part of no call; `rest` as in `Piece`. It goes on where the last text has ended."""
        if not text:
            return
        if not self._in_text:
            if text.isspace():
                self._spaces.append(text)
                return
            self._in_text = True
            if self._spaces:
                text = "".join((*self._spaces, text))
                self._spaces.clear()
        self._pieces.append(Piece(text, "", None, rest) if rest else Piece(text))

    def drop_spaces(self) -> None:
        """Forget whitespace behind a call, because more that is part of no text follows."""
        self._spaces.clear()

    def begin(self, name: str) -> bool:
        """Begin a call of the function `name`; False, and nothing is written, if there were too many."""
        if self.calls >= MAX_CALLS:
            return False
        self._in_text = False
        self._spaces.clear()
        self._has_arguments = False
        # 96 random bits.
        self._pieces.append(Piece("", "", ToolCallPiece(self.calls, f"call_{secrets.token_hex(12)}", name, "")))
        self.calls += 1
        return True

    def arguments(self, fragment: str, rest: int = 0) -> None:
        """Write the next piece of the arguments of the call begun last."""
        if fragment:
            self._has_arguments = True
            self._pieces.append(Piece("", "", ToolCallPiece(self.calls - 1, "", "", fragment), rest))

    def end(self) -> None:
        """End the call: one that came without arguments gets an empty object."""
        if not self._has_arguments:
            self.arguments("{}")

    @property
    def written(self) -> int:
        """Pieces since the last `take`."""
        return len(self._pieces)

    def place(self, since: int, rest: int) -> None:
        """Say where the pieces from number `since` on end."""
        if rest:
            self._pieces[since:] = [piece._replace(rest=rest) for piece in self._pieces[since:]]

    def take(self) -> list[Piece]:
        """Return what was written since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def flush(self) -> list[Piece]:
        """Return the last pieces. An answer of nothing but whitespace is that whitespace."""
        if self._spaces and not self.calls:
            self._pieces.append(Piece("".join(self._spaces)))
            self._spaces.clear()
        return self.take()
