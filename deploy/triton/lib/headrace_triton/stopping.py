"""Decides after each token whether a generation is over: its limit, its stop words and stop tokens."""

from __future__ import annotations

from collections.abc import Sequence

from .vocabulary import Vocabulary

__all__ = ["StopRule"]


class StopRule:
    """Counts tokens and looks for stop words in their bytes.

    Like TensorRT-LLM it keeps the token that completes a stop word; unlike it,
    a word is found however it is cut into tokens. Words and stop tokens among the
    first `min_tokens` do not count. `word` and `stop_id` say what was found.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        limit: int,
        words: Sequence[bytes] = (),
        stop_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
    ) -> None:
        self._vocabulary = vocabulary
        self._limit = limit
        self._words = tuple(words)
        self._stop_ids = stop_ids
        self._min_tokens = min_tokens
        self._keep = max((len(word) for word in words), default=1) - 1
        self._tail = b""
        self.count = 0
        self.word: bytes | None = None
        self.stop_id: int | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether a word or a token ended it, and not the limit."""
        return self.word is not None or self.stop_id is not None

    def take(self, ids: Sequence[int]) -> tuple[list[int], bool]:
        """Return the ids that still belong to the output, and whether it ends with them."""
        kept: list[int] = []
        for token in ids:
            if self.count >= self._limit:
                return kept, True
            kept.append(token)
            self.count += 1
            if self._ends_with(token):
                return kept, True
        return kept, self.count >= self._limit

    def _ends_with(self, token: int) -> bool:
        if self._words:
            text = self._tail + self._vocabulary.pieces[token]
            self._tail = text[-self._keep :] if self._keep else b""
        if self.count <= self._min_tokens:
            return False
        if token in self._stop_ids:
            self.stop_id = token
        elif self._words:
            # With several, the one that is complete first.
            ends = [(text.find(word) + len(word), word) for word in self._words if word in text]
            self.word = min(ends)[1] if ends else None
        return self.is_stopped
