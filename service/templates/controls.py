"""Keeps the text of a message from forging a turn.

An engine reads `<|im_end|>` as a control token wherever it stands in the prompt,
also in what a person typed. Such texts are broken up with a zero-width space: a
reader sees no difference, and the tokenizer sees plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["ControlTexts"]

_ZERO_WIDTH_SPACE: Final = "\u200b"
# How control tokens look in the sources of chat templates, for engines that do not list theirs.
_IN_SOURCE: Final = re.compile(
    r"<\|[^\s|<>]{1,64}\|>|<\uff5c[^\s<>]{1,64}\uff5c>|</?s>|<(?:start|end)_of_[a-z]{1,32}>|\[/?[A-Z_]{2,32}\]|<</?SYS>>"
)


class ControlTexts:
    """A set of control texts that can be taken out of action in a text."""

    __slots__ = ("_lengths", "_starts", "_texts")

    def __init__(self, texts: Iterable[str]) -> None:
        # One character cannot be broken up.
        self._texts = frozenset(text for text in texts if len(text) > 1)
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)
        # Two characters: a lone "<" is common in messages.
        seconds: dict[str, set[str]] = {}
        for text in self._texts:
            seconds.setdefault(text[0], set()).add(re.escape(text[1]))
        starts = [f"{re.escape(first)}(?=[{''.join(sorted(after))}])" for first, after in sorted(seconds.items())]
        self._starts = re.compile("|".join(starts)) if starts else None

    @classmethod
    def of(cls, source: str, known: Iterable[str]) -> ControlTexts:
        """Return the texts that `source` writes itself, and the `known` ones of the engine."""
        return cls({*_IN_SOURCE.findall(source), *known})

    def disarm(self, text: str) -> str:
        """Return `text` with every control text in it broken up."""
        if self._starts is None:
            return text
        pieces: list[str] = []
        done = 0
        for match in self._starts.finditer(text):
            at = match.start()
            # A set and a few lengths, not one big pattern: a vocabulary can have thousands.
            if any(text[at : at + length] in self._texts for length in self._lengths):
                pieces.append(text[done : at + 1])
                done = at + 1
        if not pieces:
            return text
        pieces.append(text[done:])
        return _ZERO_WIDTH_SPACE.join(pieces)
