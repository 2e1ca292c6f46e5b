"""tensorrt_llm: token ids in, token ids out, one response per token.

The contract of TensorRT-LLM's engine model on another engine. `execute`
returns at once and every request runs in a thread of a bounded pool, so a
`stop` request is answered while generations run.
"""

import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "lib"))

from headrace_triton.events import EventLog
from headrace_triton.gguf import read_metadata
from headrace_triton.jobs import EngineError
from headrace_triton.llamacpp import LlamaEngine, model_path
from headrace_triton.runs import Run
from headrace_triton.scripted import ScriptedEngine
from headrace_triton.settings import load_settings
from headrace_triton.tensors import flag, inputs_by_name
from headrace_triton.vocabulary import byte_vocabulary, vocabulary_from_metadata

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """One instance only: a stop has to reach the instance that runs the request."""

    def initialize(self, args):
        """Load the engine and open the event log."""
        settings = load_settings(args)
        if settings.engine == "scripted":
            self._vocabulary = byte_vocabulary()
            self._engine = ScriptedEngine(settings)
        else:
            self._vocabulary = vocabulary_from_metadata(read_metadata(model_path(settings)))
            self._engine = LlamaEngine(settings, self._vocabulary)
        self._log = EventLog(settings.event_log)
        self._capacity = settings.slots + settings.max_queue_size
        self._pool = ThreadPoolExecutor(settings.slots, thread_name_prefix="generation")
        self._lock = threading.Lock()
        self._runs = defaultdict(list)
        self._count = 0

    def execute(self, requests):
        """Start or stop generations and return at once."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                arrays = inputs_by_name(request)
                if flag(arrays, "stop"):
                    self._stop(request.request_id())
                    sender.send(flags=_FINAL)
                else:
                    self._start(request, sender, arrays)
            except Exception as error:
                message = str(error) if isinstance(error, EngineError) else f"the request failed: {error}"
                self._log.write("refused", request.request_id(), message=message)
                # Error and final flag in one message: apart, they can crash servers before 2.68.
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message)), flags=_FINAL)

    def finalize(self):
        """Stop every generation and wait for its thread."""
        with self._lock:
            for runs in self._runs.values():
                for run in runs:
                    run.stop()
        self._pool.shutdown(wait=True)
        self._log.close()

    def _start(self, request, sender, arrays):
        run = Run(request, sender, arrays, self._vocabulary, self._log)
        with self._lock:
            if self._count >= self._capacity:
                raise EngineError(f"[request id: {request.request_id()}] Exceeds maximum queue size")
            self._count += 1
            self._runs[run.request_id].append(run)
        self._pool.submit(self._carry_out, run)

    def _carry_out(self, run):
        try:
            run.carry_out(self._engine)
        finally:
            with self._lock:
                self._count -= 1
                runs = self._runs[run.request_id]
                runs.remove(run)
                if not runs:
                    del self._runs[run.request_id]

    def _stop(self, request_id):
        if not request_id:
            raise EngineError("Trying to stop a request but request ID is not provided")
        with self._lock:
            runs = list(self._runs.get(request_id, ()))
            for run in runs:
                run.stop()
        self._log.write("stop", request_id, stopped=len(runs))
