"""The exact bytes of every token, and ids for bytes.

A token's bytes never depend on its neighbours, so decoding one token at a time
loses nothing: a character that is split over tokens is joined by whoever
concatenates the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["Vocabulary", "byte_vocabulary", "vocabulary_from_metadata"]

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6


class Vocabulary:
    """Token ids and their bytes; control tokens have none."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        control_ids: Iterable[int] = (),
        strips_first_space: bool = False,
    ) -> None:
        self.pieces = pieces
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.control_ids: frozenset[int] = frozenset(control_ids)
        # How the tokenizer decodes a text from its first token on.
        self.strips_first_space = strips_first_space
        self._ids: dict[bytes, int] | None = None

    def decode(self, ids: Sequence[int]) -> bytes:
        """Return the concatenated bytes; an id outside the vocabulary raises ValueError."""
        size = len(self.pieces)
        for token in (min(ids, default=0), max(ids, default=0)):
            if not 0 <= token < size:
                raise ValueError(f"token id {token} is outside 0..{size - 1}")
        return b"".join(map(self.pieces.__getitem__, ids))

    def id_of(self, piece: bytes) -> int | None:
        """Return the lowest id with exactly these bytes."""
        if self._ids is None:
            self._ids = {}
            for token in range(len(self.pieces) - 1, -1, -1):
                self._ids[self.pieces[token]] = token
            self._ids.pop(b"", None)
        return self._ids.get(piece)

    def ids_of(self, data: bytes, count: int) -> list[int]:
        """Return ids whose bytes are `data`, `count` of them where that can be.

        Falls back to one id per byte; a vocabulary without byte tokens raises ValueError.
        """
        if count == 1:
            token = self.id_of(data)
            if token is not None:
                return [token]
        elif 1 < count < len(data):
            split = self._split(data, count)
            if split is not None:
                return split
        ids = [self.id_of(data[i : i + 1]) for i in range(len(data))]
        if any(token is None for token in ids):
            raise ValueError("the vocabulary has no token for a single byte")
        return ids  # type: ignore[return-value]

    def _split(self, data: bytes, count: int) -> list[int] | None:
        if count == 0:
            return None if data else []
        for size in range(1, len(data) - count + 2):
            token = self.id_of(data[:size])
            if token is not None:
                rest = self._split(data[size:], count - 1)
                if rest is not None:
                    return [token, *rest]
        return None


class _ByteVocabulary(Vocabulary):
    """A token is a byte, so that text of megabytes is decoded at once."""

    def decode(self, ids: Sequence[int]) -> bytes:
        try:
            return bytes(ids)
        except ValueError:
            return super().decode(ids)


def byte_vocabulary() -> Vocabulary:
    """Return the vocabulary of the scripted engine: 256 bytes and one end of sequence."""
    return _ByteVocabulary([bytes([i]) for i in range(256)] + [b""], eos_id=256, control_ids=(256,))


def vocabulary_from_metadata(metadata: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary in the metadata of a GGUF.

    Raises ValueError for a tokenizer that is neither SentencePiece ("llama")
    nor byte-level BPE ("gpt2").
    """
    kind = metadata["tokenizer.ggml.model"].decode()
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if kind == "llama":
        pieces = [_sentencepiece(text, type_) for text, type_ in zip(tokens, types, strict=True)]
    elif kind == "gpt2":
        table = _byte_level_table()
        pieces = [_byte_level(text, type_, table) for text, type_ in zip(tokens, types, strict=True)]
    else:
        raise ValueError(f"tokenizer {kind!r} is not supported; llama (SentencePiece) and gpt2 (byte-level BPE) are")
    return Vocabulary(
        pieces,
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_id=metadata.get("tokenizer.ggml.eos_token_id"),
        control_ids=[i for i, type_ in enumerate(types) if type_ == _CONTROL],
        strips_first_space=kind == "llama",
    )


def _sentencepiece(text: bytes, type_: int) -> bytes:
    if type_ in (_CONTROL, _UNKNOWN):
        return b""
    if type_ == _BYTE:  # "<0x0A>"
        return bytes([int(text[3:5], 16)])
    if type_ == _USER_DEFINED:
        return text
    return text.replace("▁".encode(), b" ")


def _byte_level(text: bytes, type_: int, table: Mapping[str, int]) -> bytes:
    if type_ in (_CONTROL, _UNKNOWN):
        return b""
    if type_ == _USER_DEFINED:
        return text
    try:
        return bytes(table[character] for character in text.decode())
    except KeyError:
        return text


def _byte_level_table() -> dict[str, int]:
    """Return character → byte of the GPT-2 byte encoder: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table
