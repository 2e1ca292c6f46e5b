"""Finds stop strings in a text that arrives in pieces.

Holds back exactly what could still become a match, so that no part of a match
is ever sent and nothing that did not match is ever lost. Independent of how
the text is cut into pieces.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["StopMatcher", "StopScan"]


class StopScan(NamedTuple):
    """Text that is safe to send, and the stop string that ended it, if one did."""

    text: str
    matched: str | None = None


class StopMatcher:
    """Matches stop strings across pieces.

    The match that starts first wins; of those that start at one place, the one
    that is complete first. That equals cutting the whole text at the smallest
    `text.find(stop)`, except that a longer string at the same place loses to a
    shorter one, which is what a reader of a stream can know.
    """

    __slots__ = ("_firsts", "_held", "_include", "_longest", "_sequences")

    def __init__(self, sequences: tuple[str, ...], *, include_in_output: bool = False) -> None:
        if any(not sequence for sequence in sequences):
            raise ValueError("a stop string must not be empty")
        self._sequences = sequences
        self._include = include_in_output
        self._longest = max((len(s) for s in sequences), default=0)
        self._firsts = frozenset(s[0] for s in sequences)
        self._held = ""

    @property
    def holds_back(self) -> bool:
        """True while a tail of the text may become a match."""
        return bool(self._held)

    def feed(self, text: str) -> StopScan:
        """Return what may be sent now that `text` has arrived."""
        held = self._held + text
        for first in self._firsts:
            if first in held:
                break
        else:
            # The common case per token: nothing here can begin a match.
            return StopScan(held)
        start, matched = self._first_match(held)
        hold_from = self._hold_from(held)
        # A match further right must wait while an earlier one is still possible.
        if matched is not None and start <= hold_from:
            self._held = ""
            return StopScan(held[: start + len(matched)] if self._include else held[:start], matched)
        self._held = held[hold_from:]
        return StopScan(held[:hold_from])

    def flush(self) -> StopScan:
        """Return what was held back, because no more text will come.

        A match that waited for an earlier candidate is decided here.
        """
        held, self._held = self._held, ""
        start, matched = self._first_match(held)
        if matched is None:
            return StopScan(held)
        return StopScan(held[: start + len(matched)] if self._include else held[:start], matched)

    def _first_match(self, text: str) -> tuple[int, str | None]:
        best, matched = len(text), None
        for sequence in self._sequences:
            at = text.find(sequence)
            if at >= 0 and (at < best or (at == best and matched and len(sequence) < len(matched))):
                best, matched = at, sequence
        return best, matched

    def _hold_from(self, text: str) -> int:
        """Return where the longest tail begins that is a proper prefix of a stop string."""
        begin, best = max(0, len(text) - self._longest + 1), len(text)
        for first in self._firsts:
            at = text.find(first, begin)
            while 0 <= at < best:
                tail = text[at:]
                if any(len(s) > len(tail) and s.startswith(tail) for s in self._sequences):
                    best = at
                    break
                at = text.find(first, at + 1)
        return best
