"""The bytes of one token, told from its text in the vocabulary and the tokenizer's decoder.

Only decoders are known whose work can be done one token at a time: the bytes of
a token never depend on its neighbours, so the pieces of a generation can be
joined as they come. Pure; knows nothing of the library that reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["PieceRule", "UnknownDecoderError", "rule_of_decoder"]

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# They change nothing in the bytes of a token.
_NEUTRAL: Final = frozenset({"ByteLevel", "ByteFallback", "Fuse"})


class UnknownDecoderError(Exception):
    """A decoder whose tokens have no bytes of their own; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRule:
    """How a token's text becomes bytes.

    `is_byte_level`: each character stands for one byte, by GPT-2's table.
    Otherwise the text is UTF-8 in which each of `space_marks` is a space, and
    `<0xNN>` is one byte if `has_byte_tokens`.
    """

    is_byte_level: bool = False
    space_marks: frozenset[str] = frozenset()
    has_byte_tokens: bool = False

    def bytes_of(self, text: str) -> bytes:
        """Return the bytes of a token of the model's own vocabulary."""
        if self.is_byte_level:
            try:
                return bytes(map(_BYTE_OF_CHARACTER.__getitem__, text))
            except KeyError:  # no byte-level text: it stands for itself
                return text.encode()
        if self.has_byte_tokens:
            match = _BYTE_TOKEN.fullmatch(text)
            if match is not None:
                return bytes.fromhex(match[1])
        return self._spaced(text).encode()

    def bytes_of_added(self, text: str) -> bytes:
        """Return the bytes of a token that was added to the vocabulary: its text, never in byte-level form."""
        return text.encode() if self.is_byte_level else self._spaced(text).encode()

    def _spaced(self, text: str) -> str:
        for mark in self.space_marks:
            text = text.replace(mark, " ")
        return text


def rule_of_decoder(decoder: Mapping[str, Any] | None) -> PieceRule:
    """Return the rule of a decoder as tokenizer.json writes it.

    Known are byte level, and SentencePiece in its two forms (Metaspace; Replace
    with or without ByteFallback). What they strip from the very start of a text,
    such as the space that Llama 2 puts before it, is kept: a generation goes on
    from a prompt, and its first space is part of the text. Raises
    `UnknownDecoderError` for every other decoder.
    """
    if decoder is None:
        raise UnknownDecoderError("it has no decoder")
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    marks: set[str] = set()
    is_fused = False
    for step in steps:
        mark = _space_mark(step)
        if mark is not None:
            marks.add(mark)
        elif step["type"] not in _NEUTRAL and not (is_fused and _strips_the_start(step)):
            raise _unknown(decoder)
        is_fused = is_fused or step["type"] == "Fuse"
    kinds = {step["type"] for step in steps}
    rule = PieceRule(
        is_byte_level="ByteLevel" in kinds, space_marks=frozenset(marks), has_byte_tokens="ByteFallback" in kinds
    )
    # Byte level takes each token's characters as they are: any other step would change them first.
    if kinds - {"ByteLevel", "Fuse"} if rule.is_byte_level else not marks and not rule.has_byte_tokens:
        raise _unknown(decoder)
    return rule


def _space_mark(step: Mapping[str, Any]) -> str | None:
    """Return the character that the step turns into a space."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace" and step["content"] == " ":
        mark = step["pattern"].get("String", "")
        return mark if len(mark) == 1 else None
    return None


def _strips_the_start(step: Mapping[str, Any]) -> bool:
    """Whether the step, on the joined text, does no more than take spaces from its start."""
    return (step["type"], step.get("content"), step.get("stop")) == ("Strip", " ", 0)


def _unknown(decoder: Mapping[str, Any]) -> UnknownDecoderError:
    inner = ", ".join(step["type"] for step in decoder.get("decoders", ()))
    name = f"{decoder['type']} of {inner}" if inner else decoder["type"]
    return UnknownDecoderError(f"its decoder ({name}) gives tokens no bytes of their own")


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF_CHARACTER: Final = _byte_of_character()
