"""One running generation: its responses, its counts and its end."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .events import EventLog
from .jobs import Engine, EngineError, Step
from .requests import job_from_tensors
from .stopping import StopRule
from .tensors import flag, tensor
from .vocabulary import Vocabulary

__all__ = ["Run"]

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Run:
    """Lives from `execute` to the final response, which is sent in every case.

    The final flag rides on the last content where the engine knows it is the
    last, as in TensorRT-LLM. Responses carry the optional tensors that were
    both switched on and asked for.
    """

    def __init__(
        self, request: Any, sender: Any, arrays: dict[str, Any], vocabulary: Vocabulary, log: EventLog
    ) -> None:
        self.request_id = request.request_id()
        self._sender = sender
        self._outputs = set(request.requested_output_names())
        self._job = job_from_tensors(arrays, vocabulary)
        self._rule = StopRule(vocabulary, self._job.max_tokens, self._job.stop_words)
        self._streams = flag(arrays, "streaming")
        self._echoes = not self._streams and not flag(arrays, "exclude_input_in_output")
        self._returns_input_count = flag(arrays, "return_num_input_tokens")
        self._returns_output_count = flag(arrays, "return_num_output_tokens")
        self._returns_times = flag(arrays, "return_perf_metrics")
        self._log = log
        self._is_stopped = self._is_sent = False
        self._ending = ""
        self._arrival_ns = time.monotonic_ns()
        self._first_ns = self._scheduled_ns = 0
        self._cumulative = 0.0
        # A request that does not stream is answered once, with everything.
        self._whole: list[int] = []
        self._whole_logprobs: list[float] = []

    def stop(self) -> None:
        """Ask the generation to end; seen at the next token."""
        self._is_stopped = True

    def carry_out(self, engine: Engine) -> None:
        """Generate and send; never raises, and always sends the final flag."""
        self._log.write("start", self.request_id)
        error: str | None = None
        try:
            if not self._is_interrupted():
                engine.generate(self._job, self._on_step)
        except EngineError as failure:
            error = str(failure)
        except Exception as failure:  # a thread that dies silently leaves the client waiting for ever
            error = f"the engine failed: {failure}"
        reason = error or self._ending or "end"
        self._log.write("end", self.request_id, tokens=self._rule.count, reason=reason)
        try:
            self._finish(error)
        except Exception as failure:
            pb_utils.Logger.log_error(f"request {self.request_id}: the final response was not sent: {failure}")

    def _finish(self, error: str | None) -> None:
        if self._is_sent:
            return
        if error is not None:
            self._sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error)), flags=_FINAL)
        elif self._streams or not self._whole or self._ending:
            self._sender.send(flags=_FINAL)
        else:
            self._sender.send(self._response(self._whole, self._whole_logprobs), flags=_FINAL)

    def _on_step(self, step: Step | None) -> bool:
        if self._is_interrupted():
            return True
        if step is None:
            return False
        ids, is_done = self._rule.take(step.ids)
        is_done = is_done or step.is_last
        if ids:
            self._log.write("tokens", self.request_id, n=self._rule.count)
            if not self._first_ns:
                self._first_ns = time.monotonic_ns()
                self._scheduled_ns = max(self._arrival_ns, self._first_ns - int(step.prompt_s * 1e9))
            if self._streams:
                flags = _FINAL if is_done else 0
                self._sender.send(self._response(ids, step.logprobs[: len(ids)]), flags=flags)
                self._is_sent = is_done
            else:
                self._whole += ids
                self._whole_logprobs += step.logprobs[: len(ids)]
        return is_done

    def _is_interrupted(self) -> bool:
        if self._ending or self._is_sent:
            return True
        if self._is_stopped:
            self._ending = "stop_seen"
        elif self._sender.is_cancelled():
            self._ending = "cancel_seen"
        return bool(self._ending)

    def _response(self, ids: list[int], logprobs: list[float]) -> Any:
        prompt = list(self._job.prompt_ids) if self._echoes else []
        tokens = prompt + ids
        now_ns = time.monotonic_ns()
        self._cumulative += sum(logprobs)
        # name -> (switched on, values, type)
        table = {
            "output_ids": (True, [[tokens]], np.int32),
            "sequence_length": (True, [[len(tokens)]], np.int32),
            "cum_log_probs": (self._job.logprobs, [[self._cumulative]], np.float32),
            "output_log_probs": (self._job.logprobs, [[logprobs]], np.float32),
            "num_input_tokens": (self._returns_input_count, [[len(self._job.prompt_ids)]], np.int32),
            "num_output_tokens": (self._returns_output_count, [[len(ids)]], np.int32),
            "arrival_time_ns": (self._returns_times, [[self._arrival_ns]], np.int64),
            "first_scheduled_time_ns": (self._returns_times, [[self._scheduled_ns]], np.int64),
            "first_token_time_ns": (self._returns_times, [[self._first_ns]], np.int64),
            "last_token_time_ns": (self._returns_times, [[now_ns]], np.int64),
        }
        return pb_utils.InferenceResponse(
            output_tensors=[
                tensor(name, values, dtype)
                for name, (is_on, values, dtype) in table.items()
                if is_on and name in self._outputs
            ]
        )
