"""scripts/triton/tokenizer with model files and outputs it cannot take: one line that says why, and nothing written."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.triton_parts import LIB

SCRIPT = LIB.parents[2] / "scripts" / "triton" / "tokenizer"
sys.path.append(str(SCRIPT.parent))
from tokenizer_keys import check  # noqa: E402

WHOLE = {
    "tokenizer.ggml.model": b"llama",
    "tokenizer.ggml.tokens": [b"<eos>", b"a"],
    "tokenizer.ggml.token_type": [3, 1],
    "tokenizer.ggml.scores": [0.0, -1.0],
    "tokenizer.ggml.eos_token_id": 0,
}


def refusal(*arguments: str | Path) -> str:
    """Run the script, which must fail, and return what it says; that must be one line."""
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "model.gguf is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "model.gguf cannot be read as GGUF: it ends at byte 24"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "model.gguf has no tokenizer that can be written"),
    ],
    ids=["empty", "cut off", "without a tokenizer"],
)
def test_a_damaged_model_is_named_in_one_line_and_leaves_no_output(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "model.gguf").write_bytes(data)
    assert says in refusal(tmp_path / "tokenizer.json", "--gguf", tmp_path / "model.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_pipe_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "pipe could not be made: it exists and is not a regular file" in refusal(pipe, "--scripted")
    assert "pipe is not a regular file" in refusal(tmp_path / "tokenizer.json", "--gguf", pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "tokenizer.json could not be made" in refusal(tmp_path / "file" / "tokenizer.json", "--scripted")


def test_the_keys_of_a_whole_tokenizer_are_taken() -> None:
    check(WHOLE)


@pytest.mark.parametrize("key", sorted(WHOLE.keys() - {"tokenizer.ggml.eos_token_id"}))
def test_a_key_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is missing"):
        check({name: value for name, value in WHOLE.items() if name != key})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 7),
        ("model", b"\xff"),
        ("pre", [b"x"]),
        ("tokens", b"<eos>"),
        ("tokens", [b"<eos>", b"\xff"]),
        ("merges", [b"nospace"]),
        ("token_type", [3]),
        ("token_type", [b"3", b"1"]),
        ("scores", 0.5),
        ("eos_token_id", 2),
        ("bos_token_id", -1),
        ("unknown_token_id", True),
        ("add_bos_token", 1),
    ],
)
def test_a_key_that_is_not_what_it_has_to_be_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"tokenizer.ggml.{name} is not "):
        check(WHOLE | {f"tokenizer.ggml.{name}": value})
