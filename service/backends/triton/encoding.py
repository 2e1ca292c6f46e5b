"""Text to token ids without holding up the event loop."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Final

from service.backends.base import EngineRequest
from service.backends.triton.contracts.contract import Tokenizer

__all__ = ["encode", "encoded"]

# A text of this size takes about 10 ms, which is what a thread is worth.
_SHORT_CHARS: Final = 16_384


async def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    """Return the ids of `text`; 1 MB takes about a second, in a thread.

    Cancelling the wait leaves the thread to its end.
    """
    if len(text) <= _SHORT_CHARS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)


async def encoded(request: EngineRequest, tokenizer: Tokenizer) -> EngineRequest:
    """Return the request with its prompt as token ids."""
    if not isinstance(request.prompt, str):
        return request
    ids = await encode(tokenizer, request.prompt, add_special_tokens=request.add_special_tokens)
    return dataclasses.replace(request, prompt=ids)
