"""What is left to Python's collector of cycles, and so is not freed when it is done with."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["kept_by_cycles"]


@contextmanager
def kept_by_cycles(*prefixes: str) -> Iterator[Counter[str]]:
    """Count what the block left in cycles, by type, of modules that begin with a prefix. To be read behind it."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        for left in gc.garbage:
            kind = type(left)
            if kind.__module__.startswith(prefixes):
                found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
