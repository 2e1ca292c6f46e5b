"""Reads a usage ledger: from files of JSON Lines here, from a SQL database in `_ledger_sql`.

The rules of addresses are those of the service, which this package does not import.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import click

from headrace.cli._usage_sums import INTERRUPTED, Row

__all__ = ["SCHEMA_VERSION", "Filter", "LedgerFiles", "UsageLedger", "open_ledger", "shown_address", "utc"]

SCHEMA_VERSION: Final = 1
# As the service writes it, byte for byte.
_BEGUN: Final = b'{"type":"begun","generation_id":"'
_SQLITE_ENDINGS: Final = (".db", ".sqlite", ".sqlite3")
_SCHEMES: Final = {
    "sqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_PASSWORD: Final = re.compile(r"(://[^:/@]*):.*@")
_PASSWORD_FIELD: Final = re.compile(r"([?&]password=)[^&]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which rows: received from `since` on and before `until`, of one tenant."""

    since: datetime | None = None
    until: datetime | None = None
    tenant: str | None = None

    def takes(self, row: Row) -> bool:
        """Return whether a row is among them."""
        received_at = row["received_at"]
        return (
            (self.since is None or received_at >= self.since)
            and (self.until is None or received_at < self.until)
            and (self.tenant is None or row["tenant"] == self.tenant)
        )


class UsageLedger(Protocol):
    """A ledger to be read once: `ended` to its end, then `unended`. `notes` are for the person who asked."""

    notes: list[str]

    def ended(self, wanted: Filter) -> Iterator[Row]:
        """Yield the rows that have an end."""
        ...

    def unended(self, wanted: Filter) -> list[Row]:
        """Return the rows that have none, with the member `state`: running or interrupted."""
        ...


def open_ledger(addresses: Sequence[str]) -> UsageLedger:
    """Return the ledger at these addresses: one database, or files in the order in which they were written."""
    if len(addresses) == 1 and (url := _sql_url(addresses[0])):
        from headrace.cli._ledger_sql import LedgerTables

        return LedgerTables(url)
    if any(_sql_url(address) for address in addresses):
        raise click.UsageError("several ledgers at once can only be files of JSON Lines")
    return LedgerFiles([_path(address) for address in addresses])


def shown_address(text: str) -> str:
    """Return an address without its password."""
    return _PASSWORD_FIELD.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def utc(moment: datetime) -> datetime:
    """Return a moment in UTC, which is what one without a zone is in."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class LedgerFiles:
    """Files of JSON Lines, read line by line: memory is needed for what has no end alone."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open: dict[str, bytes] = {}
        self._writing = ""
        self.notes: list[str] = []

    def ended(self, wanted: Filter) -> Iterator[Row]:
        """Yield the rows that have an end; lines that a crash or a full disk has torn are noted."""
        for path in self._paths:
            torn, number = list[int](), 0
            try:
                with _reading(path) as lines:
                    for number, line in enumerate(lines, 1):
                        try:
                            row = self._take(line)
                        except (ValueError, KeyError, TypeError):
                            torn.append(number)
                            continue
                        if row is not None and wanted.takes(row):
                            yield row
            except (OSError, EOFError) as error:
                raise click.ClickException(f"{path}: {getattr(error, 'strerror', None) or error}") from None
            if torn and len(torn) == number:
                raise click.ClickException(f"{path} is no usage ledger")
            if torn:
                where = f"line {torn[0]}" if len(torn) == 1 else f"{len(torn)} lines, the first is {torn[0]}"
                self.notes.append(f"{path}: skipped what is no record: {where}")

    def unended(self, wanted: Filter) -> list[Row]:
        """Return the rows that have no end; a process that lives keeps its file locked."""
        is_written = _is_locked(self._paths[-1])
        rows = list[Row]()
        for line in self._open.values():
            try:
                row = _row(line)
            except (ValueError, KeyError, TypeError):
                self.notes.append("skipped a beginning that is no record")
                continue
            is_running = is_written and row["process_id"] == self._writing
            rows.append({**row, "state": "running" if is_running else INTERRUPTED})
        return [row for row in rows if wanted.takes(row)]

    def _take(self, line: bytes) -> Row | None:
        if line.startswith(_BEGUN) and line.endswith(b"}\n"):
            # Half of all lines: parsing those that get an end would take as long as all the rest.
            self._open[line[len(_BEGUN) : line.index(b'"', len(_BEGUN))].decode()] = line
            return None
        row: dict[str, Any] = json.loads(line)
        if row["type"] == "process":
            self._on_process(row)
            return None
        if row["type"] != "ended" or "outcome" not in row:
            raise ValueError(row["type"])
        row["received_at"] = datetime.fromisoformat(row["received_at"])
        self._open.pop(row["generation_id"], None)
        return row

    def _on_process(self, row: Row) -> None:
        if row["state"] == "started":
            self._writing = row["process_id"]
            if row["schema"] > SCHEMA_VERSION:
                raise click.ClickException(
                    f"the ledger has schema {row['schema']}, and this headrace reads {SCHEMA_VERSION}: renew it"
                )
        elif row["state"] == "moved":  # what runs stands in the next file too
            gone = row["process_id"]
            self._open = {id_: line for id_, line in self._open.items() if _row(line)["process_id"] != gone}


def _sql_url(address: str) -> str | None:
    """Return the SQLAlchemy URL of an address; None if it is a file of JSON Lines."""
    if address.startswith("file:"):
        return None
    scheme, mark, rest = address.partition("://")
    if not mark:
        return f"sqlite:///{address}" if address.lower().endswith(_SQLITE_ENDINGS) else None
    if (driver := _SCHEMES.get(scheme.lower())) is None:
        raise click.UsageError("a ledger is kept in sqlite:// or postgresql://, and in no other database")
    return f"{driver}://{rest}"


def _path(address: str) -> Path:
    path = address.removeprefix("file:")
    return Path(path.removeprefix("//") if path.startswith("///") else path)


def _row(line: bytes) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(line)
    return row | {"received_at": datetime.fromisoformat(row["received_at"])}


def _reading(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _is_locked(path: Path) -> bool:
    try:
        import fcntl
    except ModuleNotFoundError:  # on Windows, where no service runs
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
