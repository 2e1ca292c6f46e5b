"""Reads responses whose new output is text: deltas, or everything so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from service.backends.base import EngineOutput
from service.backends.triton.contracts.contract import TextMode
from service.backends.triton.contracts.cumulative import CumulativeText
from service.backends.triton.contracts.response import ResponseReader
from service.backends.triton.tensors import single_bytes
from service.backends.triton.values import to_logprob
from service.core.events import TokenLogprob

__all__ = ["TEXT", "UNKNOWN_TOKEN", "TextReader", "TextRule"]

TEXT: Final = "text_output"
# Text contracts carry no token ids.
UNKNOWN_TOKEN: Final = -1


@dataclass(frozen=True, slots=True)
class TextRule:
    """What the responses of a model carry.

    `is_certain`: configured, or said by the model, so that no response is taken
    for something else. Else a stream of whole texts is read as new texts from the
    response on that cannot be a whole one: that stream alone, as it proves nothing
    about another.
    """

    mode: TextMode
    _: KW_ONLY
    is_certain: bool


class TextReader(ResponseReader):
    """Reads `text_output`, the count of each response, and per-token log-probs where they are sent.

    `token_count` is the output that tells the tokens of its own response, as in
    TensorRT-LLM's and vLLM's backends; their sum is the total. `on_delta` is called
    when this stream turned out to carry new texts.
    """

    __slots__ = ("_growing", "_is_certain", "_logprobs", "_on_delta", "contract")

    main = TEXT
    token_count = "num_output_tokens"
    token_logprobs = "output_log_probs"

    def __init__(
        self,
        contract: str,
        rule: TextRule,
        *,
        max_output_tokens: int,
        max_context_tokens: int | None = None,
        logprobs: bool = False,
        on_delta: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(max_output_tokens=max_output_tokens, max_context_tokens=max_context_tokens)
        self.contract = contract
        self._is_certain = rule.is_certain
        self._on_delta = on_delta
        self._growing = CumulativeText() if rule.mode is TextMode.CUMULATIVE else None
        self._logprobs = logprobs

    def output(self, outputs: Any, contents: Any) -> EngineOutput:
        """Return the text and the tokens of one response."""
        data = single_bytes(contents[self._main_at])
        if self._growing is not None:
            data = self._grown(data)
        tokens = self.count(self.token_count, outputs, contents)
        if not self._logprobs:
            return EngineOutput(data, tokens)
        return EngineOutput(data, tokens, (), _spread(data, self.floats(self.token_logprobs, outputs, contents)))

    def rest(self) -> EngineOutput | None:
        """Return the text that was held back because it may have ended inside a character."""
        data = b"" if self._growing is None else self._growing.rest()
        return EngineOutput(data, 0) if data else None

    def _locate(self, outputs: Any) -> None:
        super()._locate(outputs)
        # Looked at where the outputs are looked up, and not for every token: a model keeps its types.
        datatype = outputs[self._main_at].datatype
        if datatype != "BYTES":
            raise ValueError(f"{TEXT} of the type {datatype}")

    def _grown(self, text: bytes) -> bytes:
        growing = self._growing
        assert growing is not None
        if not self._is_certain and growing.contradicts(text):
            if self._on_delta is not None:
                self._on_delta()
            self._growing = None
            return growing.rest() + text
        return growing.feed(text)


def _spread(data: bytes, logprobs: tuple[float, ...]) -> tuple[TokenLogprob, ...]:
    """Return one entry per token; the text of several tokens stands with the last, as it cannot be cut."""
    last = len(logprobs) - 1
    return tuple(
        TokenLogprob(UNKNOWN_TOKEN, to_logprob(value), data if place == last else b"")
        for place, value in enumerate(logprobs)
    )
