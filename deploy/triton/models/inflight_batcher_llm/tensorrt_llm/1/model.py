"""tensorrt_llm: token ids in, token ids out, one response per step of the engine.

The contract of TensorRT-LLM's engine model on another engine.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "lib"))

from headrace_triton.engine_model import EngineModel
from headrace_triton.tensorrt.runs import TokenRun


class TritonPythonModel(EngineModel):
    """A `stop` request with the same id ends a generation at once; a cancel is looked for by a thread."""

    run_type = TokenRun
    is_batched = True
    stop_without_id = "Trying to stop a request but request ID is not provided"
