"""What `headrace usage` adds up, and how it reads files."""

from __future__ import annotations

import gzip
import json
import math
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli._ledger import Filter, LedgerFiles
from headrace.cli._usage_sums import GROUPINGS, Quantiles, sums_of


def row(**fields: Any) -> dict[str, Any]:
    given = {
        **({"type": fields["type"]} if "type" in fields else {}),
        "generation_id": "gen_1",
        "process_id": "proc_1",
        "tenant": "acme",
        "subject": "k",
        "end_user": "",
        "model": "m",
        "priority": "batch",
        "received_at": datetime(2026, 11, 1, 23, 59, tzinfo=UTC),
        "outcome": "completed",
        "reason": None,
        "prompt_tokens": 5,
        "cached_prompt_tokens": None,
        "output_tokens": 20,
        "reasoning_tokens": None,
        "ttft_s": 0.3,
    }
    return given | fields


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_true_to_one_in_a_hundred(values: list[float], rank: float) -> None:
    quantiles = Quantiles()
    for value in values:
        quantiles.add(value)
    exact = sorted(values)[max(math.ceil(rank * len(values)), 1) - 1]
    found = quantiles.at(rank)
    assert found is not None
    assert exact / 1.011 <= found <= exact * 1.011


def test_quantiles_of_nothing_and_of_no_time() -> None:
    assert Quantiles().at(0.5) is None
    none = Quantiles()
    none.add(0.0)
    assert none.at(0.5) == pytest.approx(1e-6, rel=0.02)


def test_sums_are_those_of_each_group_and_of_all() -> None:
    rows = [row(model=f"m{n % 2}", output_tokens=n, cached_prompt_tokens=1, ttft_s=n / 100) for n in range(1, 101)]
    random.Random(1).shuffle(rows)
    groups, total = sums_of(rows, ("tenant", "model"))
    assert list(groups) == [("acme", "m0"), ("acme", "m1")]
    assert groups[("acme", "m0")].tokens["output_tokens"] == sum(range(2, 101, 2))
    found = total.fields()
    assert (found["requests"], found["prompt_tokens"], found["cached_prompt_tokens"]) == (100, 500, 100)
    assert found["ttft_p50_s"] == pytest.approx(0.5, rel=0.011)
    assert found["ttft_p95_s"] == pytest.approx(0.95, rel=0.011)


def test_what_is_unknown_is_no_zero_that_nobody_is_told_of() -> None:
    rows = [
        row(),
        row(output_tokens=None),  # an engine that counts nothing
        row(outcome="interrupted", prompt_tokens=None, output_tokens=None, ttft_s=None),
        row(outcome="rejected", prompt_tokens=0, output_tokens=0, ttft_s=None),
        row(outcome="client_cancelled", prompt_tokens=None, output_tokens=0, ttft_s=None),  # in the line
    ]
    total = sums_of(rows, ())[1].fields()
    assert (total["requests"], total["uncounted_requests"], total["output_tokens"]) == (5, 2, 20)
    assert next(iter(total["outcomes"].items())) == ("completed", 2)


def test_every_grouping_names_something() -> None:
    groups, _ = sums_of([row()], GROUPINGS)
    assert list(groups) == [("acme", "k", "", "m", "batch", "2026-11-01", "completed", "")]


def written(path: Path, *lines: dict[str, Any] | bytes) -> Path:
    data = b"".join(
        line
        if isinstance(line, bytes)
        else json.dumps(line, default=datetime.isoformat, separators=(",", ":")).encode() + b"\n"
        for line in lines
    )
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


BEGUN = {"type": "begun"}
ENDED = {"type": "ended"}
STARTED = {"type": "process", "state": "started", "schema": 1, "process_id": "proc_1"}


def test_rotated_files_are_one_ledger(tmp_path: Path) -> None:
    old = written(
        tmp_path / "usage.jsonl.1.gz",
        STARTED,
        row(**BEGUN, generation_id="a"),
        row(**BEGUN, generation_id="b"),
        row(**ENDED, generation_id="b"),
        {"type": "process", "state": "moved", "process_id": "proc_1"},
    )
    new = written(
        tmp_path / "usage.jsonl",
        STARTED,
        row(**BEGUN, generation_id="a"),
        row(**BEGUN, generation_id="c"),
        row(**ENDED, generation_id="a"),
    )
    files = LedgerFiles([old, new])
    assert [found["generation_id"] for found in files.ended(Filter())] == ["b", "a"]
    assert [(found["generation_id"], found["state"]) for found in files.unended(Filter())] == [("c", "interrupted")]
    assert not files.notes


def test_what_is_no_record_is_skipped_and_noted(tmp_path: Path) -> None:
    path = written(
        tmp_path / "usage.jsonl",
        STARTED,
        b'{"type":"ended","generation_id":"to\n',
        row(**ENDED),
        b"null\n",
        {"type": "ended", "received_at": "2026-11-01T00:00:00Z", "generation_id": "x"},
        b'{"type":"ended"',
    )
    files = LedgerFiles([path])
    assert len(list(files.ended(Filter()))) == 1
    assert files.notes == [f"{path}: skipped what is no record: 4 lines, the first is 2"]


@pytest.mark.parametrize(
    ("name", "lines", "problem"),
    [
        ("notes.jsonl", [b"hello\nworld\n"], "is no usage ledger"),
        ("usage.jsonl", [STARTED | {"schema": 2}], "schema 2, and this headrace reads 1"),
        ("usage.jsonl.gz", None, "usage.jsonl.gz: "),
    ],
)
def test_a_file_that_cannot_be_read_fails_the_command(
    tmp_path: Path, name: str, lines: list[dict[str, Any] | bytes] | None, problem: str
) -> None:
    path = tmp_path / name
    if lines is None:
        path.write_bytes(gzip.compress(b"{}")[:-4])
    else:
        written(path, *lines)
    with pytest.raises(click.ClickException, match=problem):
        list(LedgerFiles([path]).ended(Filter()))
