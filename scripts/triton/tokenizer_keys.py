"""The keys of a GGUF that describe its tokenizer: whether they are there, and what they are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["check"]

_NUMBER_PER_TOKEN = ("tokenizer.ggml.token_type", "tokenizer.ggml.scores")
_IDS = ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id")
_FLAGS = ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_space_prefix")
_REQUIRED = {
    "llama": ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"),
    "gpt2": ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"),
}


def check(metadata: Mapping[str, Any]) -> None:
    """Raise ValueError that names the first key that is missing or is not what it has to be.

    `metadata` has strings as bytes, as `headrace_triton.gguf` reads them.
    """
    kind = _required(metadata, "tokenizer.ggml.model")
    _expect(metadata, "tokenizer.ggml.model", _is_text, "UTF-8 text")
    if kind.decode() not in _REQUIRED:
        raise ValueError(
            f"tokenizer {kind.decode()!r} is not supported; llama (SentencePiece) and gpt2 (byte-level BPE) are"
        )
    for key in _REQUIRED[kind.decode()]:
        _required(metadata, key)
    _expect(metadata, "tokenizer.ggml.pre", _is_text, "UTF-8 text")
    _expect(metadata, "tokenizer.ggml.tokens", lambda value: _is_list(value, _is_text), "a list of UTF-8 texts")
    _expect(metadata, "tokenizer.ggml.merges", lambda value: _is_list(value, _is_pair), "a list of pairs of texts")
    size = len(metadata["tokenizer.ggml.tokens"])
    for key in _NUMBER_PER_TOKEN:
        _expect(
            metadata, key, lambda value: _is_list(value, _is_number) and len(value) == size, "a number for every token"
        )
    for key in _IDS:
        _expect(
            metadata, key, lambda value: type(value) is int and 0 <= value < size, f"an id of one of the {size} tokens"
        )
    for key in _FLAGS:
        _expect(metadata, key, lambda value: isinstance(value, bool), "a BOOL")


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise ValueError(f"{key} is missing")
    return metadata[key]


def _expect(metadata: Mapping[str, Any], key: str, is_right: Callable[[Any], bool], what: str) -> None:
    if key in metadata and not is_right(metadata[key]):
        raise ValueError(f"{key} is not {what}")


def _is_list(value: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_right, value))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, bytes) and value.decode() is not None
    except UnicodeDecodeError:
        return False


def _is_pair(value: Any) -> bool:
    return _is_text(value) and b" " in value
