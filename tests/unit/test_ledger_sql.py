"""A ledger in SQL: SQLite, and PostgreSQL where HEADRACE_TEST_POSTGRESQL_URL names a database to make schemas in."""

from __future__ import annotations

import os
import resource
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from headrace.cli import _ledger_sql
from service.core.identity import Identity
from service.ledger.process import Process, is_alive, this_process
from service.ledger.records import Begun
from service.ledger.sql import LEASE_S, SqlStore
from service.ledger.store import StoreError
from service.ledger.tables import GENERATIONS, PROCESSES, SCHEMA
from tests.support.usage_ledger import NOW_S, begun, dead_process, ended, opening, read, unended

ID = "gen_000000000000000000000001"
POSTGRESQL = os.environ.get("HEADRACE_TEST_POSTGRESQL_URL")
HERE = this_process()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/usage.db"
        return
    if POSTGRESQL is None:
        pytest.skip("HEADRACE_TEST_POSTGRESQL_URL names no database")
    # A schema of its own: several tests at once share the database.
    schema, base = f"test_{os.urandom(6).hex()}", POSTGRESQL.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(base)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    yield f"{base}?options=-csearch_path%3D{schema}"
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


def started(url: str, process: Process = HERE, now_s: float = NOW_S) -> SqlStore:
    store = SqlStore(url)
    store.open(replace(process, id=f"{process.id}_{os.urandom(4).hex()}"), now_s)
    return store


@contextmanager
def opened(url: str, process: Process = HERE, now_s: float = NOW_S) -> Iterator[SqlStore]:
    store = started(url, process, now_s)
    yield store
    store.close(now_s, 0)


@contextmanager
def left_by(url: str, process: Process, *numbers: int) -> Iterator[SqlStore]:
    """Have a process begin generations, and say no more."""
    store = started(url, process)
    store.write([begun(number) for number in numbers])
    yield store
    store._dispose()


def elsewhere() -> Process:
    """Return a process of another host, of which nobody here can tell whether it lives."""
    return replace(HERE, host="other", pid_space="other")


def test_a_row_has_the_same_fields_as_a_line_of_the_file(url: str) -> None:
    with opened(url, now_s=time.time()) as store:
        store.write([begun(1)])
        assert unended(url) == {ID: "running"}
        store.write([ended(1, end := "completed")])
    row = read(url)[ID]
    wanted = {"tenant": "acme", "model": "sim", "priority": "interactive", "prompt_tokens": 5, "output_tokens": 20}
    assert {name: row[name] for name in wanted} == wanted
    assert (row["outcome"], row["cached_prompt_tokens"], row["ttft_s"]) == (end, 2, 0.3)
    assert row["received_at"].isoformat() == "2026-11-01T12:00:00+00:00"


def test_a_batch_that_is_written_again_changes_nothing(url: str) -> None:
    batch = [begun(1), ended(1), begun(2)]
    with opened(url, now_s=time.time()) as store:
        for _ in range(3):
            store.write(batch)
        assert unended(url) == {opening(2).generation_id: "running"}
        store.write([ended(1, "backend_error"), begun(1)])
    assert read(url)[ID]["outcome"] == "completed", "the first end is the end"


def test_an_end_without_a_beginning_is_a_whole_row(url: str) -> None:
    with opened(url) as store:
        store.write([ended(1, "rejected", reason="RATE_LIMITED")])
    assert (read(url)[ID]["outcome"], read(url)[ID]["reason"]) == ("rejected", "RATE_LIMITED")


def test_what_a_process_that_died_here_left_is_interrupted_at_once(url: str) -> None:
    with left_by(url, dead_process(), 1, 2):
        store = SqlStore(url)
        assert set(store.open(this_process(), NOW_S)) == {opening(n).generation_id for n in (1, 2)}
        assert list(store.beat(NOW_S)) == []
        store.close(NOW_S, 0)
    assert {row["outcome"] for row in read(url).values()} == {"interrupted"}


def test_what_a_process_of_another_host_left_is_interrupted_when_its_lease_has_run_out(url: str) -> None:
    with left_by(url, elsewhere(), 1) as other, opened(url) as store:
        assert list(store.beat(NOW_S + LEASE_S - 1)) == []
        other.beat(NOW_S + LEASE_S - 1)
        assert list(store.beat(NOW_S + 2 * LEASE_S - 2)) == []
        assert list(store.beat(NOW_S + 2 * LEASE_S)) == [ID]
        assert list(store.beat(NOW_S + 3 * LEASE_S)) == []
    assert read(url)[ID]["outcome"] == "interrupted"


