"""Looks for fixed texts in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["mark_at", "tail_of"]


def mark_at(text: str, at: int, marks: Iterable[str]) -> str | None:
    """Return which of `marks` stands at `at`, the longest first; "" if the text ends too soon to say, None if none."""
    best: str | None = None
    left = len(text) - at
    for mark in marks:
        if text.startswith(mark, at):
            if best is None or len(mark) > len(best):
                best = mark
        elif left < len(mark) and mark.startswith(text[at:]):
            return ""
    return best


def tail_of(text: str, at: int, mark: str) -> int:
    """Return where the longest tail of `text[at:]` begins that may become `mark`; the length of `text` if none does."""
    found = text.find(mark[0], max(at, len(text) - len(mark) + 1))
    while found >= 0 and not mark.startswith(text[found:]):
        found = text.find(mark[0], found + 1)
    return found if found >= 0 else len(text)
