"""How much of a text one token can stand for, so that a text that is too long is known by its size alone.

Pure; knows nothing of the library that reads the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

__all__ = ["longest_token_bytes"]

Part = Mapping[str, Any] | None

# Normal forms make a text shorter, to no less than a quarter: seven bytes of Greek with its accents become two,
# and the three of the Kelvin sign one.
_SHRINKING: Final = {"NFC": 4, "NFD": 4, "Prepend": 1, "ByteLevel": 1, "Replace": 1}
# They cut a text, and drop nothing of it.
_CUTTING: Final = frozenset({"ByteLevel", "Digits", "Metaspace", "Split"})


def longest_token_bytes(sizes: Iterable[int], pieces: Iterable[bytes], normalizer: Part, cutter: Part) -> int | None:
    """Return a number of bytes of UTF-8 that no token exceeds; None for a tokenizer of which that cannot be said.

    `sizes` are those of the tokens' texts, `pieces` their bytes. `normalizer` and
    `cutter` (the pre-tokenizer) are as tokenizer.json writes them. Each byte must
    have a token of its own: without that a word of any length can be one unknown
    token. Spaces that a special token takes away beside itself are not counted.
    """
    if len({piece for piece in pieces if len(piece) == 1}) < 256:
        return None
    if any(step["type"] not in _CUTTING or step.get("behavior") == "Removed" for step in _steps(cutter)):
        return None
    longest = max(sizes, default=0)
    for step in _steps(normalizer):
        if step["type"] not in _SHRINKING or _shortens(step):
            return None
        longest *= _SHRINKING[step["type"]]
    return longest or None


def _steps(part: Part) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part["type"] == "Sequence":
        for inner in part.get("normalizers", ()) or part.get("pretokenizers", ()):
            yield from _steps(inner)
    else:
        yield part


def _shortens(step: Mapping[str, Any]) -> bool:
    """Whether a replacement is anything but one text for another that is no shorter."""
    if step["type"] != "Replace":
        return False
    old = step["pattern"].get("String")
    return not isinstance(old, str) or len(old.encode()) > len(step["content"].encode())
