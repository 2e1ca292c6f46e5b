"""Token ids that come one at a time make the text of all of them together, whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from service.core.assembly import TextAssembler
from service.tokens import TokenCodec
from tests.support.small_tokenizers import byte_level, sentencepiece

Pair = tuple[Tokenizer, TokenCodec]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tokenizer], Pair]:
    def load(tokenizer: Tokenizer) -> Pair:
        path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        tokenizer.save(str(path))
        return tokenizer, TokenCodec(path)

    return load


@pytest.fixture(scope="module")
def gpt2(pair: Callable[[Tokenizer], Pair]) -> Pair:
    return pair(byte_level())


@pytest.fixture(scope="module")
def gemma(pair: Callable[[Tokenizer], Pair]) -> Pair:
    return pair(sentencepiece())


@pytest.fixture(scope="module")
def llama2(pair: Callable[[Tokenizer], Pair]) -> Pair:
    return pair(sentencepiece(has_prefix=True))


def streamed(codec: TokenCodec, ids: list[int]) -> str:
    """Return the text of ids that come one by one, as a stream has it."""
    assembler = TextAssembler()
    return "".join([assembler.feed(codec.piece(one)).text for one in ids]) + assembler.flush().text


IDS = st.lists(st.integers(0, 344), max_size=30)
# The bytes of whole characters, or any other token: of a run of byte tokens that is no UTF-8 the library's own
# decoder keeps nothing, and a stream cannot know that of the bytes that it has sent.
FIRST_BYTE, FIRST_TEXT, LAST = 4, 260, 419
CHARACTERS = st.characters(codec="utf-8").map(lambda one: [FIRST_BYTE + byte for byte in one.encode()])
WHOLE_IDS = st.lists(st.one_of(CHARACTERS, st.integers(FIRST_TEXT, LAST).map(lambda one: [one])), max_size=20).map(
    lambda parts: [one for part in parts for one in part]
)


@pytest.mark.report("A01", "A03")
@given(IDS)
def test_random_byte_level_ids_make_the_decoded_text(gpt2: Pair, ids: list[int]) -> None:
    tokenizer, codec = gpt2
    assert streamed(codec, ids) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.report("A01", "A03")
@given(WHOLE_IDS)
def test_random_sentencepiece_ids_make_the_decoded_text(gemma: Pair, ids: list[int]) -> None:
    tokenizer, codec = gemma
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert streamed(codec, ids) == whole


@pytest.mark.report("A03")
@given(WHOLE_IDS)
def test_random_ids_lose_at_most_the_space_that_the_tokenizer_puts_in_front(llama2: Pair, ids: list[int]) -> None:
    tokenizer, codec = llama2
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert streamed(codec, ids).removeprefix(" ") == whole
