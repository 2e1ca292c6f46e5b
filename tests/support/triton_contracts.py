"""What tests of the tensor contracts share: models by their tensors, requests read back, responses built.

Tensors are encoded and decoded by numpy and tritonclient, and never by the code under test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from service.backends.base import EngineRequest
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import TensorSpec
from service.core.deadline import Deadline
from service.core.request import Sampling

__all__ = ["LLMAPI", "VLLM", "engine_request", "model", "output", "response", "sent", "shapes", "without"]

DTYPES = {
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP32": np.float32,
}


def model(inputs: str, outputs: str, **facts: Any) -> ModelFacts:
    """Return a model without a batch dimension. One tensor a line: name, datatype, dimension, `!` if required."""

    def specs(lines: str) -> dict[str, TensorSpec]:
        rows = [line.split() for line in lines.strip().splitlines()]
        return {
            name: TensorSpec(
                name=name, datatype=datatype, dims=(int(dim),), is_optional="!" not in rest, is_batched=False
            )
            for name, datatype, dim, *rest in rows
        }

    return ModelFacts(name="model", inputs=specs(inputs), outputs=specs(outputs), **facts)


# As TensorRT-LLM's triton_backend/all_models/llmapi ships it.
LLMAPI = model(
    """
    text_input BYTES -1 !
    image_url BYTES -1
    streaming BOOL 1
    sampling_param_best_of INT32 1
    sampling_param_temperature FP32 1
    sampling_param_top_k INT32 1
    sampling_param_top_p FP32 1
    sampling_param_frequency_penalty FP32 1
    sampling_param_presence_penalty FP32 1
    sampling_param_max_tokens INT32 1
    sampling_param_stop BYTES -1
    sampling_param_seed UINT64 1
    sampling_param_exclude_input_from_output BOOL 1
    sampling_param_return_perf_metrics BOOL 1
    return_finish_reason BOOL 1
    return_stop_reason BOOL 1
    return_cumulative_logprob BOOL 1
    stop BOOL 1
    lora_id UINT64 1
    lora_name BYTES 1
    lora_path BYTES 1
    lora_ckpt_source BYTES 1
    """,
    """
    text_output BYTES -1
    finish_reason BYTES -1
    stop_reason BYTES -1
    cumulative_logprob FP32 -1
    arrival_time_ns INT64 1
    first_scheduled_time_ns INT64 1
    first_token_time_ns INT64 1
    last_token_time_ns INT64 1
    """,
)
# As Triton's vLLM backend completes every model's configuration.
VLLM = model(
    """
    text_input BYTES 1 !
    image BYTES -1
    stream BOOL 1
    sampling_parameters BYTES 1
    exclude_input_in_output BOOL 1
    return_finish_reason BOOL 1
    return_cumulative_logprob BOOL 1
    return_logprobs BOOL 1
    return_num_input_tokens BOOL 1
    return_num_output_tokens BOOL 1
    embedding_request BYTES 1
    """,
    """
    text_output BYTES -1
    finish_reason BYTES -1
    cumulative_logprob FP32 -1
    logprobs BYTES -1
    num_input_tokens UINT32 1
    num_output_tokens UINT32 -1
    """,
)


def without(facts: ModelFacts, *names: str) -> ModelFacts:
    """Return the model without some of its tensors."""
    return replace(
        facts,
        inputs={name: spec for name, spec in facts.inputs.items() if name not in names},
        outputs={name: spec for name, spec in facts.outputs.items() if name not in names},
    )


def engine_request(sampling: Mapping[str, Any] | None = None, **fields: Any) -> EngineRequest:
    """Return a small request, with some fields of its own."""
    given = {
        "request_id": "r",
        "prompt": "Hi",
        "deadline": Deadline.after(1),
        "sampling": Sampling(**{"max_output_tokens": 5, "seed": 1, **(sampling or {})}),
        **fields,
    }
    return EngineRequest(**given)


def sent(message: Any) -> dict[str, list[Any]]:
    """Return the tensors of a request by name."""
    result = {}
    for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            result[tensor.name] = [item.decode() for item in deserialize_bytes_tensor(raw)]
        else:
            result[tensor.name] = np.frombuffer(raw, DTYPES[tensor.datatype]).tolist()
        assert np.prod(tensor.shape) == len(result[tensor.name])
    return result


def shapes(message: Any) -> dict[str, list[int]]:
    """Return the shapes of a request's tensors by name."""
    return {tensor.name: list(tensor.shape) for tensor in message.inputs}


def output(value: bytes | str | float, datatype: str | None = None) -> tuple[str, bytes]:
    """Return datatype and contents of an output with one element; text is BYTES, a number INT32 unless told."""
    if isinstance(value, (bytes, str)):
        data = value.encode() if isinstance(value, str) else value
        return "BYTES", serialize_byte_tensor(np.array([data], dtype=np.object_)).item()
    datatype = datatype or "INT32"
    return datatype, np.array([value], DTYPES[datatype]).tobytes()


def response(**outputs: tuple[str, bytes]) -> Any:
    """Return a response with these outputs, in this order."""
    message = service_pb2.ModelInferResponse()
    for name, (datatype, raw) in outputs.items():
        message.outputs.add(name=name, datatype=datatype, shape=[1])
        message.raw_output_contents.append(raw)
    return message
