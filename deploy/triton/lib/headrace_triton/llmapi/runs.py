"""Responses of the LLM API model."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from headrace_triton.engines import Loaded
from headrace_triton.events import EventLog
from headrace_triton.runs import Part, Run
from headrace_triton.tensors import flag, string, tensor
from headrace_triton.texts import WholeText

from .requests import job_from_tensors

__all__ = ["CANCELLED", "LlmApiRun"]

CANCELLED = "Request cancelled by client"


class LlmApiRun(Run):
    """Sends the whole text so far with every response, and how it ended where that is asked for.

    Every optional output is a STRING tensor, whatever the model's configuration
    says: so does the original. A cancelled request ends with an error, a stopped
    one with the finish reason "cancelled".
    """

    def __init__(self, request: Any, sender: Any, arrays: dict[str, Any], loaded: Loaded, log: EventLog) -> None:
        job = job_from_tensors(arrays, loaded)
        super().__init__(request, sender, loaded, log, job, streams=flag(arrays, "streaming"))
        self._text = WholeText(loaded.vocabulary)
        echoes = not self._streams and not flag(arrays, "sampling_param_exclude_input_from_output")
        self._prompt = string(arrays, "text_input") if echoes else ""
        self._returns_finish_reason = flag(arrays, "return_finish_reason")
        self._returns_stop_reason = flag(arrays, "return_stop_reason")
        self._returns_logprob = flag(arrays, "return_cumulative_logprob")
        self._returns_times = flag(arrays, "sampling_param_return_perf_metrics")
        self._cumulative = 0.0

    @staticmethod
    def error(message: str) -> Any:
        """Return an error as the original words it, with its text beside it."""
        return pb_utils.InferenceResponse(
            output_tensors=[tensor("text_output", [b"N/A"], np.object_)],
            error=pb_utils.TritonError(f"Error generating request: {message}"),
        )

    @staticmethod
    def cancelled() -> Any:
        """Return the answer to a cancelled request, and to a `stop`."""
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(CANCELLED, pb_utils.TritonError.CANCELLED))

    def _content(self, part: Part, *, is_last: bool) -> Any:
        word = self._rule.word if is_last else None
        text = self._prompt + self._text.take(part.ids, word=word, is_last=is_last)
        self._cumulative += sum(part.logprobs)
        finish_reason = self._finish_reason if is_last else ""
        stop_reason = "" if word is None else word.decode()
        # name -> (switched on, value)
        table: dict[str, tuple[bool, str]] = {
            "text_output": (True, text),
            "finish_reason": (self._returns_finish_reason, finish_reason or "None"),
            "stop_reason": (self._returns_stop_reason, stop_reason or "None"),
            "cumulative_logprob": (self._returns_logprob, str(self._cumulative)),
        }
        for name, value in self._times.by_name().items():
            table[name] = (self._returns_times, str(value))
        return pb_utils.InferenceResponse(
            output_tensors=[
                tensor(name, [value.encode()], np.object_) for name, (is_on, value) in table.items() if is_on
            ]
        )

    def _interrupted(self) -> Any | None:
        if self._interruption == "cancel_seen":
            return self.cancelled()
        self._finish_reason = "cancelled"
        return self._content(Part() if self._streams else self._whole, is_last=True)
