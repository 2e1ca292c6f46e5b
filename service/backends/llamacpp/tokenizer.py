"""llama.cpp's own tokenizer, for callers who look at prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from service.backends.llamacpp.engine import Engine
from service.backends.tokenizer import EncodedText
from service.core.errors import Reason, ServiceError

__all__ = ["LlamaCppTokenizer"]

_T = TypeVar("_T")

# Read in about 3 s on one slow core, and nothing can stop that.
_MAX_TEXT_BYTES: Final = 128 * 1024
_TIMEOUT_S: Final = 60.0
_THREADS: Final = 2


class LlamaCppTokenizer:
    """Implements `service.backends.tokenizer.EngineTokenizer` over threads of its own; `close` lets go of them.

    `special_ids` are the control tokens of the model file.
    """

    has_pieces = True
    max_text_bytes = _MAX_TEXT_BYTES

    def __init__(self, engine: Engine, *, vocab_size: int, special_ids: frozenset[int]) -> None:
        self.vocab_size = vocab_size
        self._engine = engine
        self._special_ids = special_ids
        # Apart from those that count prompts: a caller's long text must not hold up a generation.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="llamacpp-tokenize")

    def close(self) -> None:
        """Take no more texts; one that is being read is read to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def encode(self, text: str, *, add_special_tokens: bool, with_pieces: bool = False) -> EncodedText:
        """Return the ids of `text`."""
        engine = self._engine
        if not with_pieces:
            return EncodedText(
                await self._ask(
                    lambda: engine.tokenize(text, add_special_tokens=add_special_tokens, timeout_s=_TIMEOUT_S)
                )
            )
        tokens = await self._ask(
            lambda: engine.tokenize_with_pieces(text, add_special_tokens=add_special_tokens, timeout_s=_TIMEOUT_S)
        )
        return EncodedText([token_id for token_id, _ in tokens], [piece for _, piece in tokens])

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `token_ids`."""
        special = self._special_ids if skip_special_tokens else frozenset[int]()
        shown = [token_id for token_id in token_ids if token_id not in special]
        return await self._ask(lambda: self._engine.detokenize(shown, timeout_s=_TIMEOUT_S))

    async def _ask(self, question: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, question)
        # The pool is closed (RuntimeError), or the engine does not answer.
        except (OSError, ValueError, RuntimeError) as error:
            raise ServiceError(
                Reason.BACKEND_UNAVAILABLE, "The engine's tokenizer did not answer.", detail=repr(error)
            ) from error
