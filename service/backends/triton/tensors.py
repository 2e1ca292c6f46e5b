"""Tensors on Triton's wire: raw little-endian bytes, with the first dimension as batch.

The codec knows shapes and datatypes, and no tensor by name.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "UNWRITABLE",
    "TensorSpec",
    "add_input",
    "first_number",
    "floats",
    "integers",
    "neutral_values",
    "single_bytes",
    "to_uint64",
]

# Datatype on the wire -> format character of `struct`.
_FORMATS: Final = {
    "BOOL": "?",
    "INT8": "b",
    "UINT8": "B",
    "INT16": "h",
    "UINT16": "H",
    "INT32": "i",
    "UINT32": "I",
    "INT64": "q",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
# What `add_input` raises for a value that does not fit the tensor that the model declares.
UNWRITABLE: Final = (struct.error, KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError)
# One element each, for what is read from every response.
_ONE: Final = {datatype: struct.Struct(f"<{layout}") for datatype, layout in _FORMATS.items()}
_INTEGERS: Final = {datatype: one for datatype, one in _ONE.items() if "INT" in datatype}
_FLOATS: Final = {datatype: one for datatype, one in _ONE.items() if "FP" in datatype}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output as the model's configuration lists it.

    `datatype` is the wire's name ("BYTES", "INT32"); `dims` has no batch
    dimension; `is_batched` says whether the wire has one.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    is_optional: bool = False
    is_batched: bool = True


def add_input(request: Any, spec: TensorSpec, values: Sequence[Any]) -> None:
    """Append one tensor to a ModelInferRequest: a single batch entry, one variable dimension.

    Strings are sent as UTF-8 with Triton's four-byte length in front. Raises
    struct.error for a number that does not fit the datatype.
    """
    lead = (1,) if spec.is_batched else ()
    fixed = len(spec.dims) - 1
    if len(spec.dims) == 1 or all(dim == 1 for dim in spec.dims):
        shape = (*lead, *([1] * fixed), len(values))
    else:
        shape = (*lead, *(dim if dim > 0 else 1 for dim in spec.dims))
    request.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
    request.raw_input_contents.append(_encode(spec.datatype, values))


def neutral_values(spec: TensorSpec) -> list[Any]:
    """Return zeros (or empty strings) that fill the smallest tensor of this shape."""
    count = 1
    for dim in spec.dims:
        count *= max(dim, 1)
    return ["" if spec.datatype == "BYTES" else 0] * count


def single_bytes(raw: bytes) -> bytes:
    """Return the one element of a BYTES tensor; empty for an empty tensor.

    Raises ValueError when the length in front does not match the data, and for
    more elements (a batch, several beams), as nobody would read them.
    """
    if not raw:
        return b""
    if len(raw) < 4:
        raise ValueError(f"a BYTES tensor of {len(raw)} bytes has no length")
    end = 4 + int.from_bytes(raw[:4], "little")
    if end != len(raw):
        raise ValueError(f"a BYTES tensor of {len(raw)} bytes is not one element of {end - 4} bytes")
    return raw[4:end]


def first_number(datatype: str, raw: bytes) -> int | float | None:
    """Return the first element of a numeric tensor, or None for an empty one.

    `datatype` comes from the response, since models do not always send what
    they declare; a count sent as BYTES is read as decimal text. Raises
    ValueError for what is no number.
    """
    if not raw:
        return None
    if datatype == "BYTES":
        return float(single_bytes(raw))
    one = _ONE.get(datatype)
    if one is None or len(raw) < one.size:
        raise ValueError(f"no number in a {datatype} tensor of {len(raw)} bytes")
    number: int | float = one.unpack_from(raw)[0]
    return number


def floats(datatype: str, raw: bytes) -> tuple[float, ...]:
    """Return the elements of a tensor of the response's datatype; ValueError for one without floating point."""
    return _all(_FLOATS, datatype, raw)


def integers(datatype: str, raw: bytes) -> tuple[int, ...]:
    """Return the elements of a tensor of the response's datatype; ValueError for one without integers."""
    return _all(_INTEGERS, datatype, raw)


def to_uint64(value: int) -> int:
    """Return a signed 64-bit value as the unsigned one with the same bits."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


def _all(known: dict[str, struct.Struct], datatype: str, raw: bytes) -> tuple[Any, ...]:
    one = known.get(datatype)
    if one is None:
        raise ValueError(f"{datatype} where {', '.join(known)} could be read")
    count, rest = divmod(len(raw), one.size)
    if rest:
        raise ValueError(f"a {datatype} tensor of {len(raw)} bytes is no whole number of elements")
    return one.unpack(raw) if count == 1 else struct.unpack(f"<{count}{_FORMATS[datatype]}", raw)


def _encode(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        elements = (value.encode() if isinstance(value, str) else value for value in values)
        return b"".join(struct.pack("<I", len(element)) + element for element in elements)
    return struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)
