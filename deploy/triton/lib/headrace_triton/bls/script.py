"""One request of the script: its calls to the other models, and its responses.

Like the original it does not look whether the client has cancelled, so that
a cancel never reaches the engine; and the engine's request has an id that
nobody else knows, so that a `stop` does not reach it either. Only where the
caller's id is passed on is there one look, right before the engine is called:
a `stop` that came earlier has found nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .tables import ENGINE_INPUTS, ENGINE_OUTPUTS, PASSED_ON, PREPARED, PREPROCESSING_INPUTS, REFUSED

__all__ = ["Names", "responses"]


@dataclass(frozen=True)
class Names:
    """The models that are called."""

    preprocessing: str = "preprocessing"
    engine: str = "tensorrt_llm"
    postprocessing: str = "postprocessing"


def responses(
    arrays: Mapping[str, Any], child_id: str, names: Names, *, accumulates: bool, has_left: Callable[[], bool]
) -> Iterator[Any]:
    """Yield the response to every response of the engine; raises the error of a called model.

    `accumulates`: every response has the whole text so far, for one beam.
    `has_left` is asked once, right before the engine is called; where it is true the engine is not called.
    """
    for name in REFUSED:
        if name in arrays and arrays[name].any():
            raise pb_utils.TritonModelException(f"'{name}' is not supported by this model")
    prepared = _call(names.preprocessing, _renamed(arrays, PREPROCESSING_INPUTS), [*PREPARED], child_id)
    request = pb_utils.InferenceRequest(
        model_name=names.engine,
        inputs=[*_renamed(prepared, PREPARED), *_renamed(arrays, ENGINE_INPUTS)],
        requested_output_names=[*ENGINE_OUTPUTS],
        request_id=child_id,
    )
    tokens = np.zeros((1, 1, 0), np.int32)
    if has_left():
        return
    for response in request.exec(decoupled=True):
        outputs = _outputs(response)
        if not outputs:  # the final flag alone
            continue
        new = outputs["output_ids"]
        if accumulates:
            if new.shape[:2] != (1, 1):
                raise pb_utils.TritonModelException("accumulate_tokens is for one beam")
            tokens = np.concatenate((tokens, new), axis=2)
            lengths = np.array([[tokens.shape[2]]], np.int32)
        else:
            tokens, lengths = new, outputs["sequence_length"]
        text = _call(
            names.postprocessing,
            [pb_utils.Tensor("TOKENS_BATCH", tokens), pb_utils.Tensor("SEQUENCE_LENGTH", lengths)],
            ["OUTPUT"],
            "",
        )["OUTPUT"]
        passed_on = [pb_utils.Tensor(name, outputs[name]) for name in PASSED_ON if name in outputs]
        yield pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("text_output", text), *passed_on])


def _renamed(arrays: Mapping[str, Any], names: Mapping[str, str]) -> list[Any]:
    return [pb_utils.Tensor(new, arrays[old]) for old, new in names.items() if old in arrays]


def _call(model: str, inputs: list[Any], outputs: list[str], request_id: str) -> dict[str, Any]:
    request = pb_utils.InferenceRequest(
        model_name=model, inputs=inputs, requested_output_names=outputs, request_id=request_id
    )
    return _outputs(request.exec())


def _outputs(response: Any) -> dict[str, Any]:
    # Whoever goes on after an error hangs for ever: the iterator of 2.51 does not end. (It
    # only shows an error that is the engine's first response; one that comes later is lost.)
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return {item.name(): item.as_numpy() for item in response.output_tensors()}
