"""Reads the metadata of a GGUF file: the key/value block, nothing of the weights.

Format: the GGUF specification, version 2 and 3, little endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

__all__ = ["read_metadata"]

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING = 8
_ARRAY = 9


def read_metadata(path: str) -> dict[str, Any]:
    """Return every key of the file; strings as bytes, arrays as lists.

    Raises ValueError for a file that is not GGUF 2 or 3.
    """
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        version, _tensors, pairs = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, 3):
            raise ValueError(f"{path} is GGUF version {version}; 2 and 3 are read")
        at = 24
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key, at = _value(data, at, _STRING)
            (kind,) = struct.unpack_from("<I", data, at)
            metadata[key.decode()], at = _value(data, at + 4, kind)
        return metadata


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind in _SCALARS:
        layout = _SCALARS[kind]
        return struct.unpack_from(layout, data, at)[0], at + struct.calcsize(layout)
    if kind == _STRING:
        (size,) = struct.unpack_from("<Q", data, at)
        return data[at + 8 : at + 8 + size], at + 8 + size
    if kind != _ARRAY:
        raise ValueError(f"unknown GGUF value type {kind}")
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in _SCALARS:
        layout = f"<{count}{_SCALARS[inner][1]}"
        return list(struct.unpack_from(layout, data, at)), at + struct.calcsize(layout)
    values = []
    for _ in range(count):
        value, at = _value(data, at, inner)
        values.append(value)
    return values, at
