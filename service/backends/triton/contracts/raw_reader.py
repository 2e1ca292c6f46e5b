"""Reads responses whose new output is token ids: exact bytes, ids and log-probs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from service.backends.base import EngineFinish, EngineOutput
from service.backends.triton.contracts.response import ResponseReader
from service.backends.triton.tensors import integers
from service.backends.triton.values import to_logprob, to_token_ids
from service.core.events import TokenLogprob

__all__ = ["IDS", "LENGTH", "RawReader"]

IDS: Final = "output_ids"
LENGTH: Final = "sequence_length"
_LOGPROBS: Final = "output_log_probs"


class RawReader(ResponseReader):
    """Reads `output_ids`, the new ids of each response; `sequence_length` says how many of them count.

    `piece` gives the exact bytes of a token.

    The ids are counted here, so that counts do not depend on what the model can
    tell. An end of sequence is a token and has no bytes.
    """

    __slots__ = ("_end_ids", "_is_ended", "_logprobs", "_piece", "_token_ids")

    contract = "raw"
    main = IDS

    def __init__(
        self,
        piece: Callable[[int], bytes],
        *,
        prompt_tokens: int,
        max_output_tokens: int,
        max_context_tokens: int | None = None,
        end_ids: frozenset[int] = frozenset(),
        token_ids: bool = False,
        logprobs: bool = False,
    ) -> None:
        super().__init__(
            max_output_tokens=max_output_tokens, max_context_tokens=max_context_tokens, prompt_tokens=prompt_tokens
        )
        self._piece = piece
        self._end_ids = end_ids
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._is_ended = False

    def output(self, outputs: Any, contents: Any) -> EngineOutput:
        """Return the bytes and the ids of one response."""
        main = outputs[self._main_at]
        ids = integers(main.datatype, contents[self._main_at])
        if ids:
            shape = main.shape
            if not shape or shape[-1] != len(ids):
                # The ids of a second beam or batch entry would read like more of the first.
                raise ValueError(f"{IDS} of the shape {list(shape)} with {len(ids)} ids")
        length = self.count(LENGTH, outputs, contents)
        # Behind the length may be anything.
        ids = to_token_ids(ids if length is None else ids[:length])
        if ids:
            self._is_ended = ids[-1] in self._end_ids
        pieces = [self._piece(token_id) for token_id in ids]
        return EngineOutput(
            b"".join(pieces),
            len(ids),
            ids if self._token_ids else (),
            self._read_logprobs(ids, pieces, outputs, contents) if self._logprobs else (),
        )

    def reason(self) -> EngineFinish:
        """Return why it ended: an end of sequence says so, also where it is the last token of the limit."""
        return EngineFinish.STOP if self._is_ended else super().reason()

    def _read_logprobs(
        self, ids: tuple[int, ...], pieces: list[bytes], outputs: Any, contents: Any
    ) -> tuple[TokenLogprob, ...]:
        """Return one entry per token, none for a token whose log-prob the engine does not know (NaN).

        Some versions repeat those of the tokens before: the last ones are of this response.
        """
        values = self.floats(_LOGPROBS, outputs, contents)
        if not values or not ids:
            return ()
        if len(values) < len(ids):
            raise ValueError(f"{len(ids)} tokens with {len(values)} log-probs")
        rows = zip(ids, values[len(values) - len(ids) :], pieces, strict=True)
        return tuple(
            TokenLogprob(token_id, to_logprob(value), raw) for token_id, value, raw in rows if not math.isnan(value)
        )
