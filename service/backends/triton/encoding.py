"""Prompts as token ids, for contracts that take no text."""

from __future__ import annotations

import dataclasses

from service.backends.base import EngineRequest
from service.backends.triton.contracts.contract import Tokenizer
from service.tokens import read_text

__all__ = ["encoded"]


async def encoded(request: EngineRequest, tokenizer: Tokenizer) -> EngineRequest:
    """Return the request with its prompt as token ids."""
    if not isinstance(request.prompt, str):
        return request
    ids = await read_text(tokenizer.encode, request.prompt, add_special_tokens=request.add_special_tokens)
    return dataclasses.replace(request, prompt=ids)
