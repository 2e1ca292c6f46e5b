"""Reads the arguments of a tool call, as they arrive."""

from __future__ import annotations

from typing import Final

from service.parsing.json_values import StringReader, ValueScanner

__all__ = ["ArgumentsReader"]

_NULL: Final = "null"


class ArgumentsReader:
    """Gives the text of one JSON value as it was written.

    With `unquotes` a string is what it says, because some models write the object
    as a string. `null` is nothing.
    """

    __slots__ = ("_null", "_scanner", "_string", "_unquotes", "is_whole")

    def __init__(self, *, unquotes: bool) -> None:
        self.is_whole = False
        self._unquotes = unquotes
        self._scanner: ValueScanner | None = None
        self._string: StringReader | None = None
        # What may become the word and nothing else; None once it cannot.
        self._null: str | None = ""

    @property
    def is_broken(self) -> bool:
        """True once the text goes on as no JSON does."""
        return self._scanner is not None and self._scanner.is_broken

    def feed(self, text: str, at: int) -> tuple[str, int]:
        """Return what is certain of the arguments, and how far they go; the first character fed is their own."""
        if self._scanner is None:
            self._scanner = ValueScanner()
            if self._unquotes and text[at] == '"':
                self._string = StringReader()
                self._scanner.feed('"', 0)
                at += 1
        end = self._scanner.feed(text, at)
        to = end if end >= 0 else len(text)
        self.is_whole = end >= 0 and not self._scanner.is_broken
        if self._string is None:
            told = text[at:to]
        elif end < 0:
            told = self._string.feed(text[at:to])
        else:
            told = self._string.feed(text[at : to - 1]) + self._string.flush()
        return (told if self._null is None else self._without_null(told)), to

    def flush(self) -> str:
        """Return what was held back, because the text ends inside the arguments."""
        return ("" if self._string is None else self._string.flush()) + (self._null or "")

    def _without_null(self, told: str) -> str:
        told, self._null = (self._null or "") + told, None
        if not _NULL.startswith(told) or (self.is_whole and told != _NULL):
            return told
        self._null = told
        return ""
