"""Keeps the text of a message from forging a turn.

An engine reads `<|im_end|>` as a control token wherever it stands in the prompt,
also in what a person typed. Such texts are broken up with a zero-width space: a
reader sees no difference, and the tokenizer sees plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["ControlTexts"]

_ZERO_WIDTH_SPACE: Final = "\u200b"
# How control tokens look in the sources of chat templates, for engines that do not list theirs.
_IN_SOURCE: Final = re.compile(
    r"<\|[^\s|<>]{1,64}\|>|<\uff5c[^\s<>]{1,64}\uff5c>|</?s>|<(?:start|end)_of_[a-z]{1,32}>|\[/?[A-Z_]{2,32}\]|<</?SYS>>"
)
# One search keeps Python's global lock to its end: other threads get their turn after so many characters (5 ms).
_SLICE_CHARS: Final = 64 * 1024
# Groups within groups in the pattern; below, texts stand side by side. The compiler of patterns is recursive.
_MAX_NESTING: Final = 32


class ControlTexts:
    """A set of control texts that can be taken out of action in a text."""

    __slots__ = ("_longest", "_starts")

    def __init__(self, texts: Iterable[str]) -> None:
        # One character cannot be broken up.
        ordered = sorted({text for text in texts if len(text) > 1})
        self._longest = max(map(len, ordered), default=0)
        self._starts = re.compile(_starts(ordered)) if ordered else None

    @classmethod
    def of(cls, source: str, known: Iterable[str]) -> ControlTexts:
        """Return the texts that `source` writes itself, and the `known` ones of the engine."""
        return cls({*_IN_SOURCE.findall(source), *known})

    def disarm(self, text: str) -> str:
        """Return `text` with every control text in it broken up. Takes time in proportion to its length."""
        if self._starts is None:
            return text
        pieces: list[str] = []
        done = 0
        for first in range(0, len(text), _SLICE_CHARS):
            end = first + _SLICE_CHARS
            for match in self._starts.finditer(text, first, end + self._longest):
                # What begins in the next slice is found there.
                if match.end() > end:
                    break
                pieces.append(text[done : match.end()])
                done = match.end()
        if not pieces:
            return text
        pieces.append(text[done:])
        return _ZERO_WIDTH_SPACE.join(pieces)


def _starts(ordered: Sequence[str]) -> str:
    """Return the pattern of every first character of one of the texts, which are sorted and different.

    A vocabulary can have thousands: they are a tree, in which each character of the
    searched text is compared with the few that can follow. The first character
    stands in front of it all, since a search skips quickly to what a pattern begins with.
    """
    return "|".join(f"{re.escape(first)}(?={_tree(rest, 1)})" for first, rest in _by_first(ordered))


def _tree(ordered: Sequence[str], nesting: int) -> str:
    """Return the pattern of any of the texts, which are sorted; an empty one matches everywhere."""
    # What goes on after a text that is whole already changes nothing.
    if not ordered[0]:
        return ""
    if nesting > _MAX_NESTING:
        return f"(?:{'|'.join(map(re.escape, ordered))})"
    branches = []
    for first, rest in _by_first(ordered):
        shared = _shared_start(rest)
        tails = [text[shared:] for text in rest]
        branches.append(re.escape(first + rest[0][:shared]) + _tree(tails, nesting + 1))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _by_first(ordered: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each first character with what follows it in the texts."""
    groups: dict[str, list[str]] = {}
    for text in ordered:
        groups.setdefault(text[0], []).append(text[1:])
    return list(groups.items())


def _shared_start(ordered: Sequence[str]) -> int:
    """Return how many characters all the texts begin with: the first and the last of them, since they are sorted."""
    low, high = ordered[0], ordered[-1]
    return next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
