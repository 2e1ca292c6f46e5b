"""Responses of the token-level contract."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import triton_python_backend_utils as pb_utils

from headrace_triton.engines import Loaded
from headrace_triton.events import EventLog
from headrace_triton.runs import Part, Run
from headrace_triton.tensors import flag, tensor

from .requests import job_from_tensors

__all__ = ["TokenRun"]


class TokenRun(Run):
    """Sends token ids; responses carry the optional tensors that were both switched on and asked for.

    A request that does not stream is answered with the prompt in front, unless it
    excludes it. Interrupted, it just ends.
    """

    has_last_content: ClassVar[bool] = False

    def __init__(self, request: Any, sender: Any, arrays: dict[str, Any], loaded: Loaded, log: EventLog) -> None:
        job = job_from_tensors(arrays, loaded)
        super().__init__(request, sender, loaded, log, job, streams=flag(arrays, "streaming"))
        self._outputs = set(request.requested_output_names())
        self._echoes = not self._streams and not flag(arrays, "exclude_input_in_output")
        self._returns_input_count = flag(arrays, "return_num_input_tokens")
        self._returns_output_count = flag(arrays, "return_num_output_tokens")
        self._returns_times = flag(arrays, "return_perf_metrics")
        self._cumulative = 0.0

    def _content(self, part: Part, *, is_last: bool) -> Any:  # noqa: ARG002
        tokens = [*self._job.prompt_ids, *part.ids] if self._echoes else part.ids
        has_logprobs = self._job.logprobs is not None
        self._cumulative += sum(part.logprobs)
        # name -> (switched on, values, type)
        table: dict[str, tuple[bool, Any, Any]] = {
            "output_ids": (True, [[tokens]], np.int32),
            "sequence_length": (True, [[len(tokens)]], np.int32),
            "cum_log_probs": (has_logprobs, [[self._cumulative]], np.float32),
            "output_log_probs": (has_logprobs, [[part.logprobs]], np.float32),
            "num_input_tokens": (self._returns_input_count, [[len(self._job.prompt_ids)]], np.int32),
            "num_output_tokens": (self._returns_output_count, [[len(part.ids)]], np.int32),
        }
        for name, value in self._times.by_name().items():
            table[name] = (self._returns_times, [[value]], np.int64)
        return pb_utils.InferenceResponse(
            output_tensors=[
                tensor(name, values, dtype)
                for name, (is_on, values, dtype) in table.items()
                if is_on and name in self._outputs
            ]
        )
