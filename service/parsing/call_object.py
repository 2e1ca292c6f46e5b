"""Reads a tool call that is written as a JSON object, as it arrives.

`{"name": ..., "arguments": {...}}`, with `parameters` for `arguments`, the keys in
any order, other keys beside them, and both possibly inside `"function": {...}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Final

from service.parsing.arguments import ArgumentsReader
from service.parsing.json_values import ValueScanner, skip_whitespace
from service.parsing.writer import PieceWriter

__all__ = ["CallObject", "Status"]

_NAME: Final = "name"
_NESTED: Final = "function"
_ARGUMENTS: Final = frozenset({"arguments", "parameters"})
_HARMLESS: Final = frozenset({"type", "id"})
_OF_CALLS: Final = _ARGUMENTS | _HARMLESS | {_NAME, _NESTED}
# Longest key or name, as written. Far above any function's name, and a bound on what is held back.
MAX_KEY_CHARS: Final = 256


class Status(Enum):
    """How far the object has come."""

    OPEN = "more is to come"
    DONE = "it was a call, and has ended"
    FAILED = "it is no call: nothing was written"
    BROKEN = "it was a call, but goes on as no JSON does"


class CallObject:
    """One call, behind its opening brace.

    `names` are the functions there are: what names another one is no call. The
    call begins with its name. `is_strict`: nothing but the name tells a call from
    other JSON, so that it begins when its arguments do, and only keys that a call
    has are accepted. `unquotes`: arguments that are a string are what it says.
    """

    __slots__ = (
        "_arguments",
        "_arguments_seen",
        "_held",
        "_in_function",
        "_is_strict",
        "_key",
        "_length",
        "_name",
        "_names",
        "_raw",
        "_scanner",
        "_step",
        "_tail",
        "_tail_at",
        "_writer",
        "is_begun",
        "status",
    )

    def __init__(self, writer: PieceWriter, names: frozenset[str], *, is_strict: bool, unquotes: bool = True) -> None:
        self.status = Status.OPEN
        self.is_begun = False
        self._writer = writer
        self._names = names
        self._is_strict = is_strict
        self._arguments = ArgumentsReader(unquotes=unquotes)
        self._step: Callable[[str, int], int] = self._before_key
        self._scanner = ValueScanner()
        self._raw: list[str] = []
        self._length = 0
        self._key = ""
        self._name: str | None = None
        self._arguments_seen = False
        self._in_function = False
        # Arguments that came before the name.
        self._held: list[str] = []
        # What was read since the last written piece, and where it begins in the text being fed; -1 while
        # pieces are written.
        self._tail: list[str] = []
        self._tail_at = -1

    def feed(self, text: str, at: int) -> int:
        """Read on from `at` and return how far: a character that does not belong to the object is not taken."""
        end = len(text)
        if self._tail_at >= 0:
            self._tail_at = at
        while at < end and self.status is Status.OPEN:
            at = self._step(text, at)
        if self._tail_at >= 0:
            self._tail.append(text[self._tail_at : at])
        return at

    @property
    def tail(self) -> str:
        """What was read behind the last written piece, if the object did not end as one."""
        return "".join(self._tail)

    def _follow(self, at: int) -> None:
        """Remember what is read from here on."""
        self._tail.clear()
        self._tail_at = at

    @property
    def is_whole(self) -> bool:
        """True once the arguments have ended."""
        return self._arguments_seen and self._step != self._in_arguments

    def flush(self) -> None:
        """Write what of the arguments is held back, because the text ends here."""
        if self.is_begun and not self.is_whole:
            self._writer.arguments(self._arguments.flush())

    def _before_key(self, text: str, at: int) -> int:
        at = skip_whitespace(text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            return self._read_string(text, at, self._in_key)
        if text[at] == "}":
            return self._close(at)
        return self._fail(at)

    def _read_string(self, text: str, at: int, step: Callable[[str, int], int]) -> int:
        self._scanner = ValueScanner()
        self._raw = []
        self._length = 0
        self._step = step
        return step(text, at)

    def _string(self, text: str, at: int) -> tuple[str | None, int]:
        """Return a short string once it is whole; fails on what no key and no name is."""
        end = self._scanner.feed(text, at)
        to = end if end >= 0 else len(text)
        # The very character is found that is one too many: the outcome must not depend on how the text is cut.
        last = at + MAX_KEY_CHARS - self._length
        newline = text.find("\n", at, min(to, last))
        if newline >= 0 or to > last:
            return None, self._fail(newline if newline >= 0 else last)
        self._raw.append(text[at:to])
        self._length += to - at
        if end < 0:
            return None, to
        try:
            string = json.loads("".join(self._raw))
        except ValueError:
            string = ""
        # Also keeps out half a surrogate pair, which cannot be sent.
        if not (string and string.isprintable()):
            return None, self._fail(to)
        return string, to

    def _in_key(self, text: str, at: int) -> int:
        key, at = self._string(text, at)
        if key is None:
            return at
        if self._is_strict and key not in _OF_CALLS:
            return self._fail(at)
        self._key = key
        self._step = self._before_colon
        return at

    def _before_colon(self, text: str, at: int) -> int:
        at = skip_whitespace(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fail(at)
        self._step = self._before_value
        return at + 1

    def _before_value(self, text: str, at: int) -> int:
        at = skip_whitespace(text, at)
        if at == len(text):
            return at
        key, first = self._key, text[at]
        if key == _NAME and self._name is None:
            return self._read_string(text, at, self._in_name) if first == '"' else self._fail(at)
        if key in _ARGUMENTS and not self._arguments_seen:
            return self._open_arguments(at)
        if key == _NESTED and first == "{" and not self._in_function:
            self._in_function = True
            self._step = self._before_key
            return at + 1
        if self._is_strict and key not in _HARMLESS:
            return self._fail(at)
        self._scanner = ValueScanner()
        self._step = self._in_other
        return at

    def _in_name(self, text: str, at: int) -> int:
        name, at = self._string(text, at)
        if name is None:
            return at
        self._name = name
        self._step = self._after_value
        if name not in self._names:
            return self._fail(at)
        if not self._is_strict or self._arguments_seen:
            if not self._begin():
                return self._fail(at)
            self._follow(at)
        return at

    def _begin(self) -> bool:
        assert self._name is not None
        self.is_begun = self._writer.begin(self._name)
        if self.is_begun:
            self._writer.arguments("".join(self._held))
            self._held.clear()
        return self.is_begun

    def _open_arguments(self, at: int) -> int:
        if self._name is not None and not self.is_begun and not self._begin():
            return self._fail(at)
        self._arguments_seen = True
        self._tail_at = -1
        self._tail.clear()
        self._step = self._in_arguments
        return at

    def _in_arguments(self, text: str, at: int) -> int:
        fragment, at = self._arguments.feed(text, at)
        if self.is_begun:
            self._writer.arguments(fragment)
        else:
            self._held.append(fragment)
        if self._arguments.is_broken:
            return self._fail(at)
        if self._arguments.is_whole:
            self._step = self._after_value
            if self.is_begun:
                self._follow(at)
        return at

    def _in_other(self, text: str, at: int) -> int:
        end = self._scanner.feed(text, at)
        if self._scanner.is_broken:
            return self._fail(end)
        if end < 0:
            return len(text)
        self._step = self._after_value
        return end

    def _after_value(self, text: str, at: int) -> int:
        at = skip_whitespace(text, at)
        if at == len(text):
            return at
        if text[at] == ",":
            self._step = self._before_key
            return at + 1
        if text[at] == "}":
            return self._close(at)
        return self._fail(at)

    def _close(self, at: int) -> int:
        if self._in_function:
            self._in_function = False
            self._step = self._after_value
            return at + 1
        if self._name is None or not (self.is_begun or self._begin()):
            return self._fail(at)
        self._tail_at = -1
        self._tail.clear()
        self._end()
        return at + 1

    def _end(self) -> None:
        self.status = Status.DONE
        self._writer.end()

    def _fail(self, at: int) -> int:
        if not self.is_begun:
            self.status = Status.FAILED
        elif self.is_whole:
            # The arguments are whole: models forget the last brace more often than anything else.
            self._end()
        else:
            self.status = Status.BROKEN
        return at
