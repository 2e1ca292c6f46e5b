"""Keeps reasoning apart that stands between `<think>` and `</think>` at the start of an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from service.parsing.base import OutputParser, Piece
from service.parsing.json_values import skip_whitespace
from service.parsing.marks import tail_of

__all__ = ["CLOSE", "OPEN", "ThinkParser"]

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class ThinkParser:
    """An `OutputParser` for reasoning; `inner` parses what follows it, None passes that on as text.

    `starts_inside`: the prompt has opened the reasoning already, and a model that
    opens it once more is forgiven. `may_be_json`: the output may be forced to JSON
    from its first character on, in which case there is no reasoning, whatever the
    prompt says. Newlines right behind the tags are dropped; reasoning that never
    ends is reasoning to the last; tags that stand anywhere else are text.
    """

    def __init__(self, inner: OutputParser | None, *, starts_inside: bool, may_be_json: bool = False) -> None:
        self._inner = inner
        self._starts_inside = starts_inside
        self._may_be_json = may_be_json
        self._partial = ""
        # Whitespace before the tag.
        self._held: list[str] = []
        self._pieces: list[Piece] = []
        self._step: Callable[[str, int], int] = self._before
        self._is_over = False

    @property
    def calls(self) -> int:
        """Tool calls begun so far."""
        return 0 if self._inner is None else self._inner.calls

    @property
    def is_call_open(self) -> bool:
        """True while the arguments of the call begun last are not whole."""
        return self._inner is not None and self._inner.is_call_open

    @property
    def is_complete(self) -> bool:
        """True once nothing may follow."""
        return self._inner is not None and self._inner.is_complete

    @property
    def is_reasoning(self) -> bool:
        """True inside reasoning."""
        if self._is_over:
            return False
        return self._starts_inside if self._step == self._before else self._step != self._behind

    def feed(self, text: str) -> list[Piece]:
        """Return what is certain now that `text` has arrived."""
        if self._is_over:
            return [Piece(text)] if self._inner is None else self._inner.feed(text)
        if self._partial:
            text, self._partial = self._partial + text, ""
        at, end = 0, len(text)
        while at < end:
            at = self._step(text, at)
        pieces, self._pieces = self._pieces, []
        return pieces

    def flush(self) -> list[Piece]:
        """Return what was held back."""
        rest, self._partial = self._partial, ""
        if not self._is_over:
            if self._step == self._before and not self._starts_inside:
                self._pass("".join((*self._held, rest)))
            else:
                reasoning = "".join(self._held).lstrip("\r\n") + rest
                self._pieces += [Piece("", reasoning)] if reasoning else []
        pieces, self._pieces = self._pieces, []
        return pieces if self._inner is None else [*pieces, *self._inner.flush()]

    def _before(self, text: str, at: int) -> int:
        start, at = at, skip_whitespace(text, at)
        if at > start:
            self._held.append(text[start:at])
        if at == len(text):
            return at
        if text.startswith(OPEN, at):
            self._held.clear()
            self._step = self._at_start
            return at + len(OPEN)
        if OPEN.startswith(text[at:]):
            self._partial = text[at:]
            return len(text)
        held = "".join(self._held)
        if not self._starts_inside or (self._may_be_json and text[at] in "{["):
            self._pass(held + text[at:])
            return len(text)
        self._held.clear()
        held = held.lstrip("\r\n")
        if held:
            self._pieces.append(Piece("", held, None, len(text) - at))
        self._step = self._inside
        return at

    def _at_start(self, text: str, at: int) -> int:
        at = _skip_newlines(text, at)
        if at < len(text):
            self._step = self._inside
        return at

    def _inside(self, text: str, at: int) -> int:
        found = text.find(CLOSE, at)
        to = found if found >= 0 else tail_of(text, at, CLOSE)
        if to > at:
            self._pieces.append(Piece("", text[at:to], None, len(text) - to))
        if found < 0:
            self._partial = text[to:]
            return len(text)
        self._step = self._behind
        return found + len(CLOSE)

    def _behind(self, text: str, at: int) -> int:
        at = _skip_newlines(text, at)
        if at < len(text):
            self._pass(text[at:])
        return len(text)

    def _pass(self, text: str) -> None:
        self._is_over = True
        if self._inner is not None:
            self._pieces += self._inner.feed(text)
        elif text:
            self._pieces.append(Piece(text))


def _skip_newlines(text: str, at: int) -> int:
    while at < len(text) and text[at] in "\r\n":
        at += 1
    return at
