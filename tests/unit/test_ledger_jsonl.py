"""A ledger in a file: what a crash, a full disk, a second process and a rotation do to it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.core.events import FinishReason, Timing, Usage
from service.core.identity import Identity
from service.core.request import Priority
from service.ledger.jsonl import JsonlStore
from service.ledger.process import this_process
from service.ledger.records import Ended
from service.ledger.store import StoreError
from tests.support.usage_ledger import NOW_S, begun, closing, ended, opening, read, unended

ID = "gen_000000000000000000000001"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.jsonl"


@contextmanager
def opened(path: Path, now_s: float = NOW_S) -> Iterator[JsonlStore]:
    store = JsonlStore(path)
    store.open(this_process(), now_s)
    yield store
    store.close(now_s, 0)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def killed(path: Path, *records: object) -> None:
    """Write as a process that is killed then: without its last line, and without its lock."""
    store = JsonlStore(path)
    store.open(this_process(), NOW_S)
    store.write(records)  # type: ignore[arg-type]
    copy = path.read_bytes()
    store.close(NOW_S, 0)
    path.write_bytes(copy)


def test_a_row_has_everything_but_the_text(path: Path) -> None:
    who = opening(identity=Identity(tenant="acme", subject="key_1"), priority=Priority.BATCH, choices=2, end_user="ann")
    end = closing(
        "cancelled",
        usage=Usage(prompt_tokens=5, output_tokens=8, reasoning_tokens=3),
        timing=Timing(queue_s=0.25, prefill_s=None, ttft_s=None, decode_s=None, total_s=1.5, output_tokens_per_s=0),
        finish_reasons=(FinishReason.STOP, FinishReason.CANCELLED),
    )
    with opened(path) as store:
        store.write([Ended(who, end)])
    first, row, last = lines(path)
    assert (first["type"], first["state"], first["schema"]) == ("process", "started", 1)
    assert (last["type"], last["state"], last["lost"]) == ("process", "stopped", 0)
    assert row == {
        "type": "ended",
        "generation_id": ID,
        "request_id": "req_1",
        "process_id": first["process_id"],
        "tenant": "acme",
        "subject": "key_1",
        "end_user": "ann",
        "model": "sim",
        "priority": "batch",
        "choices": 2,
        "received_at": "2026-11-01T12:00:00.000Z",
        "ended_at": "2026-11-01T12:00:02.000Z",
        "outcome": "cancelled",
        "reason": None,
        "finish_reasons": "stop,cancelled",
        "prompt_tokens": 5,
        "cached_prompt_tokens": None,
        "output_tokens": 8,
        "reasoning_tokens": 3,
        "queue_s": 0.25,
        "ttft_s": None,
        "total_s": 1.5,
    }


def test_only_the_owner_and_the_group_may_read(path: Path) -> None:
    with opened(path):
        assert path.stat().st_mode & 0o007 == 0


def test_what_a_dead_process_left_is_closed_as_interrupted_and_named(path: Path) -> None:
    killed(path, begun(1), begun(2), ended(1), begun(3))
    assert unended(str(path)) == {opening(n).generation_id: "interrupted" for n in (2, 3)}
    store = JsonlStore(path)
    assert store.open(this_process(), NOW_S + 60) == [opening(n).generation_id for n in (2, 3)]
    store.close(NOW_S + 60, 0)
    assert unended(str(path)) == {}
    rows = read(str(path))
    assert {row["outcome"] for row in rows.values()} == {"completed", "interrupted"}
    assert rows[opening(3).generation_id]["ended_at"] == "2026-11-01T12:01:00.000Z"
    assert rows[opening(3).generation_id]["tenant"] == "acme"
    # Settled once: nothing is left for the next one.
    store = JsonlStore(path)
    assert store.open(this_process(), NOW_S) == []
    store.close(NOW_S, 0)


@pytest.mark.parametrize("torn", [b'{"type":"ended","generation_id":"gen_0', b"{", b'{"type":"begun"}', b"\x00\x00"])
def test_a_line_that_a_crash_has_torn_costs_that_line_alone(path: Path, torn: bytes) -> None:
    killed(path, begun(1), begun(2), ended(2))
    with path.open("ab") as file:
        file.write(torn)
    with opened(path) as store:
        store.write([ended(3)])
    good = [line for line in path.read_bytes().splitlines() if line != torn]
    path.write_bytes(b"".join(line + b"\n" for line in good))
    assert {id_[-1]: row["outcome"] for id_, row in read(str(path)).items()} == {
        "1": "interrupted",
        "2": "completed",
        "3": "completed",
    }


def test_a_second_process_gets_no_say(path: Path) -> None:
    with opened(path) as store:
        second = JsonlStore(path)
        with pytest.raises(StoreError, match="written by another process; give every process a file of its own"):
            second.open(this_process(), NOW_S)
        store.write([begun(1)])
        assert unended(str(path)) == {ID: "running"}


def test_a_reader_that_looks_for_a_moment_does_not_keep_a_process_from_starting(path: Path) -> None:
    with opened(path):
        pass
    # Another process, since a lock is that of an open file.
    code = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print(); time.sleep(0.2)"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        with opened(path) as store:
            store.write([ended(1)])
    assert list(read(str(path))) == [ID]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Have the disk of this process end at `size`: the kernel writes what fits, and refuses the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 200, 700, 1100])
def test_a_disk_that_is_full_in_the_middle_of_a_batch_leaves_nothing_of_it(path: Path, room: int) -> None:
    with opened(path) as store:
        store.write([begun(1)])
        before = path.read_bytes()
        batch = [ended(1), begun(2), ended(2)]
        with largest_file(len(before) + room), pytest.raises(StoreError):
            store.write(batch)
        assert path.read_bytes() == before
        store.write(batch)
    assert list(read(str(path))) == [opening(n).generation_id for n in (1, 2)]


def test_a_file_that_was_moved_away_is_followed_by_a_new_one(path: Path) -> None:
    old = path.with_suffix(".jsonl.1")
    with opened(path) as store:
        store.write([begun(1), begun(2), ended(2)])
        path.rename(old)
        store.write([ended(3)])
        assert unended(str(path)) == {ID: "running"}
        store.write([ended(1)])
    assert unended(f"file:{old}") == {}
    assert set(read(f"file:{old}")) | set(read(str(path))) == {opening(n).generation_id for n in (1, 2, 3)}
    assert lines(old)[-1]["state"] == "moved"


def test_a_process_that_does_nothing_lets_go_of_a_moved_file_too(path: Path) -> None:
    old = path.with_suffix(".jsonl.1")
    with opened(path) as store:
        store.beat(NOW_S)
        path.rename(old)
        store.beat(NOW_S)
        assert path.exists()
        with opened(old):
            pass


def test_an_interruption_behind_a_rotation_is_found_in_the_new_file(path: Path) -> None:
    store = JsonlStore(path)
    store.open(this_process(), NOW_S)
    store.write([begun(1)])
    path.rename(path.with_suffix(".jsonl.1"))
    store.write([begun(2)])
    copy = path.read_bytes()
    store.close(NOW_S, 0)
    path.write_bytes(copy)
    again = JsonlStore(path)
    assert set(again.open(this_process(), NOW_S)) == {opening(n).generation_id for n in (1, 2)}
    again.close(NOW_S, 0)


def test_an_end_whose_record_was_lost_is_interrupted_when_the_process_stops(path: Path) -> None:
    store = JsonlStore(path)
    store.open(this_process(), NOW_S)
    store.write([begun(1)])
    store.close(NOW_S, 1)
    assert read(str(path))[ID]["outcome"] == "interrupted"
    assert lines(path)[-1]["lost"] == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"# Headrace\n\nread me\n", "no usage ledger"),
        (b'{"id": 1}\n', "no usage ledger"),
        (b"x" * 100_000, "no usage ledger"),
        (b'{"type":"process","state":"started","schema":2,"process_id":"p"}\n', "schema 2, of a newer Headrace"),
    ],
)
def test_a_file_that_is_not_ours_to_write_is_left_alone(path: Path, content: bytes, problem: str) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match=problem):
        JsonlStore(path).open(this_process(), NOW_S)
    assert path.read_bytes() == content


def test_a_place_that_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "usage.jsonl", Path("/dev/null")):
        with pytest.raises(StoreError, match=str(path)):
            JsonlStore(path).open(this_process(), NOW_S)
