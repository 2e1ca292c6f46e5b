"""Text that grows -> what is new in it. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["CumulativeText"]

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


class CumulativeText:
    """Takes the whole text so far, again and again, and returns what was not seen yet.

    A text that ends with U+FFFD may end inside a character, which the next one
    completes: that end is held back until it is followed by something, or the
    generation is over.
    """

    __slots__ = ("_held", "_seen")

    def __init__(self) -> None:
        self._seen = b""
        self._held = b""

    def feed(self, text: bytes) -> bytes:
        """Return the new bytes.

        A text that changed what was sent already cannot be taken back: what
        stands behind the same number of bytes follows then.
        """
        settled = text
        while settled.endswith(_REPLACEMENT):
            settled = settled[: -len(_REPLACEMENT)]
        if len(settled) < len(self._seen):
            self._held = b""
            return b""
        new = settled[len(self._seen) :]
        self._seen, self._held = settled, text[len(settled) :]
        return new

    def contradicts(self, text: bytes) -> bool:
        """Return whether `text` can only be new text by itself: it repeats less than half of what was seen.

        The beginning of what was seen is no contradiction, however short: a whole
        text shrinks to it when an engine takes something back.
        """
        half = (len(self._seen) + 1) // 2
        return text[:half] != self._seen[:half] and not self._seen.startswith(text)

    def rest(self) -> bytes:
        """Return what was held back: once the generation is over it is the text."""
        held, self._held = self._held, b""
        return held
