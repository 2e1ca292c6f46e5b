"""Reads the responses of an ensemble: text deltas, counts per response, and the end."""

from __future__ import annotations

from typing import Any, Final

from service.backends.base import EngineFinish, EngineFinished, EngineOutput, EngineStarted
from service.backends.triton.tensors import first_bytes, first_number
from service.core.errors import Reason, ServiceError

__all__ = ["OUTPUTS", "TEXT", "EnsembleReader"]

TEXT: Final = "text_output"
_INPUT_COUNT: Final = "num_input_tokens"
_OUTPUT_COUNT: Final = "num_output_tokens"
_TIMES: Final = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")

# Outputs that are asked for -> the input that switches them on: the engine fills
# an output only if it was asked for *and* switched on. One that it leaves out of a
# response is left out by the ensemble too, and holds nothing up.
OUTPUTS: Final = {
    TEXT: None,
    _INPUT_COUNT: "return_num_input_tokens",
    _OUTPUT_COUNT: "return_num_output_tokens",
    **dict.fromkeys(_TIMES, "return_perf_metrics"),
}


class EnsembleReader:
    """State of one generation's output.

    `num_output_tokens` counts the tokens of its own response, as in
    TensorRT-LLM's backend, which takes it from that response's ids; the sum is
    the total. It is None from the first response on that does not carry it.
    """

    __slots__ = (
        "_count_at",
        "_last",
        "_max_context_tokens",
        "_max_output_tokens",
        "_output_tokens",
        "_prompt_tokens",
        "_text_at",
        "_times",
    )

    def __init__(self, *, max_output_tokens: int, max_context_tokens: int | None = None) -> None:
        self._max_output_tokens = max_output_tokens
        self._max_context_tokens = max_context_tokens
        # The times and the prompt's count stand in every response; only the first and the last are read.
        self._last: Any = None
        self._prompt_tokens: int | None = None
        self._output_tokens: int | None = 0
        self._times: dict[str, int] = {}
        # Where the outputs of the hot path were last time; looked up again when they moved.
        self._text_at = -1
        self._count_at = -1

    def read(self, response: Any) -> EngineOutput | None:
        """Return the text and the count of one response."""
        outputs = response.outputs
        size = len(outputs)
        if size == 0:
            return None
        contents = response.raw_output_contents
        if len(contents) != size:
            raise _broken(f"{size} outputs with {len(contents)} contents")
        try:
            if self._last is None:
                self._locate(outputs)
                self._learn(response)
            elif not self._is_where_it_was(outputs, size):
                self._locate(outputs)
            self._last = response
            data = first_bytes(contents[self._text_at])
            tokens = None
            if self._count_at >= 0:
                number = first_number(outputs[self._count_at].datatype, contents[self._count_at])
                tokens = None if number is None else int(number)
        except ValueError as error:
            raise _broken(str(error)) from None
        if tokens is None or self._output_tokens is None:
            self._output_tokens = None
        else:
            self._output_tokens += tokens
        return EngineOutput(data, tokens)

    def started(self) -> EngineStarted:
        """Return the prompt's tokens and the wait in the engine's queue."""
        return EngineStarted(
            prompt_tokens=self._prompt_tokens, queue_s=self._span_s("arrival_time_ns", "first_scheduled_time_ns")
        )

    def finished(self) -> EngineFinished:
        """Return the counts and the computed reason."""
        if self._last is None:
            # An ensemble whose step lacks an input answers just so, without an error.
            raise _broken("the final response came without any output")
        self._learn(self._last)
        return EngineFinished(
            reason=self._reason(),
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            engine_queue_s=self._span_s("arrival_time_ns", "first_scheduled_time_ns"),
            engine_prefill_s=self._span_s("first_scheduled_time_ns", "first_token_time_ns"),
            engine_decode_s=self._span_s("first_token_time_ns", "last_token_time_ns"),
        )

    def _reason(self) -> EngineFinish:
        """Compute it, as the contract has none. Without counts it stays unknown."""
        if self._output_tokens is None:
            return EngineFinish.UNKNOWN
        if self._output_tokens >= self._max_output_tokens:
            return EngineFinish.LENGTH
        total = (self._prompt_tokens or 0) + self._output_tokens
        if self._max_context_tokens is not None and total >= self._max_context_tokens:
            return EngineFinish.CONTEXT_LENGTH
        return EngineFinish.STOP

    def _is_where_it_was(self, outputs: Any, size: int) -> bool:
        text_at, count_at = self._text_at, self._count_at
        return (
            text_at < size
            and outputs[text_at].name == TEXT
            and (count_at < 0 or (count_at < size and outputs[count_at].name == _OUTPUT_COUNT))
        )

    def _locate(self, outputs: Any) -> None:
        at = {output.name: place for place, output in enumerate(outputs)}
        if TEXT not in at:
            raise ValueError(f"no {TEXT} among {sorted(at)}")
        self._text_at = at[TEXT]
        self._count_at = at.get(_OUTPUT_COUNT, -1)

    def _learn(self, response: Any) -> None:
        """Take the prompt's count and the times; a value that cannot be read stays unknown."""
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            if output.name != _INPUT_COUNT and output.name not in _TIMES:
                continue
            try:
                number = first_number(output.datatype, raw)
            except ValueError:
                continue
            if number is None:
                continue
            if output.name == _INPUT_COUNT:
                self._prompt_tokens = int(number)
            elif number > 0:  # 0: that point was not reached yet
                self._times[output.name] = int(number)

    def _span_s(self, start: str, end: str) -> float | None:
        if start not in self._times or end not in self._times:
            return None
        return max(0.0, (self._times[end] - self._times[start]) / 1e9)


def _broken(what: str) -> ServiceError:
    return ServiceError(
        Reason.BACKEND_ERROR, "The inference server answered in an unexpected form.", detail=f"ensemble: {what}"
    )
