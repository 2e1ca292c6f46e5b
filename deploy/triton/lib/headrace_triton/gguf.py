"""Reads the metadata of a GGUF file: the key/value block, nothing of the weights.

Format: the GGUF specification, version 2 and 3, little endian. A file may be
cut off or hold anything: every size is checked before it is used.
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

    Raises ValueError that names the file when it is not GGUF 2 or 3, is cut off
    or damaged, or has an array of arrays; OSError when it cannot be opened.
    """
    # Before it is opened: that waits for ever on a pipe.
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path} is not a regular file")
    with Path(path).open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).metadata()
            except ValueError as error:
                raise ValueError(f"{path} cannot be read as GGUF: {error}") from None


class _Reader:
    """A place in the file; what is read next starts there."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4  # behind the magic bytes

    def metadata(self) -> dict[str, Any]:
        version, _tensors, pairs = self._unpack("<IQQ")
        if version not in (2, 3):
            raise ValueError(f"version {version}; 2 and 3 are read")
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            at = self._at
            try:
                key = self._string().decode()
            except UnicodeDecodeError:
                raise ValueError(f"the key at byte {at} is not UTF-8") from None
            metadata[key] = self._value(*self._unpack("<I"))
        return metadata

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(*self._unpack("<IQ"))
        return self._unpack(self._layout(kind))[0]

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind == _ARRAY:
            raise ValueError(f"an array of arrays at byte {self._at}, which no key has")
        layout = self._layout(kind)
        start = self._take(count * struct.calcsize(layout))
        return list(struct.unpack_from(f"<{count}{layout[1]}", self._data, start))

    def _string(self) -> bytes:
        (size,) = self._unpack("<Q")
        start = self._take(size)
        return self._data[start : start + size]

    def _layout(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind} before byte {self._at}")
        return _SCALARS[kind]

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack_from(layout, self._data, self._take(struct.calcsize(layout)))

    def _take(self, size: int) -> int:
        """Go on by `size` bytes, which the file must have; return where they start."""
        start = self._at
        if size > len(self._data) - start:
            raise ValueError(f"it ends at byte {len(self._data)}, within a value of {size} bytes at byte {start}")
        self._at = start + size
        return start
