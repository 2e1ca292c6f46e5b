"""Log probabilities in the two shapes of the OpenAI API.

Tokens are named by their text, and by their bytes where the text cannot name
them: half a character is no U+FFFD.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from headrace.v1 import generation_pb2 as gen

__all__ = ["chat_item", "completion_columns"]

# What the API says instead of minus infinity, which JSON cannot hold.
NEVER: Final = -9999.0


def chat_item(token: gen.TokenLogprob) -> dict[str, Any]:
    """Return one entry of a chat choice's `logprobs.content`. A value that the engine did not give is null."""
    return {
        "token": token.text,
        "logprob": _number(token.logprob) if token.HasField("logprob") else None,
        "bytes": _bytes(token),
        "top_logprobs": [
            {"token": top.text, "logprob": _number(top.logprob), "bytes": _bytes(top)} for top in token.top_logprobs
        ],
    }


def completion_columns(tokens: Iterable[gen.TokenLogprob], offset_chars: int) -> dict[str, list[Any]]:
    """Return the four parallel lists of the legacy shape; the first token starts at `offset_chars` of the text."""
    columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token in tokens:
        logprob = _number(token.logprob) if token.HasField("logprob") else None
        name = _name(token)
        # Best first; of two tokens with one name the better one stays. The chosen
        # token is always among them.
        top: dict[str, float | None] = {}
        for alternative in token.top_logprobs:
            top.setdefault(_name(alternative), _number(alternative.logprob))
        top.setdefault(name, logprob)
        columns["tokens"].append(name)
        columns["token_logprobs"].append(logprob)
        columns["top_logprobs"].append(top)
        columns["text_offset"].append(offset_chars)
        offset_chars += len(token.text)
    return columns


def _number(value: float) -> float:
    # Single precision holds seven digits; a double's seventeen are noise.
    return float(f"{value:.7g}") if math.isfinite(value) else NEVER


def _bytes(token: gen.TokenLogprob | gen.TopLogprob) -> list[int]:
    return list(token.raw_bytes or token.text.encode())


def _name(token: gen.TokenLogprob | gen.TopLogprob) -> str:
    if "\ufffd" in token.text and token.raw_bytes:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw_bytes)
    return token.text
