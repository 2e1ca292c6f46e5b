"""A declared tokenizer.json as the tokenizer of a model whose engine keeps its own to itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from service.backends.tokenizer import MAX_TEXT_BYTES, EncodedText
from service.tokens import JsonTokenizer, TokenCodec, read_ids, read_text

__all__ = ["DeclaredTokenizer"]


class DeclaredTokenizer:
    """Implements `service.backends.tokenizer.EngineTokenizer`; what is long goes to a thread."""

    max_text_bytes = MAX_TEXT_BYTES

    def __init__(self, tokenizer: JsonTokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id in the file."""
        return self._tokenizer.vocab_size

    @property
    def has_pieces(self) -> bool:
        """Whether the file's decoder gives each token bytes of its own."""
        return isinstance(self._tokenizer, TokenCodec)

    async def encode(self, text: str, *, add_special_tokens: bool, with_pieces: bool = False) -> EncodedText:
        """Return the ids of `text`, and their bytes where there are any."""
        ids = await read_text(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        if not with_pieces or not isinstance(self._tokenizer, TokenCodec):
            return EncodedText(ids)
        return EncodedText(ids, await read_ids(self._tokenizer.shown_pieces, ids))

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `token_ids`."""
        return await read_ids(partial(self._tokenizer.decode, skip_special_tokens=skip_special_tokens), token_ids)
