"""Responses of vLLM's contract."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import triton_python_backend_utils as pb_utils

from headrace_triton.engines import Loaded
from headrace_triton.events import EventLog
from headrace_triton.jobs import EngineError
from headrace_triton.runs import Part, Run
from headrace_triton.tensors import flag, string, tensor
from headrace_triton.texts import DeltaText

from .logprobs import logprobs_text
from .sampling import job_from_parameters, read_parameters

__all__ = ["VllmRun"]

_REFUSED = ("image", "embedding_request")


class VllmRun(Run):
    """Sends the new text with every response, and what its switches ask for.

    A cancel is only looked at when there is an output, so not while the request
    waits or its prompt is read; then the request ends with an error.
    """

    is_polled: ClassVar[bool] = False

    def __init__(self, request: Any, sender: Any, arrays: dict[str, Any], loaded: Loaded, log: EventLog) -> None:
        for name in _REFUSED:
            if name in arrays:
                raise EngineError(f"'{name}' is not supported by this engine")
        if "text_input" not in arrays:
            raise EngineError("text_input is missing from the request")
        streams = flag(arrays, "stream")
        excludes = flag(arrays, "exclude_input_in_output") if "exclude_input_in_output" in arrays else streams
        if streams and not excludes:
            raise EngineError("When streaming, 'exclude_input_in_output' = false is not supported")
        prompt = string(arrays, "text_input")
        text = string(arrays, "sampling_parameters") if "sampling_parameters" in arrays else request.parameters()
        job, keeps_word = job_from_parameters(prompt, read_parameters(text), loaded)
        super().__init__(request, sender, loaded, log, job, streams=streams)
        self._vocabulary = loaded.vocabulary
        self._text = DeltaText(loaded.vocabulary, job.stop_words, is_kept=keeps_word)
        self._prompt = "" if excludes else prompt
        self._on = {name for name in arrays if name.startswith("return_") and flag(arrays, name)}
        self._cumulative = 0.0

    @staticmethod
    def error(message: str) -> Any:
        """Return an error as the original words it, with its text beside it."""
        return pb_utils.InferenceResponse(
            output_tensors=[tensor("text_output", [b"N/A"], np.object_)],
            error=pb_utils.TritonError(f"Error generating stream: {message}"),
        )

    def _content(self, part: Part, *, is_last: bool) -> Any:
        # A token that ends the generation has no text.
        ids = part.ids[:-1] if self._rule.stop_id is not None and is_last and part.ids else part.ids
        text = self._prompt + self._text.take(ids, word=self._rule.word if is_last else None, is_last=is_last)
        self._cumulative += sum(part.logprobs)
        has_logprobs = self._job.logprobs is not None
        finish_reason = self._finish_reason if is_last else ""
        # Switch -> (name, value, type)
        table: dict[str, tuple[str, Any, Any]] = {
            "return_finish_reason": ("finish_reason", (finish_reason or "None").encode(), np.object_),
            "return_cumulative_logprob": (
                "cumulative_logprob",
                self._cumulative if has_logprobs else math.nan,
                np.float32,
            ),
            "return_logprobs": (
                "logprobs",
                logprobs_text(part, self._vocabulary).encode() if has_logprobs else b"null",
                np.object_,
            ),
            "return_num_input_tokens": ("num_input_tokens", len(self._job.prompt_ids), np.uint32),
            "return_num_output_tokens": ("num_output_tokens", len(part.ids), np.uint32),
        }
        return pb_utils.InferenceResponse(
            output_tensors=[
                tensor("text_output", [text.encode()], np.object_),
                *(tensor(name, [value], dtype) for switch, (name, value, dtype) in table.items() if switch in self._on),
            ]
        )

    def _interrupted(self) -> Any | None:
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
        )
