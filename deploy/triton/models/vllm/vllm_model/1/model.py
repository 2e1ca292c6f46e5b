"""vllm_model: text and JSON in, the new text out, one response per step of the engine.

The contract of Triton's vLLM backend on another engine.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "lib"))

from headrace_triton.engine_model import EngineModel
from headrace_triton.vllm.runs import VllmRun


class TritonPythonModel(EngineModel):
    """There is no `stop` request, and a cancel is only looked at when there is an output."""

    run_type = VllmRun
    is_batched = False
