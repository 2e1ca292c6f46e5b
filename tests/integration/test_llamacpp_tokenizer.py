"""The embedded engine's own tokenizer, with the real sample model."""

from __future__ import annotations

import pytest

from service.backends.llamacpp.backend import LlamaCppBackend
from service.backends.llamacpp.tokenizer import LlamaCppTokenizer

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(120)]

TEXTS = ("Hello world", "Größe 🧿👩‍👩‍👧 日本", "  two  spaces\n", "<start_of_turn>user\nhi<end_of_turn>", "\x00", "")


@pytest.fixture
def tokenizer(backend: LlamaCppBackend) -> LlamaCppTokenizer:
    assert backend.tokenizer is not None
    return backend.tokenizer


@pytest.mark.parametrize("text", TEXTS)
async def test_the_text_comes_back(backend: LlamaCppBackend, tokenizer: LlamaCppTokenizer, text: str) -> None:
    encoded = await tokenizer.encode(text, add_special_tokens=True, with_pieces=True)
    assert await tokenizer.decode(encoded.token_ids, skip_special_tokens=False) == "<bos>" + text
    assert b"".join(encoded.pieces) == b"<bos>" + text.encode()
    assert encoded.token_ids == (await tokenizer.encode(text, add_special_tokens=True)).token_ids
    assert await backend.count_tokens(text, add_special_tokens=True) == len(encoded.token_ids)


async def test_special_tokens_can_be_left_out_both_ways(tokenizer: LlamaCppTokenizer) -> None:
    encoded = await tokenizer.encode("<start_of_turn>user\nhi<end_of_turn>", add_special_tokens=False)
    assert encoded.token_ids[0] != 2
    assert await tokenizer.decode([2, *encoded.token_ids], skip_special_tokens=True) == "user\nhi"


async def test_a_byte_token_alone_is_no_text(tokenizer: LlamaCppTokenizer) -> None:
    encoded = await tokenizer.encode("\U000f1234", add_special_tokens=False, with_pieces=True)
    assert b"".join(encoded.pieces) == "\U000f1234".encode()
    assert len(encoded.pieces) > 1
    assert "\ufffd" in await tokenizer.decode(encoded.token_ids[:1], skip_special_tokens=False)


async def test_the_highest_id_of_the_vocabulary_has_a_text(tokenizer: LlamaCppTokenizer) -> None:
    assert await tokenizer.decode([tokenizer.vocab_size - 1], skip_special_tokens=False)
