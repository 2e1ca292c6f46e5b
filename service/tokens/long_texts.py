"""Encoding without holding up the event loop: a long text is worth a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["read_text"]

T = TypeVar("T")

# A text of this size takes about 10 ms, 1 MB about a second.
_SHORT_CHARS: Final = 16_384


async def read_text(read: Callable[..., T], text: str, *, add_special_tokens: bool) -> T:
    """Return `read(text, ...)`, a tokenizer's `encode` or `count`. Cancelling the wait leaves the thread to its end."""
    if len(text) <= _SHORT_CHARS:
        return read(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(read, text, add_special_tokens=add_special_tokens)
