"""Generations for the usage ledger, stores that fail on demand, and what `headrace usage` finds in a ledger."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.cli._ledger import Filter, open_ledger
from service.core.account import Closing, Opening
from service.core.events import FinishReason, Timing, Usage
from service.core.identity import Identity
from service.core.request import Priority
from service.ledger.process import Process, this_process
from service.ledger.records import Begun, Ended, Record
from service.ledger.store import StoreError

__all__ = [
    "NOW_S",
    "MemoryStore",
    "begun",
    "closing",
    "dead_process",
    "ended",
    "opening",
    "read",
    "unended",
]

# 2026-11-01T12:00:00Z
NOW_S = 1_793_534_400.0


def opening(number: int = 1, **fields: Any) -> Opening:
    """Return the opening of generation `number`."""
    given = {
        "generation_id": f"gen_{number:024x}",
        "request_id": f"req_{number}",
        "identity": Identity(tenant="acme", subject="key_1"),
        "model": "sim",
        "priority": Priority.INTERACTIVE,
        "choices": 1,
        "prompt_tokens": 7,
        "max_output_tokens": None,
        "end_user": "",
        "received_at_s": NOW_S,
    }
    return Opening(**(given | fields))


def closing(outcome: str = "completed", **fields: Any) -> Closing:
    """Return how it ended: with 5 prompt and 20 output tokens unless `fields` say otherwise."""
    given = {
        "usage": Usage(prompt_tokens=5, cached_prompt_tokens=2, output_tokens=20),
        "timing": Timing(queue_s=0.1, prefill_s=0.2, ttft_s=0.3, decode_s=1.0, total_s=1.3, output_tokens_per_s=19.0),
        "outcome": outcome,
        "reason": None,
        "finish_reasons": (FinishReason.STOP,),
        "ended_at_s": NOW_S + 2,
    }
    return Closing(**(given | fields))


def begun(number: int = 1, **fields: Any) -> Begun:
    return Begun(opening(number, **fields))


def ended(number: int = 1, outcome: str = "completed", **fields: Any) -> Ended:
    return Ended(opening(number), closing(outcome, **fields))


def dead_process() -> Process:
    """Return a process of this host that lives no more: its number belongs to another one."""
    return replace(this_process(), pid=os.getpid(), pid_mark="1")


def read(address: str, **wanted: Any) -> dict[str, Any]:
    """Return the rows with an end, by generation id, as `headrace usage` reads them; fails if one is there twice."""
    ledger = open_ledger([address])
    rows = list(ledger.ended(Filter(**wanted)))
    assert not ledger.notes
    found = {row["generation_id"]: row for row in rows}
    assert len(found) == len(rows), "exactly once"
    return found


def unended(address: str) -> dict[str, str]:
    """Return the states of the generations that have no end."""
    ledger = open_ledger([address])
    list(ledger.ended(Filter()))
    return {row["generation_id"]: row["state"] for row in ledger.unended(Filter())}


class MemoryStore:
    """Keeps records in a list. It fails while `is_failing`, hangs while `gate` is shut, and refuses `poison`."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.batches = 0
        self.is_failing = False
        self.fails_to_open = False
        self.poison = ""
        self.gate = threading.Event()
        self.gate.set()
        self.tried = threading.Event()
        self.left: list[str] = []
        self.closed_with: int | None = None

    def open(self, process: Process, now_s: float) -> Sequence[str]:
        if self.fails_to_open:
            raise StoreError("no such place")
        return self.left

    def write(self, records: Sequence[Record]) -> None:
        self.tried.set()
        assert self.gate.wait(20)
        if self.is_failing:
            raise StoreError("disk full")
        if any(record.opening.generation_id == self.poison for record in records):
            raise ValueError("no such value")
        self.batches += 1
        self.records += records

    def beat(self, now_s: float) -> Sequence[str]:
        return ()

    def close(self, now_s: float, lost: int) -> None:
        if self.is_failing:
            raise StoreError("disk full")
        self.closed_with = lost

    def ends(self) -> list[str]:
        """Return the ids of the ends."""
        return [record.opening.generation_id for record in self.records if isinstance(record, Ended)]
