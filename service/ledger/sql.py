"""A ledger in SQL: SQLite, or PostgreSQL for several replicas.

A row is inserted when a generation begins and completed when it ends, both as upserts by its id, so that a batch
whose commit nobody has heard of can be written again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import URL, Connection, Dialect, create_engine, event, insert, or_, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from service.ledger.address import shown_address
from service.ledger.process import Process, is_alive
from service.ledger.records import INTERRUPTED, SCHEMA_VERSION, Begun, Record, begun_fields, ended_fields, utc
from service.ledger.store import StoreError
from service.ledger.tables import GENERATIONS, METADATA, PROCESSES, SCHEMA

__all__ = ["LEASE_S", "SqlStore"]

# A process that has not been heard of for so long is taken to be dead; the clocks of hosts may differ by half of it.
LEASE_S: Final = 60.0
# Of the thread that writes; callers wait for a second at most.
_BUSY_S: Final = 5
_RETRY_S: Final = 0.02
_PRAGMAS: Final = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL")
_CONNECT: Final[dict[str, dict[str, object]]] = {
    "sqlite": {"timeout": _BUSY_S},
    # A server that vanished without a word must not hold the thread for the kernel's quarter of an hour.
    "postgresql": {
        "connect_timeout": 5,
        "tcp_user_timeout": 10_000,
        "keepalives_idle": 10,
        "application_name": "headrace",
    },
}
# Any number that others are unlikely to take: replicas that start together make the tables one after the other.
_SCHEMA_LOCK: Final = 0x6865_6164_7261_6365


class SqlStore:
    """Writes batches in one transaction each, over one connection."""

    def __init__(self, url: str) -> None:
        self._shown = shown_address(url)
        self._url = url
        self._engine: Any = None
        self._process: Process

    def open(self, process: Process, now_s: float) -> Sequence[str]:
        """Connect, make the tables if they are missing, enter this process, and close what dead ones left open."""
        self._process = process
        try:
            return self._open(now_s)
        except (SQLAlchemyError, ImportError, OSError, ValueError) as error:
            self._dispose()
            raise self._failure(error) from None
        except StoreError:
            self._dispose()
            raise

    def write(self, records: Sequence[Record]) -> None:
        """Write what has begun, then what has ended; an end replaces `interrupted`, and no other end."""
        id_ = self._process.id
        begun = [begun_fields(record.opening, id_) for record in records if isinstance(record, Begun)]
        ended = [ended_fields(record, id_) for record in records if not isinstance(record, Begun)]
        try:
            with self._engine.begin() as connection:
                if begun:
                    connection.execute(self._begin, begun)
                if ended:
                    connection.execute(self._end, ended)
        except SQLAlchemyError as error:
            if _is_fault_of_data(error):
                raise
            raise self._failure(error) from None

    def beat(self, now_s: float) -> Sequence[str]:
        """Renew the lease; close what processes have left whose lease has run out, or which died on this host."""
        try:
            self._beat(now_s)
            return self._close_left(now_s)
        except SQLAlchemyError as error:
            raise self._failure(error) from None

    def close(self, now_s: float, lost: int) -> None:
        """Settle what has no end, because its record was lost, and disconnect."""
        if self._engine is None:
            return
        try:
            with self._engine.begin() as connection:
                _settle(connection, self._process.id, now_s, lost=lost)
        except SQLAlchemyError as error:
            raise self._failure(error) from None
        finally:
            self._dispose()

    def _open(self, now_s: float) -> Sequence[str]:
        dialect = self._url.partition("+")[0].partition(":")[0]
        self._engine = create_engine(
            self._url, pool_size=1, max_overflow=0, hide_parameters=True, connect_args=_CONNECT[dialect]
        )
        if dialect == "sqlite":
            _make_file(self._engine.url)
            event.listen(self._engine, "connect", _prepare_sqlite)
        self._begin, self._end = _upserts(self._engine.dialect)
        with self._engine.begin() as connection:
            self._make_tables(connection)
        self._beat(now_s, started_at=utc(now_s))
        return self._close_left(now_s)

    def _dispose(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _make_tables(self, connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _SCHEMA_LOCK})
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        METADATA.create_all(connection)
        version = connection.execute(select(SCHEMA.c.version)).scalar()
        if version is None:
            connection.execute(insert(SCHEMA), {"version": SCHEMA_VERSION})
        elif version > SCHEMA_VERSION:
            raise StoreError(
                f"{self._shown} has schema {version}, of a newer Headrace; this one writes {SCHEMA_VERSION}"
            )

    def _beat(self, now_s: float, **first: object) -> None:
        process = self._process
        # Others may have taken this process for dead: it was cut off, or stood still.
        alive = {"beat_at": utc(now_s), "stopped_at": None}
        row = {
            "process_id": process.id,
            "host": process.host,
            "pid": process.pid,
            "pid_space": process.pid_space,
            "pid_mark": process.pid_mark,
        }
        with self._engine.begin() as connection:
            if first:
                connection.execute(insert(PROCESSES), row | alive | first)
            else:
                connection.execute(update(PROCESSES).where(PROCESSES.c.process_id == process.id), alive)

    def _close_left(self, now_s: float) -> list[str]:
        others = select(PROCESSES).where(PROCESSES.c.stopped_at.is_(None), PROCESSES.c.process_id != self._process.id)
        with self._engine.begin() as connection:
            dead = [row.process_id for row in connection.execute(others) if self._is_dead(row, now_s)]
            return [id_ for process_id in dead for id_ in _settle(connection, process_id, now_s)]

    def _is_dead(self, row: Any, now_s: float) -> bool:
        other = Process(id=row.process_id, host=row.host, pid=row.pid, pid_space=row.pid_space, pid_mark=row.pid_mark)
        is_living = is_alive(other, self._process)
        if is_living is not None:
            return not is_living
        beat_at = row.beat_at
        expired = utc(now_s) - timedelta(seconds=LEASE_S)
        return bool(beat_at < (expired if beat_at.tzinfo else expired.replace(tzinfo=None)))

    def _failure(self, error: Exception) -> StoreError:
        cause = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
        return StoreError(f"{self._shown}: {' '.join(str(cause).split())}")


def _settle(connection: Connection, process_id: str, now_s: float, lost: int | None = None) -> list[str]:
    """Close what a process has left, and the process itself; return the ids of the generations."""
    of_process = GENERATIONS.c.process_id == process_id
    left = connection.execute(
        update(GENERATIONS)
        .where(of_process, GENERATIONS.c.ended_at.is_(None))
        .values(ended_at=utc(now_s), outcome=INTERRUPTED)
        .returning(GENERATIONS.c.generation_id)
    )
    found = list(left.scalars())
    stopped = update(PROCESSES).where(PROCESSES.c.process_id == process_id)
    connection.execute(stopped.values(stopped_at=utc(now_s), lost=lost))
    return found


def _upserts(dialect: Dialect) -> tuple[Any, Any]:
    """Return the statements for beginnings and for ends."""
    insert_into = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
    key = [GENERATIONS.c.generation_id]
    begin = insert_into(GENERATIONS).on_conflict_do_nothing(index_elements=key)
    end = insert_into(GENERATIONS)
    return begin, end.on_conflict_do_update(
        index_elements=key,
        set_={column.name: end.excluded[column.name] for column in GENERATIONS.c if not column.primary_key},
        where=or_(GENERATIONS.c.ended_at.is_(None), GENERATIONS.c.outcome == INTERRUPTED),
    )


def _make_file(url: URL) -> None:
    """Make the file of SQLite, which would make it for everybody to read; its own WAL takes over the rights."""
    if url.database and not url.query:
        os.close(os.open(url.database, os.O_RDWR | os.O_CREAT, 0o640))


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # A change to WAL fails at once where somebody else is at the new file: SQLite's own waiting is not for that.
    give_up_s = time.monotonic() + _BUSY_S
    for pragma in _PRAGMAS:
        while True:
            try:
                connection.execute(pragma)
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_s:
                    raise
                time.sleep(_RETRY_S)


def _is_fault_of_data(error: SQLAlchemyError) -> bool:
    if isinstance(error, DBAPIError):
        return error.orig.__class__.__name__ in {"DataError", "IntegrityError"}
    return isinstance(error, StatementError)
