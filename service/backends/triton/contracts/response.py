"""Reads the responses of one generation: what all contracts share.

Owns where an output stands, counts, times and the computed end; what the new
output is, each contract's reader says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

from service.backends.base import EngineFinish, EngineFinished, EngineOutput, EngineStarted
from service.backends.triton.tensors import first_number, floats
from service.backends.triton.values import MOST, to_count
from service.core.errors import Reason, ServiceError

__all__ = ["TIMES", "ResponseReader", "broken"]

TIMES: Final = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
# The highest int64, as the times are; and a span that no generation lasts.
_LAST_NS: Final = 2**63 - 1
_DAY_S: Final = 86_400.0
# Of what is wrong with a response, for the log: a response may have megabytes.
_MOST_DETAIL: Final = 300


class ResponseReader(ABC):
    """State of one generation's output.

    A subclass names the output that every response carries (`main`), and turns
    one response into an `EngineOutput`. The prompt's count and the times stand
    in every response; only those of the first and the last are read.
    """

    __slots__ = (
        "_at",
        "_checked",
        "_last",
        "_main_at",
        "_max_context_tokens",
        "_max_output_tokens",
        "_output_tokens",
        "_prompt_tokens",
        "_size",
        "_times",
    )

    contract: str
    main: str
    input_count: str = "num_input_tokens"

    def __init__(
        self, *, max_output_tokens: int, max_context_tokens: int | None = None, prompt_tokens: int | None = None
    ) -> None:
        self._max_output_tokens = max_output_tokens
        self._max_context_tokens = max_context_tokens
        self._last: Any = None
        self._prompt_tokens = prompt_tokens
        # None from the first response on that does not tell its tokens.
        self._output_tokens: int | None = 0
        self._times: dict[str, int] = {}
        # Where each output stood last time, and in how many; looked up again when one
        # of those that are read from every response has moved.
        self._at: dict[str, int] = {}
        self._checked: list[tuple[int, str]] = []
        self._main_at = self._size = -1

    @abstractmethod
    def output(self, outputs: Any, contents: Any) -> EngineOutput:
        """Return what one response brought; ValueError for a tensor that cannot be read."""

    def read(self, response: Any) -> EngineOutput | None:
        """Return what one response brought, None if it carries no tensors."""
        outputs = response.outputs
        size = len(outputs)
        if size == 0:
            return None
        contents = response.raw_output_contents
        try:
            if size != len(contents):
                raise ValueError(f"{size} outputs with {len(contents)} contents")
            if size != self._size or not self._are_where_they_were(outputs):
                self._locate(outputs)
            if self._last is None:
                self._learn(response)
            self._last = response
            item = self.output(outputs, contents)
            if item.tokens is None or self._output_tokens is None:
                self._output_tokens = None
            else:
                self._output_tokens = to_count(self._output_tokens + item.tokens)
        # A text in a response may be JSON that is nested deeper than Python reads.
        except (ValueError, OverflowError, RecursionError) as error:
            raise broken(self.contract, str(error)) from None
        return item

    def started(self) -> EngineStarted:
        """Return the prompt's tokens and the wait in the engine's queue."""
        return EngineStarted(
            prompt_tokens=self._prompt_tokens, queue_s=self._span_s("arrival_time_ns", "first_scheduled_time_ns")
        )

    def rest(self) -> EngineOutput | None:
        """Return what was held back: nothing, where a response is new text by itself."""
        return None

    def finished(self) -> EngineFinished:
        """Return the counts, the times and why the generation ended."""
        if self._last is None:
            # An ensemble whose step lacks an input answers just so, without an error.
            raise broken(self.contract, "the final response came without any output")
        self._learn(self._last)
        return EngineFinished(
            reason=self.reason(),
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            engine_queue_s=self._span_s("arrival_time_ns", "first_scheduled_time_ns"),
            engine_prefill_s=self._span_s("first_scheduled_time_ns", "first_token_time_ns"),
            engine_decode_s=self._span_s("first_token_time_ns", "last_token_time_ns"),
        )

    def reason(self) -> EngineFinish:
        """Compute why it ended, where the contract does not say. Without counts it stays unknown."""
        if self._output_tokens is None:
            return EngineFinish.UNKNOWN
        if self._output_tokens >= self._max_output_tokens:
            return EngineFinish.LENGTH
        total = (self._prompt_tokens or 0) + self._output_tokens
        if self._max_context_tokens is not None and total >= self._max_context_tokens:
            return EngineFinish.CONTEXT_LENGTH
        return EngineFinish.STOP

    def count(self, name: str, outputs: Any, contents: Any) -> int | None:
        """Return an output that counts tokens, None where it is not there or empty; ValueError if it is no count."""
        at = self._at.get(name, -1)
        number = None if at < 0 else first_number(outputs[at].datatype, contents[at])
        return None if number is None else to_count(number)

    def floats(self, name: str, outputs: Any, contents: Any) -> tuple[float, ...]:
        """Return the elements of an output, none where it is not there; ValueError for another datatype."""
        at = self._at.get(name, -1)
        return () if at < 0 else floats(outputs[at].datatype, contents[at])

    def raw(self, name: str, contents: Any) -> bytes:
        """Return the bytes of an output, empty where it is not there."""
        at = self._at.get(name, -1)
        return b"" if at < 0 else contents[at]

    def raw_of_last(self, name: str) -> bytes:
        """Return the bytes of an output in the last response that had any."""
        if self._last is None:
            return b""
        outputs, contents = self._last.outputs, self._last.raw_output_contents
        return next((raw for output, raw in zip(outputs, contents, strict=True) if output.name == name), b"")

    def _are_where_they_were(self, outputs: Any) -> bool:
        for at, name in self._checked:  # noqa: SIM110 - for every response; a generator costs twice as much
            if outputs[at].name != name:
                return False
        return True

    def _locate(self, outputs: Any) -> None:
        self._at = {output.name: place for place, output in enumerate(outputs)}
        if self.main not in self._at:
            raise ValueError(f"no {self.main} among {sorted(self._at)}")
        self._main_at, self._size = self._at[self.main], len(outputs)
        once = {self.input_count, *TIMES}
        self._checked = [(at, name) for name, at in self._at.items() if name not in once]

    def _learn(self, response: Any) -> None:
        """Take the prompt's count and the times; a value that cannot be read stays unknown."""
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            if output.name != self.input_count and output.name not in TIMES:
                continue
            try:
                number = first_number(output.datatype, raw) or 0
            except ValueError:
                continue
            is_count = output.name == self.input_count
            # No prompt is empty, and a time of 0 was not reached yet; NaN compares as false.
            if not 1 <= number <= (MOST if is_count else _LAST_NS):
                continue
            if is_count:
                self._prompt_tokens = int(number)
            else:
                self._times[output.name] = int(number)

    def _span_s(self, start: str, end: str) -> float | None:
        if start not in self._times or end not in self._times:
            return None
        span_s = (self._times[end] - self._times[start]) / 1e9
        return max(0.0, span_s) if span_s < _DAY_S else None


def broken(contract: str, what: str) -> ServiceError:
    """Return the fault of a response that breaks its contract; `what` is for the log."""
    return ServiceError(
        Reason.BACKEND_ERROR,
        "The inference server answered in an unexpected form.",
        detail=f"{contract}: {what[:_MOST_DETAIL]}",
    )
