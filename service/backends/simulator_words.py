"""The simulator's vocabulary: the words that it says, a start token, and one token for all words that it does not know.

A token is a word with the space before it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.backends.tokenizer import MAX_TEXT_BYTES, EncodedText

__all__ = ["VOCAB_SIZE", "WORDS", "WordTokenizer", "id_of_word"]

_TEXT: Final = (
    "the river runs down from the high lake and the mill turns slowly while water falls over stone into a still "
    "pool where light bends and small fish hold their place against the stream until evening comes"
)
WORDS: Final = tuple(f" {word}" for word in _TEXT.split())
# Ids beyond the words are valid, for scripts with tokens of their own.
VOCAB_SIZE: Final = 256
_START: Final = VOCAB_SIZE - 2
_UNKNOWN: Final = VOCAB_SIZE - 1
_IDS: Final = {word: number for number, word in enumerate(dict.fromkeys(WORDS))}
_PIECES: Final = {number: word.encode() for word, number in _IDS.items()} | {_START: b"<s>", _UNKNOWN: b" <unk>"}
_SPECIAL: Final = frozenset({_START, _UNKNOWN})


def id_of_word(word: str) -> int:
    """Return the id of a word with the space before it; that of the unknown one if the simulator does not say it."""
    return _IDS.get(word, _UNKNOWN)


class WordTokenizer:
    """Implements `service.backends.tokenizer.EngineTokenizer`. White space is lost, and so are other words."""

    vocab_size = VOCAB_SIZE
    has_pieces = True
    max_text_bytes = MAX_TEXT_BYTES

    async def encode(self, text: str, *, add_special_tokens: bool, with_pieces: bool = False) -> EncodedText:
        """Return one id a word, the start token before them if `add_special_tokens`."""
        ids = [_START] if add_special_tokens else []
        ids += [id_of_word(f" {word}") for word in text.split()]
        return EncodedText(ids, [_PIECES[token_id] for token_id in ids] if with_pieces else ())

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the words of `token_ids`; an id without a word has no text."""
        shown = (token_id for token_id in token_ids if not (skip_special_tokens and token_id in _SPECIAL))
        return b"".join(_PIECES.get(token_id, b"") for token_id in shown).decode().removeprefix(" ")
