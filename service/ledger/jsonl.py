"""A ledger in a file of JSON Lines: one process, one file.

    {"type":"process","state":"started","schema":1,"process_id":...}   a start; what stood before it is settled
    {"type":"begun","generation_id":...}                               it runs
    {"type":"ended","generation_id":...}                               the whole row, exactly once
    {"type":"process","state":"stopped" or "moved",...}                in order; or the file was rotated away

The file is locked (flock) while its process lives, which also tells readers that it does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from service.ledger.jsonl_recovery import left_open, refusal
from service.ledger.process import Process
from service.ledger.records import INTERRUPTED, SCHEMA_VERSION, Begun, Record, begun_fields, ended_fields, utc
from service.ledger.store import StoreError

__all__ = ["JsonlStore"]

# A reader, `headrace usage`, takes the lock for a moment to see whether somebody writes.
_LOCK_TRIES: Final = 20
_LOCK_POLL_S: Final = 0.05
# Usage is for the operator, and for whoever bills: not for everybody on the host.
_MODE: Final = 0o640


class JsonlStore:
    """Appends to one file; follows when it is moved away, as logrotate does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._process: Process
        # The begun lines of what runs: carried over into a new file.
        self._running: dict[str, bytes] = {}

    def open(self, process: Process, now_s: float) -> Sequence[str]:
        """Lock the file, heal a torn end, and close what its last process left open."""
        self._process = process
        self._file = file = self._locked()
        try:
            if problem := refusal(file):
                raise StoreError(f"{self._path} {problem}")
            left = left_open(file)
            healing = b"" if _ends_well(file) else b"\n"
            self._append(healing + _interrupted(left.values(), now_s) + self._started(now_s))
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from None
        return list(left)

    def write(self, records: Sequence[Record]) -> None:
        """Append them with one write, and take it back if the disk is full in the middle of it."""
        running = dict[str, bytes]()
        lines, ended = [], []
        for record in records:
            id_ = record.opening.generation_id
            if isinstance(record, Begun):
                line = running[id_] = _line("begun", begun_fields(record.opening, self._process.id))
            else:
                line = _line("ended", ended_fields(record, self._process.id))
                ended.append(id_)
            lines.append(line)
        try:
            self._follow()
            self._append(b"".join(lines))
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from None
        self._running |= running
        for id_ in ended:
            self._running.pop(id_, None)

    def beat(self, now_s: float) -> Sequence[str]:  # noqa: ARG002 - the lock tells that it lives
        """Follow the file if it was moved away, so that an idle process lets go of an old one too."""
        try:
            self._follow()
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from None
        return ()

    def close(self, now_s: float, lost: int) -> None:
        """Settle what has no end, because its record was lost, and unlock."""
        if self._file < 0:
            return
        try:
            rows = [json.loads(line) for line in self._running.values()]
            self._append(_interrupted(rows, now_s) + self._state("stopped", now_s, lost=lost))
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from None
        finally:
            os.close(self._file)
            self._file = -1

    def _locked(self) -> int:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise StoreError(f"{self._path} is no regular file")
            _lock(file)
        except BaseException as error:
            os.close(file)
            if isinstance(error, BlockingIOError):
                raise StoreError(
                    f"{self._path} is being written by another process; give every process a file of its own"
                ) from None
            raise
        return file

    def _follow(self) -> None:
        """Open the file anew if what has its name is not it any more."""
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._file)):
                return
        except FileNotFoundError:
            pass
        new, old = self._locked(), self._file
        now_s = time.time()
        try:
            self._file = new
            healing = b"" if _ends_well(new) else b"\n"
            self._append(healing + self._started(now_s) + b"".join(self._running.values()))
        except BaseException:
            os.close(new)
            self._file = old
            raise
        try:
            self._file = old
            self._append(self._state("moved", now_s))
        finally:
            self._file = new
            os.close(old)

    def _append(self, data: bytes) -> None:
        size = os.fstat(self._file).st_size
        written = os.write(self._file, data)
        if written == len(data):
            return
        # The lock makes sure that nobody has written behind it.
        os.ftruncate(self._file, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _started(self, now_s: float) -> bytes:
        process = self._process
        return _line(
            "process",
            {"state": "started", "schema": SCHEMA_VERSION}
            | {"process_id": process.id, "host": process.host, "pid": process.pid, "at": utc(now_s)},
        )

    def _state(self, state: str, now_s: float, **fields: int) -> bytes:
        return _line("process", {"state": state, "process_id": self._process.id, "at": utc(now_s)} | fields)


def _line(kind: str, fields: Mapping[str, object]) -> bytes:
    text = json.dumps({"type": kind, **fields}, ensure_ascii=False, separators=(",", ":"), default=_moment)
    return text.encode() + b"\n"


def _interrupted(begun: Iterable[Mapping[str, object]], now_s: float) -> bytes:
    """Return the lines that end rows which have no end."""
    end = {"ended_at": utc(now_s), "outcome": INTERRUPTED}
    return b"".join(_line("ended", {k: v for k, v in row.items() if k != "type"} | end) for row in begun)


def _moment(value: object) -> str:
    assert isinstance(value, datetime)
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lock(file: int) -> None:
    """Take the lock. Raises BlockingIOError if another process keeps it."""
    for left in reversed(range(_LOCK_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_LOCK_POLL_S)
        else:
            return


def _ends_well(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"
