"""The model.py of tensorrt_llm_bls: whether it looks for a cancel, against a stand-in for Triton's own module."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.triton_fake import MODELS
from tests.support.triton_parts import LIB

assert LIB
MODEL = MODELS / "inflight_batcher_llm" / "tensorrt_llm_bls" / "1" / "model.py"
NEED_TRITON = ("headrace_triton.bls.script", "headrace_triton.tensors")


class Tensor:
    def __init__(self, name: str, values: Any) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._values


class Response:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: str = "") -> None:
        self._tensors, self.message = output_tensors, error

    def output_tensors(self) -> Sequence[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return False


class Triton:
    """The three models that the script calls; their calls in order, by name and request id."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.after_preprocessing: Callable[[], None] = lambda: None

    def module(self) -> ModuleType:
        triton = self

        class Request:
            def __init__(self, model_name: str, request_id: str, **_: Any) -> None:
                self._model, self._id = model_name, request_id

            def exec(self, decoupled: bool = False) -> Any:
                triton.calls.append((self._model, self._id))
                if self._model == "preprocessing":
                    triton.after_preprocessing()
                if decoupled:
                    shape = np.zeros((1, 1, 1), np.int32)
                    return iter([Response([Tensor("output_ids", shape), Tensor("sequence_length", shape[0])])])
                return Response([Tensor("OUTPUT", np.array([b"text"]))])

        module = ModuleType("triton_python_backend_utils")
        module.__dict__.update(
            InferenceRequest=Request,
            InferenceResponse=Response,
            Tensor=Tensor,
            TritonError=str,
            TritonModelException=RuntimeError,
            TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
        )
        return module


class Sender:
    def __init__(self) -> None:
        self.has_cancelled = False
        self.looks = 0
        self.sent: list[Any] = []

    def send(self, response: Any = None, flags: int = 0) -> None:
        self.sent.append("final" if flags else response)

    def is_cancelled(self) -> bool:
        self.looks += 1
        return self.has_cancelled


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[Triton]:
    """Stand in for Triton; the modules that import it are not kept."""
    triton = Triton()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton.module())
    yield triton
    for name in NEED_TRITON:
        sys.modules.pop(name, None)


def run(sender: Sender, events: Path, *, forwards_id: bool) -> list[dict[str, Any]]:
    """Run one request with the id "mine" and return the event log."""
    spec = importlib.util.spec_from_file_location("bls_model", MODEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parameters = {"forward_request_id": str(forwards_id).lower(), "event_log": str(events)}
    config = {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    model = module.TritonPythonModel()
    model.initialize({"model_config": json.dumps(config)})
    request = SimpleNamespace(
        request_id=lambda: "mine",
        get_response_sender=lambda: sender,
        inputs=lambda: [Tensor("text_input", np.array([[b"hello"]]))],
    )
    model.execute([request])
    model.finalize()
    return [json.loads(line) for line in events.read_text().splitlines()]


def test_a_request_that_was_left_before_the_engine_is_called_ends_there(triton: Triton, tmp_path: Path) -> None:
    sender = Sender()
    triton.after_preprocessing = lambda: setattr(sender, "has_cancelled", True)
    events = run(sender, tmp_path / "events", forwards_id=True)
    assert triton.calls == [("preprocessing", "mine")]
    assert sender.sent == ["final"]
    assert [event["event"] for event in events] == ["call", "end"]
    assert events[1] | {"t": 0} == {"t": 0, "event": "end", "id": "mine", "tokens": 0, "reason": "cancel_seen"}


def test_a_request_that_nobody_left_calls_the_engine_with_its_own_id(triton: Triton, tmp_path: Path) -> None:
    sender = Sender()
    events = run(sender, tmp_path / "events", forwards_id=True)
    assert triton.calls == [("preprocessing", "mine"), ("tensorrt_llm", "mine"), ("postprocessing", "")]
    assert sender.looks == 1
    content, final = sender.sent
    assert [tensor.as_numpy().tolist() for tensor in content.output_tensors()] == [[b"text"]]
    assert final == "final"
    assert [event["event"] for event in events] == ["call"]


def test_without_the_id_passed_on_nobody_looks_for_a_cancel(triton: Triton, tmp_path: Path) -> None:
    sender = Sender()
    sender.has_cancelled = True
    run(sender, tmp_path / "events", forwards_id=False)
    assert [model for model, _ in triton.calls] == ["preprocessing", "tensorrt_llm", "postprocessing"]
    assert "mine" not in {child for _, child in triton.calls}
    assert sender.looks == 0
