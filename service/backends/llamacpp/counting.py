"""How long a prompt is in tokens, without reading more of it than it takes to see that it is too long.

llama.cpp's tokenizer reads 50 to 250 KB a second and cannot be stopped. A prompt
that fits no window must not keep it busy for minutes, nor one whose caller has left.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Final, Protocol

from service.core.errors import Reason, ServiceError

__all__ = ["PromptCounter", "TextTokenizer"]

# Read at once: half a second.
_SLICE_CHARS: Final = 32 * 1024
# A cut in the middle of words changes the tokens around it, by a handful.
_CUT_TOKENS: Final = 64
# A slice waits for those of the prompts before it.
_SLICE_TIMEOUT_S: Final = 30.0
# What fits a window, read as a whole.
_WHOLE_TIMEOUT_S: Final = 120.0


class TextTokenizer(Protocol):
    """The engine's tokenizer; it blocks."""

    def tokenize(self, text: str, *, add_special_tokens: bool, timeout_s: float) -> list[int]:
        """Return the token ids. Raises OSError or ValueError if the engine does not answer."""
        ...


class PromptCounter:
    """Counts in the threads of `executor`, for a window of `context_tokens`, None if it has no bounds."""

    def __init__(self, tokenizer: TextTokenizer, executor: Executor, *, context_tokens: int | None) -> None:
        self._tokenizer = tokenizer
        self._executor = executor
        self._context_tokens = context_tokens

    async def count(self, prompt: str, *, add_special_tokens: bool) -> int:
        """Return the prompt's length in tokens.

        Raises CONTEXT_LENGTH_EXCEEDED as soon as so much of it has been read that the
        rest cannot matter, and BACKEND_UNAVAILABLE if the engine does not answer: it
        would not read the prompt of a generation either. Cancelling ends the wait at
        once, and the work with the slice that is being read.
        """
        if self._context_tokens is not None and len(prompt) > _SLICE_CHARS:
            await self._refuse_too_long(prompt, self._context_tokens)
        return await self._tokens(prompt, add_special_tokens=add_special_tokens, timeout_s=_WHOLE_TIMEOUT_S)

    async def _refuse_too_long(self, prompt: str, context_tokens: int) -> None:
        least = 0
        for start in range(0, len(prompt), _SLICE_CHARS):
            part = prompt[start : start + _SLICE_CHARS]
            tokens = await self._tokens(part, add_special_tokens=False, timeout_s=_SLICE_TIMEOUT_S)
            least += max(0, tokens - _CUT_TOKENS)
            if least >= context_tokens:
                raise ServiceError(
                    Reason.CONTEXT_LENGTH_EXCEEDED,
                    f"The model's context is {context_tokens} tokens; the prompt has more.",
                    metadata={"maxContextTokens": str(context_tokens)},
                )

    async def _tokens(self, text: str, *, add_special_tokens: bool, timeout_s: float) -> int:
        try:
            async with asyncio.timeout(timeout_s):
                ids = await asyncio.get_running_loop().run_in_executor(
                    self._executor,
                    lambda: self._tokenizer.tokenize(text, add_special_tokens=add_special_tokens, timeout_s=timeout_s),
                )
        # The pool is closed (RuntimeError), or the engine does not answer (TimeoutError is an OSError).
        except (OSError, ValueError, RuntimeError) as error:
            raise ServiceError(
                Reason.BACKEND_UNAVAILABLE, "The engine's tokenizer did not answer.", detail=repr(error)
            ) from error
        return len(ids)
