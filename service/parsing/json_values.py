"""Finds the end of a JSON value, and reads a JSON string, in a text that arrives in pieces.

Balances quotes and brackets, and checks no more than that: what a model wrote
reaches the caller as it is, also where it is not quite JSON.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["StringReader", "ValueScanner", "skip_whitespace"]

_WHITESPACE: Final = re.compile(r"[ \t\n\r]*")
_IN_STRING: Final = re.compile(r'["\\]')
# `<` and the backtick stand in no JSON outside a string: a tag or a fence has begun, and the value is broken.
_STRUCTURE: Final = re.compile(r'["{}\[\]<`]')
_SCALAR_END: Final = re.compile(r"[,\]}<` \t\n\r]")
_CLOSER: Final = {"{": "}", "[": "]"}

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_HEX: Final = re.compile(r"[0-9a-fA-F]{4}")
_HIGH_SURROGATES: Final = range(0xD800, 0xDC00)
_LOW_SURROGATES: Final = range(0xDC00, 0xE000)
_REPLACEMENT: Final = "\ufffd"


def skip_whitespace(text: str, at: int) -> int:
    """Return where the next character of `text` stands that JSON does not take for whitespace."""
    match = _WHITESPACE.match(text, at)
    assert match is not None  # it matches nothing as well
    return match.end()


class ValueScanner:
    """Finds the end of one JSON value. The first character fed is the value's own."""

    __slots__ = ("_closers", "_in_string", "_is_escaped", "_is_scalar", "_is_started", "is_broken")

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._is_escaped = False
        self._is_scalar = False
        self._is_started = False
        self.is_broken = False

    def feed(self, text: str, at: int) -> int:
        """Return the index just past the value, or -1 if it goes on behind `text`.

        If the brackets do not match, `is_broken` is set, and the index is that of
        the character which does not belong there.
        """
        if not self._is_started:
            self._is_started = True
            self._is_scalar = text[at] not in '"{['
        if self._is_scalar:
            end = _SCALAR_END.search(text, at)
            return -1 if end is None else end.start()
        while True:
            if self._in_string:
                at = self._string_end(text, at)
                if at < 0 or not self._closers:
                    return at
            match = _STRUCTURE.search(text, at)
            if match is None:
                return -1
            found, at = match.group(), match.end()
            if found == '"':
                self._in_string = True
            elif found in _CLOSER:
                self._closers.append(_CLOSER[found])
            elif self._closers and found == self._closers[-1]:
                self._closers.pop()
                if not self._closers:
                    return at
            else:
                self.is_broken = True
                return at - 1

    def _string_end(self, text: str, at: int) -> int:
        if self._is_escaped:
            if at >= len(text):
                return -1
            self._is_escaped = False
            at += 1
        while True:
            match = _IN_STRING.search(text, at)
            if match is None:
                return -1
            at = match.end()
            if match.group() == '"':
                self._in_string = False
                return at
            if at >= len(text):
                self._is_escaped = True
                return -1
            at += 1


class StringReader:
    """Reads what a JSON string says, from the text between its quotes.

    An escape that JSON does not know stays as it is, half a surrogate pair
    becomes U+FFFD, so that every text has one meaning.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, raw: str) -> str:
        """Return the text of `raw`; an escape that is not whole yet is held back."""
        raw, self._held = self._held + raw, ""
        at = raw.find("\\")
        if at < 0:
            return raw
        pieces, done = [], 0
        while at >= 0:
            pieces.append(raw[done:at])
            escape = _escape(raw, at)
            if escape is None:
                self._held = raw[at:]
                return "".join(pieces)
            text, done = escape
            pieces.append(text)
            at = raw.find("\\", done)
        pieces.append(raw[done:])
        return "".join(pieces)

    def flush(self) -> str:
        """Return the escape that was cut by the end, as it was written."""
        held, self._held = self._held, ""
        return held


def _escape(raw: str, at: int) -> tuple[str, int] | None:
    """Return the character that the escape at `at` stands for and where it ends, or None if it is not whole."""
    kind = raw[at + 1 : at + 2]
    if not kind:
        return None
    if kind != "u":
        known = kind if kind in '"\\/' else _ESCAPES.get(kind)
        return (raw[at : at + 2] if known is None else known), at + 2
    code = _unit(raw, at)
    if code is None:
        # Decided as soon as one digit is wrong, so that only a possible escape waits.
        digits = raw[at + 2 : at + 6]
        return None if len(digits) < 4 and all(c in "0123456789abcdefABCDEF" for c in digits) else ("\\u", at + 2)
    if code in _HIGH_SURROGATES:
        return _pair(raw, at, code)
    return (_REPLACEMENT if code in _LOW_SURROGATES else chr(code)), at + 6


def _pair(raw: str, at: int, high: int) -> tuple[str, int] | None:
    follows = raw[at + 6 : at + 12]
    low = _unit(raw, at + 6)
    if low is not None:
        if low in _LOW_SURROGATES:
            return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)), at + 12
    elif len(follows) < 6 and (follows[:2] == "\\u" or "\\u".startswith(follows)):
        return None
    return _REPLACEMENT, at + 6


def _unit(raw: str, at: int) -> int | None:
    if not raw.startswith("\\u", at):
        return None
    digits = _HEX.match(raw, at + 2)
    return None if digits is None else int(digits.group(), 16)
