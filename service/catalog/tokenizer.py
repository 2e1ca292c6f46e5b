"""Counts tokens with a Hugging Face tokenizer.json, for engines that report no counts."""

from __future__ import annotations

from pathlib import Path

__all__ = ["JsonTokenizer", "TokenizerError"]


class TokenizerError(Exception):
    """The tokenizer cannot be loaded; the text says why and what to do."""


class JsonTokenizer:
    """One loaded tokenizer. Counting 1 MB of text takes about a second: callers bound their prompts."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise TokenizerError("tokenizer needs: pip install 'headrace-server[tokenizer]'") from None
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"tokenizer {path} cannot be read: {error}") from None

    def count(self, text: str, *, add_special_tokens: bool) -> int:
        """Return the length of `text` in tokens."""
        return len(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
