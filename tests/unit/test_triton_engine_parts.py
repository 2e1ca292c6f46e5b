"""The pure parts of the CPU engines behind deploy/triton: vocabulary, words, stopping, texts, settings."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.triton_parts import LIB

assert LIB
from headrace_triton.gguf import read_metadata  # noqa: E402
from headrace_triton.jobs import Step  # noqa: E402
from headrace_triton.llamacpp_chunks import ChunkReader  # noqa: E402
from headrace_triton.settings import load_settings  # noqa: E402
from headrace_triton.stopping import StopRule  # noqa: E402
from headrace_triton.texts import DeltaText, WholeText, decode_alone  # noqa: E402
from headrace_triton.vllm.logprobs import logprobs_text  # noqa: E402
from headrace_triton.vocabulary import Vocabulary, byte_vocabulary, vocabulary_from_metadata  # noqa: E402
from headrace_triton.words import pack_words, unpack_words  # noqa: E402

BYTES = byte_vocabulary()


def sentencepiece() -> Vocabulary:
    """Two control tokens, a space piece, a word, a character, and the 256 bytes."""
    tokens = [b"<eos>", b"<bos>", "▁the".encode(), b"the", "é".encode(), b"[tag]"]
    tokens += [b"<0x%02X>" % byte for byte in range(256)]
    types = [3, 3, 1, 1, 1, 4, *[6] * 256]
    metadata = {
        "tokenizer.ggml.model": b"llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
    }
    return vocabulary_from_metadata(metadata)


def test_a_tokens_bytes_are_exact_and_control_tokens_have_none() -> None:
    vocabulary = sentencepiece()
    assert vocabulary.decode([1, 2, 3, 4, 5, 0]) == " thetheé[tag]".encode()
    assert vocabulary.decode([6 + 0xF0, 6 + 0x9F, 6 + 0xA7, 6 + 0xBF]).decode() == "🧿"
    assert vocabulary.control_ids == {0, 1}


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outside 0\.\.256"):
        BYTES.decode([257])


@given(st.text(min_size=1), st.integers(1, 12))
def test_ids_for_bytes_decode_to_these_bytes(text: str, count: int) -> None:
    vocabulary = sentencepiece()
    data = text.encode()
    assert vocabulary.decode(vocabulary.ids_of(data, count)) == data


def test_ids_for_bytes_are_as_many_as_the_engine_counted_where_that_can_be() -> None:
    vocabulary = sentencepiece()
    assert vocabulary.ids_of(b" the", 1) == [2]
    assert len(vocabulary.ids_of("é".encode(), 2)) == 2
    assert len(vocabulary.ids_of(b"thethe", 2)) == 2


def test_byte_level_tokens_are_their_bytes() -> None:
    metadata = {
        "tokenizer.ggml.model": b"gpt2",
        "tokenizer.ggml.tokens": ["Ġhello".encode(), "Ã©".encode(), "Ċ".encode(), b"<|end|>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3],
        "tokenizer.ggml.eos_token_id": 3,
    }
    assert vocabulary_from_metadata(metadata).pieces == [b" hello", "é".encode(), b"\n", b""]


def test_another_kind_of_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'bert' is not supported"):
        vocabulary_from_metadata({"tokenizer.ggml.model": b"bert", "tokenizer.ggml.tokens": []})


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1)))
def test_word_lists_come_back_from_their_two_rows(words: list[list[int]]) -> None:
    rows = pack_words(words)
    assert len(rows[0]) == len(rows[1]) >= 1
    assert unpack_words(rows) == words


@given(st.binary(max_size=60), st.lists(st.binary(min_size=1, max_size=3), max_size=3), st.integers(1, 80))
def test_the_output_ends_with_the_first_stop_word_or_at_the_limit(data: bytes, words: list[bytes], limit: int) -> None:
    rule = StopRule(BYTES, limit, words)
    taken = b""
    is_over = False
    for byte in data:
        ids, is_over = rule.take([byte])
        taken += bytes(ids)
        if is_over:
            break
    ends = [at + len(word) for word in words if (at := data.find(word)) >= 0]
    expected = min([*ends, limit, len(data)])
    assert taken == data[:expected]
    assert is_over is (expected < len(data) or expected in ends or expected == limit)


def test_tokens_that_came_together_are_cut_at_the_limit() -> None:
    assert StopRule(BYTES, 2, ()).take([1, 2, 3]) == ([1, 2], True)


@given(st.lists(st.sampled_from([b"a", b"b", b"ab"]), min_size=1, max_size=8), st.integers(0, 8))
def test_stop_words_and_stop_tokens_do_not_count_before_the_least_tokens(pieces: list[bytes], least: int) -> None:
    vocabulary = Vocabulary([b"a", b"b", b"ab"])
    rule = StopRule(vocabulary, 100, [b"ba"], frozenset({2}), least)
    ids = [vocabulary.pieces.index(piece) for piece in pieces]
    taken = 0
    for token in ids:
        taken += 1
        if rule.take([token])[1]:
            break
    text = b"".join(pieces[:taken])
    assert rule.is_stopped is (taken < len(ids) or rule.word is not None or rule.stop_id is not None)
    if rule.is_stopped:
        assert taken > least
        assert rule.stop_id == ids[taken - 1] or text.endswith((b"ba", b"bab"))


def test_of_several_stop_words_the_one_that_is_complete_first_counts() -> None:
    rule = StopRule(Vocabulary([b"abcd"]), 10, [b"cd", b"bc"])
    assert rule.take([0]) == ([0], True)
    assert rule.word == b"bc"


def test_a_response_decoded_alone_loses_a_space_and_split_characters() -> None:
    vocabulary = sentencepiece()
    the, split = 2, [6 + byte for byte in "é".encode()]
    assert decode_alone(vocabulary, [the]) == "the"
    assert decode_alone(vocabulary, [the, the]) == "the the"
    assert [decode_alone(vocabulary, [one]) for one in split] == ["\ufffd", "\ufffd"]
    assert decode_alone(BYTES, list(b" x")) == " x"


@given(st.text(max_size=30), st.lists(st.integers(1, 5), min_size=30, max_size=30))
def test_text_is_whole_however_its_bytes_are_cut(text: str, sizes: list[int]) -> None:
    data, parts = text.encode(), []
    for size in sizes * 4:
        parts.append(list(data[:size]))
        data = data[size:]
    whole, delta = WholeText(BYTES), DeltaText(BYTES, [b"never"], is_kept=False)
    wholes = [whole.take(part) for part in parts]
    deltas = [delta.take(part) for part in parts]
    assert whole.take([], is_last=True) == text == "".join(deltas) + delta.take([], is_last=True)
    assert all(after.startswith(before) for before, after in pairwise(wholes))


def test_a_character_that_stays_incomplete_is_marked_in_the_whole_text_and_dropped_from_the_new_one() -> None:
    half = list("é".encode()[:1])
    assert WholeText(BYTES).take(half, is_last=True) == "\ufffd"
    assert DeltaText(BYTES, (), is_kept=False).take(half, is_last=True) == ""


@pytest.mark.parametrize(("is_kept", "text"), [(False, "say "), (True, "say stop")])
def test_a_stop_word_is_held_back_and_cut_off_unless_it_is_kept(is_kept: bool, text: str) -> None:
    delta = DeltaText(BYTES, [b"stop"], is_kept=is_kept)
    said = [delta.take([byte]) for byte in b"say sto"]
    assert ("s" in "".join(said)[1:]) is is_kept
    assert "".join(said) + delta.take(list(b"p"), word=b"stop", is_last=True) == text


def test_of_a_stop_word_the_whole_text_keeps_what_was_sent() -> None:
    streamed = WholeText(BYTES)
    assert streamed.take(list(b"say st")) == "say st"
    assert streamed.take(list(b"op"), word=b"stop", is_last=True) == "say st"
    assert WholeText(BYTES).take(list(b"say stop"), word=b"stop", is_last=True) == "say "


def test_log_probabilities_are_one_object_per_token() -> None:
    class Part:
        ids = [ord("a"), ord("b"), 0xC3]  # noqa: RUF012
        logprobs = [-0.5, -3.0, float("nan")]  # noqa: RUF012
        alternatives = [[(ord("a"), -0.5), (ord("c"), -1.5)], [(ord("x"), -0.25)], []]  # noqa: RUF012

    def entry(text: str, logprob: float | None, rank: int | None) -> dict[str, object]:
        return {"logprob": logprob, "rank": rank, "decoded_token": text}

    assert json.loads(logprobs_text(Part(), BYTES)) == [
        {"97": entry("a", -0.5, 1), "99": entry("c", -1.5, 2)},
        {"98": entry("b", -3.0, None), "120": entry("x", -0.25, 1)},
        {"195": entry("\ufffd", None, None)},
    ]


def test_chunks_of_llama_cpp_become_tokens_with_their_alternatives() -> None:
    steps: list[Step] = []
    reader = ChunkReader(BYTES, lambda step: bool(step and steps.append(step)), [], keep=3, alternatives=1)

    def chunk(text: str, count: int, top: list[tuple[int, float]]) -> bool:
        content = [{"id": ord("z"), "logprob": -1.0, "top_logprobs": [{"id": i, "logprob": p} for i, p in top]}]
        choice = {"text": text, "finish_reason": None, "logprobs": {"content": content}}
        return reader.on_chunk(json.dumps({"choices": [choice], "timings": {"predicted_n": count, "prompt_ms": 5}}))

    assert not chunk("z", 1, [(122, -1.0), (120, -2.0)])
    assert chunk("éa", 4, [(97, -0.5)])
    assert [step.ids for step in steps] == [[122], [0xC3, 0xA9]]
    assert steps[0].alternatives == [[(122, -1.0)]]
    assert steps[0].prompt_s == 0.005
    assert steps[1].alternatives == [[], []]


def gguf_text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


PAIRS = [
    gguf_text(b"a.count") + struct.pack("<II", 4, 7),
    gguf_text(b"a.names") + struct.pack("<IIQ", 9, 8, 2) + gguf_text(b"x") + gguf_text(b"yz"),
    gguf_text(b"a.scores") + struct.pack("<IIQ2f", 9, 6, 2, 0.5, -1.0),
    gguf_text(b"a.flag") + struct.pack("<I?", 7, True),
]
GGUF = b"GGUF" + struct.pack("<IQQ", 3, 5, len(PAIRS)) + b"".join(PAIRS)
ONE_PAIR = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)


def test_a_gguf_is_read_without_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUF + b"weights")
    assert read_metadata(str(path)) == {
        "a.count": 7,
        "a.names": [b"x", b"yz"],
        "a.scores": [0.5, -1.0],
        "a.flag": True,
    }
    path.write_bytes(b"GGML" + bytes(40))
    with pytest.raises(ValueError, match="not a GGUF"):
        read_metadata(str(path))


def test_a_gguf_that_is_cut_off_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for size in range(len(GGUF)):
        path.write_bytes(GGUF[:size])
        with pytest.raises(ValueError, match=r"m\.gguf (is not a GGUF file|cannot be read as GGUF: it ends at byte)"):
            read_metadata(str(path))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9; 2 and 3 are read"),
        (ONE_PAIR + struct.pack("<Q", 2**63), "within a value of 9223372036854775808 bytes"),
        (ONE_PAIR + gguf_text(b"\xff") + struct.pack("<II", 4, 7), "the key at byte 24 is not UTF-8"),
        (ONE_PAIR + gguf_text(b"a") + struct.pack("<I", 99), "unknown value type 99"),
        (ONE_PAIR + gguf_text(b"a") + struct.pack("<IIQ", 9, 99, 1), "unknown value type 99"),
        (ONE_PAIR + gguf_text(b"a") + struct.pack("<IIQ", 9, 4, 2**63), "it ends at byte 49"),
        (ONE_PAIR + gguf_text(b"a") + struct.pack("<IIQ", 9, 8, 2**63), "it ends at byte 49"),
        (ONE_PAIR + gguf_text(b"a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000, "an array of arrays"),
    ],
)
def test_a_gguf_of_garbage_is_refused_with_what_is_wrong(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ValueError, match=r"m\.gguf cannot be read as GGUF: ") as refused:
        read_metadata(str(tmp_path / "m.gguf"))
    assert says in str(refused.value)


def test_a_setting_comes_from_the_environment_before_the_models_parameters() -> None:
    config = json.dumps({"parameters": {"slots": {"string_value": "2"}, "gguf": {"string_value": "/m.gguf"}}})
    settings = load_settings({"model_config": config}, {"HEADRACE_TRITON_SLOTS": "3"})
    assert (settings.slots, settings.gguf, settings.engine) == (3, "/m.gguf", "llamacpp")


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLOTS", "many"), ("ENGINE", "magic"), ("POSTPROCESSING", "html"), ("FORWARD_REQUEST_ID", "yes")],
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name.lower()):
        load_settings({"model_config": "{}"}, {f"HEADRACE_TRITON_{name}": value})
