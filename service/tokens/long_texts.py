"""Encoding and decoding without holding up the event loop: what is long is worth a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

__all__ = ["read_ids", "read_text"]

T = TypeVar("T")

# A text of this size takes about 10 ms, 1 MB about a second.
_SHORT_CHARS: Final = 16_384
# So many ids take about 5 ms.
_FEW_IDS: Final = 8192


async def read_text(read: Callable[..., T], text: str, *, add_special_tokens: bool) -> T:
    """Return `read(text, ...)`, a tokenizer's `encode` or `count`. Cancelling the wait leaves the thread to its end."""
    if len(text) <= _SHORT_CHARS:
        return read(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(read, text, add_special_tokens=add_special_tokens)


async def read_ids(read: Callable[[Sequence[int]], T], token_ids: Sequence[int]) -> T:
    """Return `read(token_ids)`, a tokenizer's way back. Cancelling the wait leaves the thread to its end."""
    if len(token_ids) <= _FEW_IDS:
        return read(token_ids)
    return await asyncio.to_thread(read, token_ids)
