"""Which decoders give tokens bytes of their own, and which bytes."""

from __future__ import annotations

from typing import Any

import pytest

from service.tokens.pieces import UnknownDecoderError, rule_of_decoder

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
BYTE_FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(steps)}


SENTENCEPIECE = sequence(REPLACE, BYTE_FALLBACK, FUSE)
LLAMA_2 = sequence(REPLACE, BYTE_FALLBACK, FUSE, STRIP)


@pytest.mark.parametrize("decoder", [BYTE_LEVEL, sequence(BYTE_LEVEL), sequence(BYTE_LEVEL, FUSE)])
def test_a_byte_level_token_is_one_byte_per_character(decoder: dict[str, Any]) -> None:
    rule = rule_of_decoder(decoder)
    assert rule.bytes_of("Ġthe") == b" the"
    assert rule.bytes_of("Ċ") == b"\n"
    assert rule.bytes_of("ðŁ") == b"\xf0\x9f", "the first half of an emoji"


def test_every_byte_has_a_character_of_its_own() -> None:
    rule = rule_of_decoder(BYTE_LEVEL)
    characters = [chr(code) for code in range(0x200)]
    single = {rule.bytes_of(character) for character in characters if len(rule.bytes_of(character)) == 1}
    assert single >= {bytes([byte]) for byte in range(256)}


def test_a_byte_level_token_with_other_characters_is_its_text() -> None:
    assert rule_of_decoder(BYTE_LEVEL).bytes_of("東京") == "東京".encode()


@pytest.mark.report("A03")
@pytest.mark.parametrize("decoder", [SENTENCEPIECE, LLAMA_2, sequence(BYTE_FALLBACK, FUSE, REPLACE)])
def test_a_sentencepiece_token_is_its_text_with_spaces_or_one_byte(decoder: dict[str, Any]) -> None:
    rule = rule_of_decoder(decoder)
    assert rule.bytes_of("▁the") == b" the"
    assert rule.bytes_of("▁") == b" ", "also where the decoder would strip the start of a text"
    assert rule.bytes_of("<0x0A>") == b"\n"
    assert rule.bytes_of("<0xf0>") == b"\xf0"
    assert rule.bytes_of("<0x0A>>") == b"<0x0A>>"
    assert rule.bytes_of("é") == "é".encode()


def test_metaspace_has_spaces_and_no_byte_tokens() -> None:
    rule = rule_of_decoder(METASPACE)
    assert rule.bytes_of("▁a▁b") == b" a b"
    assert rule.bytes_of("<0x0A>") == b"<0x0A>"
    assert rule_of_decoder(sequence(BYTE_FALLBACK, METASPACE)).bytes_of("<0x0A>") == b"\n"


def test_an_added_token_is_its_text() -> None:
    assert rule_of_decoder(BYTE_LEVEL).bytes_of_added("<é>") == "<é>".encode()
    assert rule_of_decoder(SENTENCEPIECE).bytes_of_added("<0x0A>") == b"<0x0A>"
    assert rule_of_decoder(SENTENCEPIECE).bytes_of_added("▁▁") == b"  ", "as Gemma's own file writes runs of spaces"


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (None, "no decoder"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece"),
        ({"type": "BPEDecoder", "suffix": "</w>"}, "BPEDecoder"),
        ({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}, "CTC"),
        (FUSE, "Fuse"),
        (STRIP, "Strip"),
        (sequence(), "Sequence"),
        (sequence(REPLACE, {"type": "WordPiece", "prefix": "##", "cleanup": True}), "Sequence of Replace, WordPiece"),
        # These change a token by its neighbours, or its inside.
        (sequence(REPLACE, STRIP, FUSE), "Sequence of Replace, Strip, Fuse"),
        (sequence(REPLACE, FUSE, STRIP | {"stop": 1}), "Strip"),
        (sequence(BYTE_LEVEL, REPLACE), "Sequence of ByteLevel, Replace"),
        (sequence(REPLACE | {"content": "_"}), "Replace"),
        (sequence(REPLACE | {"pattern": {"String": "▁▁"}}), "Replace"),
        (sequence(REPLACE | {"pattern": {"Regex": "▁"}}, FUSE), "Replace"),
    ],
)
def test_another_decoder_is_refused_by_name(decoder: dict[str, Any] | None, name: str) -> None:
    with pytest.raises(UnknownDecoderError) as caught:
        rule_of_decoder(decoder)
    assert name in str(caught.value)
