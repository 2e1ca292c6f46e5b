"""The seam between the ledger and where it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.ledger.process import Process
from service.ledger.records import Record

__all__ = ["Store", "StoreError"]


class StoreError(Exception):
    """The store cannot be used now; the same may work later. Its text is for operators and holds no password."""


class Store(Protocol):
    """Keeps records; used by one thread, which calls `open` first and `close` last.

    Whatever is no StoreError is the fault of the records that were to be written.
    Times are Unix time.
    """

    def open(self, process: Process, now_s: float) -> Sequence[str]:
        """Make it ready, and return the ids of the generations that dead processes left without an end.

        They are given the outcome `interrupted`. Raises StoreError.
        """
        ...

    def write(self, records: Sequence[Record]) -> None:
        """Write all or nothing. The same records once more change nothing. Raises StoreError."""
        ...

    def beat(self, now_s: float) -> Sequence[str]:
        """Tell others that this process lives; return what dead ones have left since. Raises StoreError."""
        ...

    def close(self, now_s: float, lost: int) -> None:
        """Say that this process has stopped in order, with so many records lost. Raises StoreError."""
        ...
