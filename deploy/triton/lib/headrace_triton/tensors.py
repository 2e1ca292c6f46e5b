"""Tensors of one request in and out, for models whose first dimension is the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .jobs import EngineError

__all__ = ["flag", "inputs_by_name", "scalar", "string", "tensor"]


def inputs_by_name(request: Any) -> dict[str, Any]:
    """Return the request's tensors as arrays; EngineError for a batch of more than one."""
    arrays = {item.name(): item.as_numpy() for item in request.inputs()}
    for name, array in arrays.items():
        if array.shape[0] != 1:
            raise EngineError(f"batch size 1 is supported, '{name}' has {array.shape[0]}")
    return arrays


def scalar(arrays: dict[str, Any], name: str, default: Any = None) -> Any:
    """Return the only element of a tensor as a Python value, or the default where it was not sent."""
    array = arrays.get(name)
    return default if array is None else array.reshape(-1)[0].item()


def flag(arrays: dict[str, Any], name: str) -> bool:
    """Return the only element of a BOOL tensor, False where it was not sent."""
    return bool(scalar(arrays, name))


def string(arrays: dict[str, Any], name: str) -> str:
    """Return the only element of a STRING tensor; EngineError when it is not UTF-8."""
    array = arrays.get(name)
    if array is None or array.size == 0:
        return ""
    value = array.reshape(-1)[0]
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise EngineError(f"'{name}' is not valid UTF-8") from None


def tensor(name: str, values: list[Any], dtype: Any) -> Any:
    """Return an output tensor; `values` has the batch dimension already."""
    return pb_utils.Tensor(name, np.array(values, dtype=dtype))
