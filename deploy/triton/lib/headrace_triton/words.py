"""Word lists as TensorRT-LLM passes them: INT32 [2, n], ids and the ends of the words.

Row 0 holds the ids of all words one after another, padded with 0; row 1 the
running end offsets, padded with -1.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["pack_words", "unpack_words"]


def pack_words(words: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the two rows; without words one column of padding, as a tensor must not be empty."""
    ids = [token for word in words for token in word]
    ends: list[int] = []
    for word in words:
        ends.append((ends[-1] if ends else 0) + len(word))
    size = max(len(ids), len(ends), 1)
    return [ids + [0] * (size - len(ids)), ends + [-1] * (size - len(ends))]


def unpack_words(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the words of the two rows. Inverse of `pack_words`."""
    words, start = [], 0
    for end in rows[1]:
        if end <= start:
            break
        words.append([int(token) for token in rows[0][start:end]])
        start = int(end)
    return words
