"""Tokenizers as models have them, trained here on a few lines: ids, exact bytes, ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from service.tokens import JsonTokenizer, TokenCodec, TokenizerError
from tests.support.small_tokenizers import byte_level, sentencepiece

# Every character that a text can have, without the one that SentencePiece reads as a space.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=40)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tokenizer], Path]:
    folder = tmp_path_factory.mktemp("tokenizers")

    def save(tokenizer: Tokenizer) -> Path:
        path = folder / f"{len(list(folder.iterdir()))}.json"
        tokenizer.save(str(path))
        return path

    return save


@pytest.fixture(scope="module")
def gpt2(saved: Callable[[Tokenizer], Path]) -> TokenCodec:
    return TokenCodec(saved(byte_level()))


@pytest.fixture(scope="module")
def gemma(saved: Callable[[Tokenizer], Path]) -> TokenCodec:
    return TokenCodec(saved(sentencepiece()))


@pytest.fixture(scope="module")
def llama2(saved: Callable[[Tokenizer], Path]) -> TokenCodec:
    return TokenCodec(saved(sentencepiece(has_prefix=True)))


def joined(codec: TokenCodec, ids: tuple[int, ...]) -> bytes:
    return b"".join(map(codec.piece, ids))


HARD = (
    "🧿👩‍👩‍👧",
    "日本語 and 한국어",
    "a\u0301\u0323 e\u0301",
    "  \t\n\r\n  ",
    "\x00\x7f",
    "<0x0A>",
    "\U0010ffff",
    "",
    " ",
)


def with_hard_examples(test: Callable[..., None]) -> Callable[..., None]:
    for text in HARD:
        test = example(text)(test)
    return test


@with_hard_examples
@given(TEXTS)
def test_byte_level_pieces_spell_the_text(gpt2: TokenCodec, text: str) -> None:
    assert joined(gpt2, gpt2.encode(text, add_special_tokens=False)) == text.encode()


@pytest.mark.report("A03")
@with_hard_examples
@given(TEXTS)
def test_sentencepiece_pieces_spell_the_text(gemma: TokenCodec, text: str) -> None:
    assert joined(gemma, gemma.encode(text, add_special_tokens=True)) == text.encode()


@pytest.mark.report("A03")
@with_hard_examples
@given(TEXTS)
def test_pieces_spell_the_space_that_the_tokenizer_puts_before_a_text(llama2: TokenCodec, text: str) -> None:
    expected = f" {text}" if text else ""
    assert joined(llama2, llama2.encode(text, add_special_tokens=True)) == expected.encode()


@given(TEXTS, st.integers(0, 40))
def test_pieces_can_be_joined_from_any_two_parts(gpt2: TokenCodec, text: str, at: int) -> None:
    ids = gpt2.encode(text, add_special_tokens=False)
    assert joined(gpt2, ids[:at]) + joined(gpt2, ids[at:]) == text.encode()


def test_a_character_may_be_cut_over_several_tokens(gpt2: TokenCodec, gemma: TokenCodec) -> None:
    for codec in (gpt2, gemma):
        ids = codec.encode("🪐", add_special_tokens=False)
        assert len(ids) > 1
        with pytest.raises(UnicodeDecodeError):
            codec.piece(ids[0]).decode()


def test_a_special_token_has_no_bytes_and_an_added_one_its_text(gpt2: TokenCodec) -> None:
    ids = gpt2.encode("<|im_start|><think>a<tool><é>", add_special_tokens=False)
    assert [gpt2.piece(number) for number in ids] == [b"", b"<think>", b"a", b"", "<é>".encode()]
    with_tool = gpt2.piece_with(["<tool>", "<think>", "nothing"])
    shown = gpt2.encode("<tool><|im_end|><think>a", add_special_tokens=False)
    assert [with_tool(number) for number in shown] == [b"<tool>", b"", b"<think>", b"a"]
    assert with_tool(10**6) == b""


def test_an_id_outside_the_vocabulary_has_no_bytes(gpt2: TokenCodec) -> None:
    assert gpt2.piece(gpt2.vocab_size - 1) != b"", "the last one is in it"
    assert gpt2.piece(gpt2.vocab_size) == gpt2.piece(-1) == b""


def test_the_vocabulary_counts_ids_that_no_token_has(saved: Callable[[Tokenizer], Path]) -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 6}, []))
    tokenizer.decoder = decoders.ByteLevel()
    codec = TokenCodec(saved(tokenizer))
    assert codec.vocab_size == 7
    assert [codec.piece(number) for number in range(7)] == [b"a", b"", b"", b"", b"", b"", b"b"]


def test_counting_agrees_with_the_ids(gemma: TokenCodec) -> None:
    for framed in (True, False):
        assert gemma.count("the dog", add_special_tokens=framed) == len(
            gemma.encode("the dog", add_special_tokens=framed)
        )
    assert gemma.count("", add_special_tokens=True) == 1


def test_the_ends_are_told_by_name_among_the_special_tokens(gpt2: TokenCodec, gemma: TokenCodec) -> None:
    def ids(codec: TokenCodec, *texts: str) -> set[int]:
        return {codec.encode(text, add_special_tokens=False)[0] for text in texts}

    assert gpt2.eos_ids == ids(gpt2, "<|endoftext|>", "<|im_end|>")
    assert gemma.eos_ids == ids(gemma, "<eos>", "<end_of_turn>")


def test_a_token_that_only_looks_like_an_end_is_none(saved: Callable[[Tokenizer], Path]) -> None:
    tokenizer = Tokenizer(models.BPE({"</s>": 0, "a": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    assert TokenCodec(saved(tokenizer)).eos_ids == frozenset()


def test_the_start_token_is_the_one_that_the_frame_adds(gpt2: TokenCodec, gemma: TokenCodec) -> None:
    assert gemma.bos_text == "<bos>"
    assert gpt2.bos_text == ""


def test_an_end_that_the_frame_adds_is_no_start(saved: Callable[[Tokenizer], Path]) -> None:
    tokenizer = sentencepiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", pair="$A $B <eos>", special_tokens=[("<eos>", 1)]
    )
    assert JsonTokenizer(saved(tokenizer)).bos_text == ""


def test_the_texts_of_special_tokens_are_listed(gpt2: TokenCodec) -> None:
    assert set(gpt2.control_texts) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"}


def test_a_file_that_cuts_or_pads_does_neither_here(saved: Callable[[Tokenizer], Path]) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    path = saved(tokenizer)
    tokenizer.no_truncation()
    tokenizer.enable_padding(length=64)
    padded = saved(tokenizer)
    text = "a prompt of some words"
    assert joined(TokenCodec(path), TokenCodec(path).encode(text, add_special_tokens=True)) == text.encode()
    assert TokenCodec(padded).count("a", add_special_tokens=True) == 1


def test_a_decoder_of_another_kind_is_refused_and_named(saved: Callable[[Tokenizer], Path]) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    path = saved(tokenizer)
    with pytest.raises(TokenizerError, match=r"WordPiece.*byte level"):
        TokenCodec(path)
    assert JsonTokenizer(path).count("a", add_special_tokens=False) == 1, "it still counts"


def test_a_tokenizer_without_a_decoder_is_refused(saved: Callable[[Tokenizer], Path]) -> None:
    with pytest.raises(TokenizerError, match="no decoder"):
        TokenCodec(saved(Tokenizer(models.BPE())))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"missing\.json cannot be read"):
        TokenCodec(tmp_path / "missing.json")


@pytest.mark.parametrize("kind", ["gpt2", "gemma", "llama2"])
@given(text=st.text(st.characters(codec="utf-8"), max_size=200))
@example(text=" " * 200)
@example(text="▁" * 200)
@example(text="<|endoftext|>" * 20)
@example(text="<end_of_turn>" * 20)
def test_no_token_stands_for_more_of_a_text_than_the_longest(
    request: pytest.FixtureRequest, kind: str, text: str
) -> None:
    codec: TokenCodec = request.getfixturevalue(kind)
    assert codec.longest_token_bytes is not None
    assert codec.count(text, add_special_tokens=False) * codec.longest_token_bytes >= len(text.encode())


def test_composing_accents_is_reckoned_with(saved: Callable[[Tokenizer], Path]) -> None:
    composing = byte_level()
    plain = TokenCodec(saved(composing)).longest_token_bytes
    composing.normalizer = normalizers.NFC()
    assert plain is not None
    assert TokenCodec(saved(composing)).longest_token_bytes == 4 * plain


def test_a_tokenizer_that_can_lose_text_has_no_longest_token(saved: Callable[[Tokenizer], Path]) -> None:
    lower, dropping, stripped = byte_level(), byte_level(), byte_level()
    lower.normalizer = normalizers.Lowercase()
    dropping.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    stripped.normalizer = normalizers.Replace("  ", " ")
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    words.decoder = decoders.ByteLevel()
    found = [TokenCodec(saved(one)).longest_token_bytes for one in (lower, dropping, stripped, words)]
    assert found == [None] * 4
    assert JsonTokenizer(saved(byte_level())).longest_token_bytes is None
