"""A declared tokenizer.json as the tokenizer of a model: round trips, pieces, and what it does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders

from service.catalog.declared_tokenizer import DeclaredTokenizer
from service.catalog.file import ModelDeclaration
from service.composition import open_models
from service.tokens import JsonTokenizer, TokenCodec
from tests.support.small_tokenizers import byte_level, sentencepiece

TEXTS = ("The quick 🧿 brown fox", "日本語 and Größe", "  two  spaces ", "x" * 20_000, "")


def declared(tokenizer: Tokenizer, folder: Path, kind: type[JsonTokenizer] = TokenCodec) -> DeclaredTokenizer:
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return DeclaredTokenizer(kind(path))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("family", ["byte_level", "gemma", "llama2"])
async def test_the_text_comes_back(tmp_path: Path, family: str, text: str) -> None:
    make = {"byte_level": byte_level, "gemma": sentencepiece, "llama2": lambda: sentencepiece(has_prefix=True)}[family]
    tokenizer = declared(make(), tmp_path)
    encoded = await tokenizer.encode(text, add_special_tokens=True, with_pieces=True)
    assert await tokenizer.decode(encoded.token_ids, skip_special_tokens=True) == text
    assert len(encoded.pieces) == len(encoded.token_ids)
    assert text.encode() in b"".join(encoded.pieces)
    assert max(encoded.token_ids, default=0) < tokenizer.vocab_size


async def test_a_special_token_is_shown_as_its_text(tmp_path: Path) -> None:
    tokenizer = declared(byte_level(), tmp_path)
    encoded = await tokenizer.encode("a<|im_end|>", add_special_tokens=False, with_pieces=True)
    assert encoded.pieces[-1] == b"<|im_end|>"
    assert await tokenizer.decode(encoded.token_ids, skip_special_tokens=False) == "a<|im_end|>"
    assert await tokenizer.decode(encoded.token_ids, skip_special_tokens=True) == "a"


async def test_half_a_character_becomes_the_replacement_character(tmp_path: Path) -> None:
    tokenizer = declared(byte_level(), tmp_path)
    encoded = await tokenizer.encode("é", add_special_tokens=False, with_pieces=True)
    halves = [await tokenizer.decode([token_id], skip_special_tokens=False) for token_id in encoded.token_ids]
    if len(halves) > 1:
        assert halves == ["\ufffd"] * len(halves)
    assert b"".join(encoded.pieces) == "é".encode()


async def test_a_model_whose_engine_keeps_its_tokenizer_has_the_declared_one(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    byte_level().save(str(path))
    options = {"url": "127.0.0.1:1"}  # nobody listens: what is declared is known all the same
    named, bare = (
        ModelDeclaration(id=name, backend="triton", template="none", tokenizer=file, options=options)
        for name, file in (("named", path), ("bare", None))
    )
    registry = await open_models([named, bare])
    try:
        tokenizer = registry.get("named").open_tokenizer
        assert tokenizer is not None
        assert tokenizer.has_pieces
        assert await tokenizer.decode([0], skip_special_tokens=False)
        assert registry.get("bare").open_tokenizer is None
    finally:
        for model in registry:
            await model.backend.close()


async def test_a_decoder_without_bytes_of_its_own_has_no_pieces_and_still_decodes(tmp_path: Path) -> None:
    source = byte_level()
    source.decoder = decoders.BPEDecoder()
    tokenizer = declared(source, tmp_path, JsonTokenizer)
    assert not tokenizer.has_pieces
    encoded = await tokenizer.encode("fox", add_special_tokens=False, with_pieces=True)
    assert (encoded.pieces, tokenizer.vocab_size > max(encoded.token_ids)) == ((), True)
    assert await tokenizer.decode(encoded.token_ids, skip_special_tokens=False)
