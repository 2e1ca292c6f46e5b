"""Reads a tool call that is written as a name before its arguments, as it arrives.

`name{...}`, `name[ARGS]{...}` or `name[CALL_ID]id[ARGS]{...}`: the ways of Mistral's
newer models. The id is dropped: calls get ids of one form, whatever the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from service.parsing.call_object import Status
from service.parsing.json_values import ValueScanner, skip_whitespace
from service.parsing.marks import mark_at
from service.parsing.writer import PieceWriter

__all__ = ["ARGUMENTS_MARK", "ID_MARK", "PrefixedCall"]

ARGUMENTS_MARK: Final = "[ARGS]"
ID_MARK: Final = "[CALL_ID]"
_WORD: Final = re.compile(r"[A-Za-z0-9_.\-]*")
MAX_NAME_CHARS: Final = 256


class PrefixedCall:
    """One call, from its name on, which has to be one of `names`."""

    __slots__ = ("_expected", "_name", "_names", "_scanner", "_step", "_waits", "_writer", "is_begun", "status")

    # Nothing is read that is not written.
    tail: Final = ""
    # A value that is whole ends the call.
    is_whole: Final = False

    def __init__(self, writer: PieceWriter, names: frozenset[str]) -> None:
        self.status = Status.OPEN
        self.is_begun = False
        self._writer = writer
        self._names = names
        self._name = ""
        self._waits = False
        self._expected: tuple[str, ...] = ()
        self._scanner = ValueScanner()
        self._step: Callable[[str, int], int] = self._in_name

    def feed(self, text: str, at: int) -> int:
        """Read on from `at` and return how far.

        If the call is open still, what was not taken has to come again, together with more.
        """
        self._waits = False
        while at < len(text) and self.status is Status.OPEN and not self._waits:
            at = self._step(text, at)
        return at

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def _in_name(self, text: str, at: int) -> int:
        match = _WORD.match(text, at)
        assert match is not None  # it matches nothing as well
        end = min(match.end(), at + MAX_NAME_CHARS - len(self._name))
        self._name += text[at:end]
        if end == len(text):
            return end
        if end < match.end() or self._name not in self._names:
            self.status = Status.FAILED
        self._expect("{", ARGUMENTS_MARK, ID_MARK)
        return end

    def _expect(self, *marks: str) -> None:
        self._expected = marks
        self._step = self._in_expectation

    def _in_expectation(self, text: str, at: int) -> int:
        at = skip_whitespace(text, at)
        if at == len(text):
            return at
        mark = mark_at(text, at, self._expected)
        if mark is None:
            self.status = Status.FAILED
            return at
        if not mark:
            self._waits = True
        elif mark == ID_MARK:
            self._step = self._in_id
        elif mark == ARGUMENTS_MARK:
            self._expect("{")
        else:
            self._begin()
        return at + len(mark)

    def _in_id(self, text: str, at: int) -> int:
        match = _WORD.match(text, at)
        assert match is not None  # it matches nothing as well
        if match.end() < len(text):
            self._expect(ARGUMENTS_MARK)
        return match.end()

    def _begin(self) -> None:
        self.is_begun = self._writer.begin(self._name)
        if not self.is_begun:
            self.status = Status.FAILED
            return
        self._writer.arguments("{")
        self._scanner.feed("{", 0)
        self._step = self._in_value

    def _in_value(self, text: str, at: int) -> int:
        end = self._scanner.feed(text, at)
        to = end if end >= 0 else len(text)
        self._writer.arguments(text[at:to])
        if self._scanner.is_broken:
            self.status = Status.BROKEN
        elif end >= 0:
            self.status = Status.DONE
        return to
