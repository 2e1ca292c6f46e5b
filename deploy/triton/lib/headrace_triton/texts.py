"""Token ids to text, in the ways of the different contracts. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .vocabulary import Vocabulary

__all__ = ["DeltaText", "WholeText", "decode_alone"]


def decode_alone(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """Return the text of these tokens as if they were all there is.

    What TensorRT-LLM's postprocessing does with every response: the space in
    front of a SentencePiece token is lost, and of a character that continues in
    the next response only U+FFFD is left.
    """
    text = vocabulary.decode(ids).decode("utf-8", "replace")
    return text.removeprefix(" ") if vocabulary.strips_first_space else text


class _Incremental:
    """Bytes of tokens to text; an incomplete character waits for its rest."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, ids: Sequence[int], *, is_last: bool) -> str:
        return self._decoder.decode(self._vocabulary.decode(ids), is_last)


class WholeText:
    """The text so far, as TensorRT-LLM's LLM API streams it.

    Text that was sent stays: of a stop word only what had not been sent is cut
    off. A character that is still incomplete at the end becomes U+FFFD.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = _Incremental(vocabulary)
        self._text = ""

    def take(self, ids: Sequence[int], *, word: bytes | None = None, is_last: bool = False) -> str:
        """Add tokens and return the whole text; `word` is the stop word that they complete."""
        sent = len(self._text)
        if word is None:
            self._text += self._pieces.take(ids, is_last=is_last)
        else:
            self._text += self._pieces.take(ids[:-1], is_last=False)
            before = len(self._text)
            self._text += self._pieces.take(ids[-1:], is_last=is_last)
            self._text = self._text[: max(_place(self._text, word.decode(), before), sent)]
        return self._text


class DeltaText:
    """The new text, as vLLM streams it.

    What could become a stop word is held back, and a stop word is cut off unless
    it is `kept`. A character that is still incomplete at the end is dropped.
    """

    def __init__(self, vocabulary: Vocabulary, words: Sequence[bytes], *, is_kept: bool) -> None:
        self._pieces = _Incremental(vocabulary)
        self._is_kept = is_kept
        self._held = 0 if is_kept else max((len(word.decode()) for word in words), default=1) - 1
        self._text = ""
        self._sent = 0

    def take(self, ids: Sequence[int], *, word: bytes | None = None, is_last: bool = False) -> str:
        """Add tokens and return what is new to the reader; `word` is the stop word that they complete."""
        if word is None:
            self._text += self._pieces.take(ids, is_last=False)
        else:
            self._text += self._pieces.take(ids[:-1], is_last=False)
            before, text = len(self._text), word.decode()
            self._text += self._pieces.take(ids[-1:], is_last=False)
            self._text = self._text[: _place(self._text, text, before) + (len(text) if self._is_kept else 0)]
        until = len(self._text) if is_last else max(self._sent, len(self._text) - self._held)
        new, self._sent = self._text[self._sent : until], until
        return new


def _place(text: str, word: str, before: int) -> int:
    """Return where `word` is, which the last token completes: what follows the first `before` characters."""
    at = text.find(word, max(0, before - len(word) + 1))
    return len(text) if at < 0 else at
