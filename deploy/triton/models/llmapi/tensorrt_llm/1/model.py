"""tensorrt_llm of the LLM API: text in, the whole text so far out, one response per step of the engine.

The contract of TensorRT-LLM's LLM API model on another engine.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "lib"))

from headrace_triton.engine_model import EngineModel
from headrace_triton.llmapi.runs import LlmApiRun
from headrace_triton.runs import FINAL


class TritonPythonModel(EngineModel):
    """A `stop` request with the same id ends a generation at once; a cancel is looked for by a thread."""

    run_type = LlmApiRun
    is_batched = False
    stop_without_id = "A request id must be provided for request cancellation"

    def _answer_stop(self, sender):
        """Answer with the error that the original answers a stop with, whether it found something or not."""
        sender.send(LlmApiRun.cancelled(), flags=FINAL)
