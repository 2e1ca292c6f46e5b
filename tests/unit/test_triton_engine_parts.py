"""The pure parts of the CPU engine behind deploy/triton: vocabulary, words, stopping, settings."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.triton_fake import MODELS, model_config
from tests.support.triton_parts import LIB

assert LIB
from headrace_triton.gguf import read_metadata  # noqa: E402
from headrace_triton.settings import load_settings  # noqa: E402
from headrace_triton.stopping import StopRule  # noqa: E402
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


def test_a_gguf_is_read_without_its_weights(tmp_path: Path) -> None:
    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    pairs = [
        text(b"a.count") + struct.pack("<II", 4, 7),
        text(b"a.names") + struct.pack("<IIQ", 9, 8, 2) + text(b"x") + text(b"yz"),
        text(b"a.scores") + struct.pack("<IIQ2f", 9, 6, 2, 0.5, -1.0),
        text(b"a.flag") + struct.pack("<I?", 7, True),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 5, len(pairs)) + b"".join(pairs) + b"weights")
    assert read_metadata(str(path)) == {
        "a.count": 7,
        "a.names": [b"x", b"yz"],
        "a.scores": [0.5, -1.0],
        "a.flag": True,
    }
    path.write_bytes(b"GGML" + bytes(40))
    with pytest.raises(ValueError, match="not a GGUF"):
        read_metadata(str(path))


def test_a_setting_comes_from_the_environment_before_the_models_parameters() -> None:
    config = json.dumps({"parameters": {"slots": {"string_value": "2"}, "gguf": {"string_value": "/m.gguf"}}})
    settings = load_settings({"model_config": config}, {"HEADRACE_TRITON_SLOTS": "3"})
    assert (settings.slots, settings.gguf, settings.engine) == (3, "/m.gguf", "llamacpp")


@pytest.mark.parametrize(("name", "value"), [("SLOTS", "many"), ("ENGINE", "magic")])
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name.lower()):
        load_settings({"model_config": "{}"}, {f"HEADRACE_TRITON_{name}": value})


@pytest.mark.parametrize("name", ["ensemble", "preprocessing", "tensorrt_llm", "postprocessing"])
def test_every_model_has_a_batch_dimension(name: str) -> None:
    config = model_config(name)
    assert config.name == name
    assert config.max_batch_size > 0
    assert name == "ensemble" or (MODELS / name / "1" / "model.py").exists()


def test_the_steps_of_the_ensemble_fit_together() -> None:
    ensemble = model_config("ensemble")
    known = {tensor.name for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        model = model_config(step.model_name)
        optional = {tensor.name for tensor in model.input if tensor.optional}
        assert set(step.input_map) <= {tensor.name for tensor in model.input}
        assert {tensor.name for tensor in model.input} - set(step.input_map) <= optional
        assert set(step.output_map) <= {tensor.name for tensor in model.output}
        assert set(step.input_map.values()) <= known
        known |= set(step.output_map.values())
    assert {tensor.name for tensor in ensemble.output} <= known


def test_order_and_stops_need_one_instance() -> None:
    for name in ("tensorrt_llm", "postprocessing"):
        assert [group.count for group in model_config(name).instance_group] == [1]