def test_a_process_that_was_taken_for_dead_corrects_it(url: str) -> None:
    with left_by(url, elsewhere(), 1, 2) as other, opened(url) as store:
        assert len(store.beat(NOW_S + 2 * LEASE_S)) == 2
        other.beat(NOW_S + 2 * LEASE_S)
        other.write([ended(1)])
        # It lives again, with what it begins from now on.
        other.write([begun(3)])
        assert list(store.beat(NOW_S + 2 * LEASE_S + 1)) == []
    assert {id_[-1]: row["outcome"] for id_, row in read(url).items()} == {"1": "completed", "2": "interrupted"}


def test_a_process_that_stops_in_order_leaves_nothing_open(url: str) -> None:
    with opened(url) as store:
        store.write([begun(1)])
    assert unended(url) == {}
    assert read(url)[ID]["outcome"] == "interrupted"
    with opened(url) as store:
        assert list(store.beat(NOW_S + 2 * LEASE_S)) == []


def test_replicas_that_start_together_make_the_tables_once(url: str) -> None:
    problems: list[Exception] = []

    def start() -> None:
        try:
            store = started(url)
            store.write([begun(int.from_bytes(os.urandom(4), "big"))])
            store.close(NOW_S, 0)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not problems
    assert len(read(url)) == 4


def test_a_schema_of_a_newer_version_is_not_written(url: str) -> None:
    with opened(url):
        pass
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE headrace_schema SET version = 2"))
    engine.dispose()
    with pytest.raises(StoreError, match="schema 2, of a newer Headrace"):
        started(url)


def test_any_text_of_a_caller_can_be_kept(url: str) -> None:
    odd = "a\x00b \ud800 '; DROP TABLE headrace_generations; -- ż"
    with opened(url, now_s=time.time()) as store:
        store.write([Begun(opening(1, end_user=odd, identity=Identity(tenant=odd)))])
        assert unended(url) == {ID: "running"}
    assert read(url)[ID]["tenant"] == "a\ufffdb ? '; DROP TABLE headrace_generations; -- ż"


def test_the_filters_of_a_reader_are_those_of_the_file(url: str) -> None:
    with opened(url) as store:
        store.write([ended(1)])
    received_at = read(url)[ID]["received_at"]
    assert read(url, since=received_at, tenant="acme")
    assert not read(url, until=received_at)
    assert not read(url, tenant="other")


def test_the_reader_asks_for_columns_that_there_are() -> None:
    for mine, theirs in (
        (_ledger_sql._GENERATIONS, GENERATIONS),
        (_ledger_sql._PROCESSES, PROCESSES),
        (_ledger_sql._SCHEMA, SCHEMA),
    ):
        assert mine.name == theirs.name
        assert {column.name for column in mine.c} <= {column.name for column in theirs.c}
    assert _ledger_sql._LEASE.total_seconds() == LEASE_S


def test_sqlite_writes_ahead_and_lets_only_the_group_read(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    with opened(f"sqlite:///{path}") as store:
        store.write([begun(1)])
        files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert set(files) == {"usage.db", "usage.db-wal", "usage.db-shm"}
    assert not any(mode & 0o007 for mode in files.values())


def test_a_full_disk_leaves_nothing_of_a_batch(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(url) as store:
        batch = [ended(number) for number in range(2000)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            with pytest.raises(StoreError, match=r"full|disk I/O error"):
                store.write(batch)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not read(url)
        store.write(batch)
    assert len(read(url)) == 2000


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/usage.db",
        "postgresql+psycopg://me:secret@127.0.0.1:1/usage",
        "postgresql+psycopg://me:secret@127.0.0.1:x/usage",
    ],
)
def test_a_database_that_is_not_there_is_named_without_its_password(url: str) -> None:
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg")
    with pytest.raises(StoreError) as refused:
        SqlStore(url).open(this_process(), NOW_S)
    assert "secret" not in str(refused.value)


def test_only_a_process_of_the_same_system_can_be_told_dead() -> None:
    assert is_alive(HERE, HERE) is True
    assert is_alive(dead_process(), HERE) is False
    assert is_alive(replace(HERE, pid=2**22 + 1), HERE) is False
    assert is_alive(elsewhere(), HERE) is None
