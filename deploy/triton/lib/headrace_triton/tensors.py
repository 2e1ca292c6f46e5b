"""Tensors of one request in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .jobs import EngineError

__all__ = ["flag", "inputs_by_name", "only", "scalar", "string", "tensor"]


def inputs_by_name(request: Any, *, is_batched: bool = True) -> dict[str, Any]:
    """Return the request's tensors as arrays; EngineError for a batch of more than one.

    `is_batched` says whether the first dimension is the batch.
    """
    arrays = {item.name(): item.as_numpy() for item in request.inputs()}
    if is_batched:
        for name, array in arrays.items():
            if array.shape[0] != 1:
                raise EngineError(f"batch size 1 is supported, '{name}' has {array.shape[0]}")
    return arrays


def only(arrays: dict[str, Any], name: str) -> Any:
    """Return the only element of a tensor, None where it was not sent; EngineError where it has several or none."""
    array = arrays.get(name)
    if array is None:
        return None
    if array.size != 1:
        raise EngineError(f"'{name}' must have one element, it has {array.size}")
    return array.reshape(-1)[0]


def scalar(arrays: dict[str, Any], name: str, default: Any = None) -> Any:
    """Return the only element of a tensor as a Python value, or the default where it was not sent."""
    value = only(arrays, name)
    return default if value is None else value.item()


def flag(arrays: dict[str, Any], name: str) -> bool:
    """Return the only element of a BOOL tensor, False where it was not sent."""
    return bool(scalar(arrays, name))


def string(arrays: dict[str, Any], name: str) -> str:
    """Return the only element of a STRING tensor, "" where it was not sent; EngineError when it is not UTF-8."""
    value = only(arrays, name)
    if value is None:
        return ""
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise EngineError(f"'{name}' is not valid UTF-8") from None


def tensor(name: str, values: Any, dtype: Any) -> Any:
    """Return an output tensor; where the model has a batch dimension, `values` has it already."""
    return pb_utils.Tensor(name, np.array(values, dtype=dtype))
