"""tensorrt_llm_bls: text in, text out, by a script that calls the other three models.

The contract and the habits of TensorRT-LLM's business logic script.
"""

import json
import sys
import traceback
import uuid
from pathlib import Path

import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "lib"))

from headrace_triton.bls.script import Names, responses
from headrace_triton.events import EventLog
from headrace_triton.settings import load_settings
from headrace_triton.tensors import inputs_by_name

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """An instance runs one request at a time, from its first to its last response."""

    def initialize(self, args):
        """Read the parameters."""
        settings = load_settings(args)
        parameters = {
            name: value["string_value"] for name, value in json.loads(args["model_config"])["parameters"].items()
        }
        self._names = Names(
            parameters.get("preprocessing_model_name") or Names.preprocessing,
            parameters.get("tensorrt_llm_model_name") or Names.engine,
            parameters.get("postprocessing_model_name") or Names.postprocessing,
        )
        self._accumulates = parameters.get("accumulate_tokens") == "true"
        self._forwards_id = settings.forward_request_id == "true"
        self._log = EventLog(settings.event_log)

    def execute(self, requests):
        """Run every request to its end, one after another."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._run(request, sender)
            except Exception:
                # The whole traceback, as the original: this is what its clients have to read.
                error = pb_utils.TritonError(traceback.format_exc())
                sender.send(pb_utils.InferenceResponse(error=error))
            sender.send(flags=_FINAL)

    def finalize(self):
        """Close the event log."""
        self._log.close()

    def _run(self, request, sender):
        child_id = request.request_id() if self._forwards_id else str(uuid.uuid4())
        self._log.write("call", request.request_id(), child=child_id)

        def has_left():
            if not self._forwards_id or not sender.is_cancelled():
                return False
            self._log.write("end", request.request_id(), tokens=0, reason="cancel_seen")
            return True

        arrays = inputs_by_name(request)
        for response in responses(arrays, child_id, self._names, accumulates=self._accumulates, has_left=has_left):
            sender.send(response)
