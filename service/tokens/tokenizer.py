"""A tokenizer.json, loaded: counts, token ids, and the bytes of each token."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from service.tokens.bounds import longest_token_bytes
from service.tokens.pieces import PieceRule, UnknownDecoderError, rule_of_decoder

__all__ = ["DecoderError", "JsonTokenizer", "TokenCodec", "TokenizerError"]

# Texts of tokens that end a text or a turn in every model that has them. The file does
# not say which they are; a text that means an end in one model only is left out.
_END_TEXTS: Final = frozenset(
    {
        "</s>",
        "<eos>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001  DeepSeek writes it with full-width bars
        "<|im_end|>",
        "<|eot_id|>",
        "<|eot|>",
        "<end_of_turn>",
        "<|END_OF_TURN_TOKEN|>",
    }
)


class TokenizerError(Exception):
    """The tokenizer cannot be loaded; the text says why and what to do."""


class DecoderError(TokenizerError):
    """Its tokens have no bytes of their own: it counts and encodes, and cannot turn ids into text as they come."""


class JsonTokenizer:
    """Counts tokens and gives their ids.

    The texts of special tokens in a prompt are read as these tokens, since chat
    templates write them. 1 MB of text takes about a second, so callers bound
    their prompts; Python's lock is free meanwhile, so a long one can go to a thread.
    """

    def __init__(self, path: Path) -> None:
        """Load the file. Raises `TokenizerError`."""
        self._tokenizer = _loaded(path)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token.content: number for number, token in added.items() if token.special}
        self._vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def count(self, text: str, *, add_special_tokens: bool) -> int:
        """Return the length of `text` in tokens."""
        return len(self._encoding(text, add_special_tokens=add_special_tokens))

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Return the token ids of `text`, in the tokenizer's own frame if `add_special_tokens`.

        The ids spell the text as the tokenizer normalises it: some put a space
        before it (Llama 2), compose accents, or read U+2581 as a space.
        """
        return tuple(self._encoding(text, add_special_tokens=add_special_tokens).ids)

    def _encoding(self, text: str, *, add_special_tokens: bool) -> Any:
        # Unlike `encode` a batch releases the lock, and without offsets it takes two thirds of the time.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of a whole sequence of ids, by the file's own decoder.

        What that strips from the start of a text (Llama 2's first space) is no part of
        it. Ids that no token has are skipped; bytes that are no UTF-8 become U+FFFD.
        """
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id. The model's own vocabulary may be padded beyond it."""
        return self._vocab_size

    @property
    def longest_token_bytes(self) -> int | None:
        """No token stands for more of a text than so many bytes of UTF-8; None if that cannot be said."""
        return None

    @property
    def bos_text(self) -> str:
        """The text of the token that `add_special_tokens` puts before a text; empty if there is none."""
        framed = self.encode("a", add_special_tokens=True)
        if framed[:1] == self.encode("a", add_special_tokens=False)[:1]:
            return ""
        text = self._tokenizer.id_to_token(framed[0])
        return text if text in self._special else ""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The special tokens that are known to end a generation, of a text or of a turn; empty if none is known."""
        return frozenset(self._special[text] for text in _END_TEXTS & self._special.keys())

    @property
    def control_texts(self) -> tuple[str, ...]:
        """The texts that are read as special tokens wherever they stand in a prompt."""
        return tuple(self._special)


class TokenCodec(JsonTokenizer):
    """A tokenizer whose tokens have bytes of their own, so that ids become text as they come."""

    def __init__(self, path: Path) -> None:
        """Load the file. Raises `TokenizerError`, also for a decoder that `pieces` does not know."""
        super().__init__(path)
        try:
            rule = rule_of_decoder(_settings(self._tokenizer.decoder))
        except UnknownDecoderError as error:
            raise DecoderError(
                f"tokenizer {path} cannot be used: {error}; byte level (GPT-2) and SentencePiece decoders can"
            ) from None
        self._pieces = _pieces(self._tokenizer, rule)
        self._longest_token_bytes = _longest(self._tokenizer, rule, self._pieces)

    @property
    def longest_token_bytes(self) -> int | None:
        """No token stands for more of a text than so many bytes of UTF-8; None if that cannot be said."""
        return self._longest_token_bytes

    def piece(self, token_id: int) -> bytes:
        """Return the exact bytes of one token, cut anywhere in a character.

        Empty for a special token and outside the vocabulary, which a model's own
        may exceed. Joined in order the pieces are the text of a generation, its
        first space included.
        """
        pieces = self._pieces
        return pieces[token_id] if 0 <= token_id < len(pieces) else b""

    def piece_with(self, marks: Sequence[str]) -> Callable[[int], bytes]:
        """Return `piece`, but for the special tokens among `marks`, whose bytes are their text."""
        shown = {self._special[mark]: mark.encode() for mark in marks if mark in self._special}
        if not shown:
            return self.piece
        return lambda token_id: shown.get(token_id) or self.piece(token_id)

    def shown_pieces(self, token_ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token for somebody who looks at them: those of a special token are its text."""
        texts = {number: text.encode() for text, number in self._special.items()}
        return [texts.get(token_id) or self.piece(token_id) for token_id in token_ids]


def _loaded(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TokenizerError("tokenizer needs: pip install 'headrace-server[tokenizer]'") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"tokenizer {path} cannot be read: {error}") from None
    # A file may carry the settings of its training: a cut prompt would go unnoticed.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _settings(part: Any) -> dict[str, Any] | None:
    """Return the file's JSON of a part, which the library shows only as its pickled state."""
    settings: dict[str, Any] | None = None if part is None else json.loads(part.__getstate__())
    return settings


def _longest(tokenizer: Any, rule: PieceRule, pieces: Sequence[bytes]) -> int | None:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    # Of a space in a piece, the text may have held the mark that stands for it.
    sizes = (len(rule.bytes_of(text)) if rule.is_byte_level else len(text.encode()) for text in vocabulary)
    return longest_token_bytes(sizes, pieces, _settings(tokenizer.normalizer), _settings(tokenizer.pre_tokenizer))


def _pieces(tokenizer: Any, rule: PieceRule) -> list[bytes]:
    """Return the bytes of every token by its id; an id that no token has is empty."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, number in vocabulary.items():
        pieces[number] = rule.bytes_of(text)
    for number, token in tokenizer.get_added_tokens_decoder().items():
        pieces[number] = b"" if token.special else rule.bytes_of_added(token.content)
    return pieces
