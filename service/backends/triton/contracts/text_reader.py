"""Reads responses whose new output is text: deltas, or everything so far."""

from __future__ import annotations

import logging
from typing import Final

from service.backends.base import EngineOutput
from service.backends.triton.contracts.contract import TextMode
from service.backends.triton.contracts.cumulative import CumulativeText
from service.backends.triton.contracts.response import ResponseReader
from service.backends.triton.tensors import first_bytes, first_number, float32s
from service.core.events import TokenLogprob

__all__ = ["TEXT", "UNKNOWN_TOKEN", "ModeMemory", "TextReader"]

_log = logging.getLogger(__name__)

TEXT: Final = "text_output"
# Text contracts carry no token ids.
UNKNOWN_TOKEN: Final = -1


class ModeMemory:
    """What the responses of a model are known to carry, where only they can show it.

    Starts with the contract's own rule. `is_certain`: configured, so that no
    response changes it.
    """

    def __init__(self, mode: TextMode, *, is_certain: bool) -> None:
        self.mode = mode
        self.is_certain = is_certain

    def saw_delta(self) -> None:
        """Take it for granted from now on that responses carry what is new."""
        if self.mode is TextMode.CUMULATIVE:
            _log.warning("the model's responses carry deltas, not the whole text: read as such from now on")
            self.mode = TextMode.DELTA


class TextReader(ResponseReader):
    """Reads `text_output`, the count of each response, and per-token log-probs where they are sent.

    `token_count` is the output that tells the tokens of its own response, as in
    TensorRT-LLM's and vLLM's backends; their sum is the total.
    """

    __slots__ = ("_count_at", "_growing", "_logprobs", "_memory", "contract")

    main = TEXT
    token_count = "num_output_tokens"
    token_logprobs = "output_log_probs"

    def __init__(
        self,
        contract: str,
        memory: ModeMemory,
        *,
        max_output_tokens: int,
        max_context_tokens: int | None = None,
        logprobs: bool = False,
    ) -> None:
        super().__init__(max_output_tokens=max_output_tokens, max_context_tokens=max_context_tokens)
        self.contract = contract
        self._memory = memory
        self._growing = CumulativeText() if memory.mode is TextMode.CUMULATIVE else None
        self._logprobs = logprobs

    def output(self, outputs, contents) -> EngineOutput:  # type: ignore[no-untyped-def]
        """Return the text and the tokens of one response."""
        data = first_bytes(contents[self._main_at])
        if self._growing is not None:
            data = self._grown(data)
        at = self._at.get(self.token_count, -1)
        tokens = None
        if at >= 0:
            number = first_number(outputs[at].datatype, contents[at])
            tokens = None if number is None else int(number)
        if not self._logprobs:
            return EngineOutput(data, tokens)
        return EngineOutput(data, tokens, (), _spread(data, float32s(self.raw(self.token_logprobs, contents))))

    def rest(self) -> EngineOutput | None:
        """Return the text that was held back because it may have ended inside a character."""
        data = b"" if self._growing is None else self._growing.rest()
        return EngineOutput(data, 0) if data else None

    def _grown(self, text: bytes) -> bytes:
        growing = self._growing
        assert growing is not None
        if not self._memory.is_certain and growing.contradicts(text):
            self._memory.saw_delta()
            self._growing = None
            return growing.rest() + text
        return growing.feed(text)


def _spread(data: bytes, logprobs: tuple[float, ...]) -> tuple[TokenLogprob, ...]:
    """Return one entry per token; the text of several tokens stands with the last, as it cannot be cut."""
    last = len(logprobs) - 1
    return tuple(
        TokenLogprob(UNKNOWN_TOKEN, value, data if place == last else b"") for place, value in enumerate(logprobs)
    )
