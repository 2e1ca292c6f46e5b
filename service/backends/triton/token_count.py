"""Asks the ensemble's own tokenizer model how long a prompt is."""

from __future__ import annotations

from typing import Any, Final

from tritonclient.grpc import service_pb2

from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import add_input, first_number, neutral_values
from service.backends.triton.values import to_count

__all__ = ["count_tokens"]

_QUERY: Final = "QUERY"
_LENGTH: Final = "REQUEST_INPUT_LEN"


async def count_tokens(stub: Any, tokenizer: ModelFacts | None, text: str, timeout_s: float) -> int | None:
    """Return the prompt's length in tokens, with the special tokens that the model adds.

    None where there is no such model, or one with other tensors, and when its
    answer cannot be a count. Raises grpc.aio.AioRpcError when it fails.
    """
    if tokenizer is None or _QUERY not in tokenizer.inputs or _LENGTH not in tokenizer.outputs:
        return None
    request = service_pb2.ModelInferRequest(model_name=tokenizer.name)
    add_input(request, tokenizer.inputs[_QUERY], [text])
    for name in sorted(tokenizer.required - {_QUERY}):
        spec = tokenizer.inputs[name]
        add_input(request, spec, neutral_values(spec))
    request.outputs.add(name=_LENGTH)
    response = await stub.ModelInfer(request, timeout=timeout_s)
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.name == _LENGTH:
            try:
                number = first_number(output.datatype, raw)
                return None if number is None else to_count(number)
            except ValueError:
                return None
    return None
