"""Decides after each token whether a generation is over: its limit and its stop words."""

from __future__ import annotations

from collections.abc import Sequence

from .vocabulary import Vocabulary

__all__ = ["StopRule"]


class StopRule:
    """Counts tokens and looks for stop words in their bytes.

    Like TensorRT-LLM it keeps the token that completes a stop word; unlike it,
    a word is found however it is cut into tokens.
    """

    def __init__(self, vocabulary: Vocabulary, limit: int, words: Sequence[bytes]) -> None:
        self._vocabulary = vocabulary
        self._limit = limit
        self._words = tuple(words)
        self._keep = max((len(word) for word in words), default=1) - 1
        self._tail = b""
        self.count = 0

    def take(self, ids: Sequence[int]) -> tuple[list[int], bool]:
        """Return the ids that still belong to the output, and whether it ends with them."""
        kept: list[int] = []
        for token in ids:
            if self.count >= self._limit:
                return kept, True
            kept.append(token)
            self.count += 1
            if self._words:
                text = self._tail + self._vocabulary.pieces[token]
                if any(word in text for word in self._words):
                    return kept, True
                self._tail = text[-self._keep :] if self._keep else b""
        return kept, self.count >= self._limit
