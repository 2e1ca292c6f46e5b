"""Reads a usage ledger from SQL; what it needs is in the extra `usage`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from headrace.cli._ledger import SCHEMA_VERSION, Filter, shown_address, utc
from headrace.cli._usage_sums import INTERRUPTED, Row

try:
    import sqlalchemy as sql
except ModuleNotFoundError:
    raise click.ClickException("a ledger in SQL needs: pip install 'headrace[usage]'") from None

__all__ = ["LedgerTables"]

_MOMENT: Final = sql.DateTime(timezone=True)
# Those of the service's tables that are read here.
_GENERATIONS: Final = sql.table(
    "headrace_generations",
    *(
        sql.column(name)
        for name in (
            *("generation_id", "request_id", "process_id", "tenant", "subject", "end_user", "model", "priority"),
            *("outcome", "reason", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "reasoning_tokens"),
            *("ttft_s",),
        )
    ),
    sql.column("received_at", _MOMENT),
    sql.column("ended_at", _MOMENT),
)
_PROCESSES: Final = sql.table(
    "headrace_processes", sql.column("process_id"), sql.column("beat_at", _MOMENT), sql.column("stopped_at", _MOMENT)
)
_SCHEMA: Final = sql.table("headrace_schema", sql.column("version"))
# Rows that are fetched at once.
_CHUNK: Final = 5000
# The service's lease; see service.ledger.sql.
_LEASE: Final = timedelta(seconds=60)


class LedgerTables:
    """The tables of a database, read as a stream."""

    def __init__(self, url: str) -> None:
        self._shown = shown_address(url)
        self._url = _readable(url)
        self.notes: list[str] = []

    def ended(self, wanted: Filter) -> Iterator[Row]:
        """Yield the rows that have an end."""
        query = sql.select(_GENERATIONS).where(_GENERATIONS.c.ended_at.is_not(None), *_conditions(wanted))
        with self._connected() as connection:
            version = connection.execute(sql.select(_SCHEMA.c.version)).scalar() or 0
            if version > SCHEMA_VERSION:
                raise click.ClickException(
                    f"the ledger has schema {version}, and this headrace reads {SCHEMA_VERSION}: renew it"
                )
            for row in connection.execution_options(yield_per=_CHUNK).execute(query).mappings():
                yield {**row, "received_at": utc(row["received_at"])}

    def unended(self, wanted: Filter) -> list[Row]:
        """Return the rows that have no end; a process that lives says so every few seconds."""
        query = (
            sql.select(_GENERATIONS, _PROCESSES.c.beat_at, _PROCESSES.c.stopped_at)
            .join_from(_GENERATIONS, _PROCESSES, _GENERATIONS.c.process_id == _PROCESSES.c.process_id)
            .where(_GENERATIONS.c.ended_at.is_(None), *_conditions(wanted))
            .order_by(_GENERATIONS.c.received_at)
        )
        heard_of_since = datetime.now(UTC) - _LEASE
        rows = list[Row]()
        with self._connected() as connection:
            for found in connection.execute(query).mappings():
                row = {**found, "received_at": utc(found["received_at"])}
                is_running = row.pop("stopped_at") is None and utc(row.pop("beat_at")) >= heard_of_since
                rows.append({**row, "state": "running" if is_running else INTERRUPTED})
        return rows

    @contextmanager
    def _connected(self) -> Iterator[sql.Connection]:
        try:
            engine = sql.create_engine(self._url, hide_parameters=True)
            try:
                with engine.connect() as connection:
                    yield connection
            finally:
                engine.dispose()
        except ModuleNotFoundError as missing:
            raise click.ClickException(f"{missing.name} is missing; it needs: pip install 'headrace[usage]'") from None
        except (sql.exc.SQLAlchemyError, ValueError) as error:
            cause = " ".join(str(getattr(error, "orig", None) or error).split())
            raise click.ClickException(f"{self._shown}: {cause}") from None


def _conditions(wanted: Filter) -> list[Any]:
    received_at = _GENERATIONS.c.received_at
    return [
        *([] if wanted.since is None else [received_at >= wanted.since]),
        *([] if wanted.until is None else [received_at < wanted.until]),
        *([] if wanted.tenant is None else [_GENERATIONS.c.tenant == wanted.tenant]),
    ]


def _readable(url: str) -> str:
    """Return a URL that opens a SQLite file for reading, and never makes one."""
    head = "sqlite:///"
    if not url.startswith(head) or "?" in url:
        return url
    path = Path(url.removeprefix(head))
    if not path.is_file():
        raise click.ClickException(f"{path}: no such file")
    return f"{head}file:{quote(str(path))}?mode=ro&uri=true"
