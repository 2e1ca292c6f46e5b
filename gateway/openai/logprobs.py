"""Log probabilities in the two shapes of the OpenAI API, written as JSON text.

Tokens are named by their text, and by their bytes where the text cannot name
them: half a character is no U+FFFD. The text is put together by hand, because
a token with twenty alternatives is sixty values, for every token of a stream.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, Final, Protocol

from headrace.v1 import generation_pb2 as gen

__all__ = ["ChatLogprobs", "CompletionLogprobs", "LogprobsWriter", "is_silent", "token_text"]

# What the API says instead of minus infinity, which JSON cannot hold.
NEVER: Final = "-9999.0"
_DECIMALS: Final = tuple(map(str, range(256)))


class LogprobsWriter(Protocol):
    """Collects tokens and writes the value of `logprobs`."""

    # Characters written so far, about.
    size: int
    # Where in the choice's text the next token starts, in characters.
    offset_chars: int

    def add(self, token: gen.TokenLogprob) -> None:
        """Take the next token."""

    def text(self) -> str:
        """Return the value of `logprobs` as JSON text."""


class ChatLogprobs:
    """`{"content": [...], "refusal": null}`. A value that the engine did not give is null."""

    def __init__(self, offset_chars: int = 0) -> None:
        self.size = 0
        self.offset_chars = offset_chars
        self._items: list[str] = []

    def add(self, token: gen.TokenLogprob) -> None:
        """Take the next token."""
        item = token_text(token)
        self._items.append(item)
        self.size += len(item)
        self.offset_chars += len(token.text)

    def text(self) -> str:
        """Return the value of `logprobs` as JSON text."""
        return f'{{"content":[{",".join(self._items)}],"refusal":null}}'


class CompletionLogprobs:
    """The four parallel lists of the legacy shape; the first token starts at `offset_chars` of the text.

    Silent tokens at the end are left out: the end of sequence is no part of the text.
    """

    def __init__(self, offset_chars: int = 0) -> None:
        self.size = 0
        self.offset_chars = offset_chars
        self._silent: list[gen.TokenLogprob] = []
        self._columns: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }

    def add(self, token: gen.TokenLogprob) -> None:
        """Take the next token."""
        if is_silent(token):
            self._silent.append(token)
            return
        for silent in self._silent:
            self._tell(silent)
        self._silent.clear()
        self._tell(token)

    def _tell(self, token: gen.TokenLogprob) -> None:
        logprob = float(_number(token.logprob)) if token.HasField("logprob") else None
        name = _name(token)
        # Best first; of two tokens with one name the better one stays. The chosen
        # token is always among them.
        top: dict[str, float | None] = {}
        for alternative in token.top_logprobs:
            top.setdefault(_name(alternative), float(_number(alternative.logprob)))
        top.setdefault(name, logprob)
        self._columns["tokens"].append(name)
        self._columns["token_logprobs"].append(logprob)
        self._columns["top_logprobs"].append(top)
        self._columns["text_offset"].append(self.offset_chars)
        # An escaped character takes at most 12 characters, a number about 12.
        self.size += 40 + 12 * len(name) + sum(16 + 12 * len(key) for key in top)
        self.offset_chars += len(token.text)

    def text(self) -> str:
        """Return the value of `logprobs` as JSON text."""
        return json.dumps(self._columns, separators=(",", ":"))


def is_silent(token: gen.TokenLogprob) -> bool:
    """Return whether a token has neither text nor bytes, as special tokens have."""
    return not token.text and not token.raw_bytes


def token_text(token: gen.TokenLogprob) -> str:
    """Return the entry of one token, with its alternatives, as JSON text."""
    value = _number(token.logprob) if token.HasField("logprob") else "null"
    tops = ",".join([f"{{{_entry(top, _number(top.logprob))}}}" for top in token.top_logprobs])
    return f'{{{_entry(token, value)},"top_logprobs":[{tops}]}}'


def _entry(token: gen.TokenLogprob | gen.TopLogprob, logprob: str) -> str:
    named, spelled = _names(token.text, token.raw_bytes)
    return f"{named}{logprob}{spelled}"


# The alternatives of a text are mostly the same few thousand tokens.
@lru_cache(maxsize=8192)
def _names(text: str, raw: bytes) -> tuple[str, str]:
    """Return what stands before and behind the number in the entry of a token."""
    numbers = ",".join([_DECIMALS[byte] for byte in raw or text.encode()])
    return f'"token":{encode_basestring_ascii(text)},"logprob":', f',"bytes":[{numbers}]'


def _number(value: float) -> str:
    # Single precision holds seven digits; a double's seventeen are noise.
    if not math.isfinite(value):
        return NEVER
    text = f"{value:.7g}"
    return text if "." in text or "e" in text else f"{text}.0"


def _name(token: gen.TokenLogprob | gen.TopLogprob) -> str:
    if "\ufffd" in token.text and token.raw_bytes:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw_bytes)
    return token.text
