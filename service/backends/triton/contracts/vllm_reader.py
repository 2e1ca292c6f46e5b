"""Reads vLLM's responses: text, counts, and the log-probs that are sent as JSON."""

from __future__ import annotations

import json
from typing import Any, Final

from service.backends.base import EngineOutput
from service.backends.triton.contracts.contract import Tokenizer
from service.backends.triton.contracts.finish import ReasonReader
from service.backends.triton.contracts.text_reader import TextRule
from service.backends.triton.tensors import single_bytes
from service.backends.triton.values import to_logprob, to_token_ids
from service.core.events import TokenLogprob, TopLogprob

__all__ = ["LOGPROBS", "VllmReader"]

LOGPROBS: Final = "logprobs"


class VllmReader(ReasonReader):
    """Reads one generation.

    `alternatives`: None is no log-probs. Token ids come from the same entries.
    Bytes are those of `tokenizer` where there is one: the text that vLLM sends for
    a token was decoded by itself, and has lost what only makes sense with its
    neighbours (a leading space, part of a character).
    """

    __slots__ = ("_alternatives", "_tokenizer", "_wants_ids")

    def __init__(
        self,
        contract: str,
        memory: TextRule,
        *,
        max_output_tokens: int,
        max_context_tokens: int | None = None,
        alternatives: int | None = None,
        token_ids: bool = False,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(contract, memory, max_output_tokens=max_output_tokens, max_context_tokens=max_context_tokens)
        self._alternatives = alternatives
        self._wants_ids = token_ids
        self._tokenizer = tokenizer

    def output(self, outputs: Any, contents: Any) -> EngineOutput:
        """Return the text, the tokens and what was asked for about them."""
        item = super().output(outputs, contents)
        if self._alternatives is None and not self._wants_ids:
            return item
        entries = _entries(self.raw(LOGPROBS, contents))
        tokens = len(entries) if item.tokens is None else item.tokens
        if tokens != len(entries) or (item.data and not entries):
            # An id or a log-prob that is missing would shift all that follow.
            raise ValueError(f"{len(entries)} log-probs for {tokens} tokens")
        try:
            ids = to_token_ids([int(next(iter(entry.keys()))) for entry in entries]) if self._wants_ids else ()
            logprobs = () if self._alternatives is None else tuple([self._logprob(entry) for entry in entries])
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            raise ValueError(f"{LOGPROBS} in another form: {error!r}") from None
        return EngineOutput(item.data, tokens, ids, logprobs)

    def _logprob(self, entry: dict[str, dict[str, Any]]) -> TokenLogprob:
        """Return one position. The generated token comes first, then the likeliest, of which it may be one."""
        ids = to_token_ids([int(key) for key in entry])
        found = [
            TopLogprob(token_id, to_logprob(value["logprob"]), self._bytes(token_id, value["decoded_token"]))
            for token_id, value in zip(ids, entry.values(), strict=True)
        ]
        token_id, logprob, raw = found[0]
        # Not among the likeliest it is the least likely of all here, and falls off.
        found.sort(key=lambda one: one.logprob, reverse=True)
        return TokenLogprob(token_id, logprob, raw, tuple(found[: self._alternatives]))

    def _bytes(self, token_id: int, text: str | None) -> bytes:
        if self._tokenizer is not None:
            return self._tokenizer.piece(token_id)
        return b"" if text is None else text.encode(errors="replace")


def _entries(raw: bytes) -> list[dict[str, dict[str, Any]]]:
    """Return one entry per token; "null" and an output that is not there are none."""
    text = single_bytes(raw)
    entries = json.loads(text) if text else None
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise ValueError(f"{LOGPROBS} is no list")
    return entries
