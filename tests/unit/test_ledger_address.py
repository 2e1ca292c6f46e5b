"""Where a ledger is kept: the same rules for the service and for `headrace usage`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from pydantic import ValidationError

from headrace.cli import _ledger
from headrace.cli._ledger_sql import LedgerTables
from service.config import ServiceSettings
from service.ledger.address import FileAddress, SqlAddress, parse_address, shown_address

FILES = {
    "usage.jsonl": "usage.jsonl",
    "/var/lib/usage.NDJSON": "/var/lib/usage.NDJSON",
    "file:usage": "usage",
    "file:/var/usage.db": "/var/usage.db",
    "file:///var/usage": "/var/usage",
}
DATABASES = {
    "usage.db": "sqlite:///usage.db",
    "/var/usage.sqlite3": "sqlite:////var/usage.sqlite3",
    "sqlite:///usage": "sqlite:///usage",
    "postgres://a:b@h/n": "postgresql+psycopg://a:b@h/n",
    "postgresql://h/n?sslmode=require": "postgresql+psycopg://h/n?sslmode=require",
    "postgresql+psycopg://h/n": "postgresql+psycopg://h/n",
}
WRONG = ["", "on", "usage", "usage.csv", "file:", "file:usage/", "mysql://h/n", "sqlite://", "sqlite:///:memory:"]


@pytest.mark.parametrize(("text", "path"), FILES.items())
def test_a_file_is_json_lines(text: str, path: str) -> None:
    assert parse_address(text) == FileAddress(Path(path))
    found = _ledger.open_ledger([text])
    assert isinstance(found, _ledger.LedgerFiles)
    assert found._paths == [Path(path)]


@pytest.mark.parametrize(("text", "url"), DATABASES.items())
def test_a_url_or_the_ending_of_sqlite_is_a_database(text: str, url: str) -> None:
    assert parse_address(text) == SqlAddress(url)
    assert _ledger._sql_url(text) == url


@pytest.mark.parametrize("text", WRONG)
def test_everything_else_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither|names no file|no other database|needs a file"):
        parse_address(text)


def test_several_ledgers_at_once_are_files() -> None:
    assert isinstance(_ledger.open_ledger(["usage.jsonl.1.gz", "usage.jsonl"]), _ledger.LedgerFiles)
    with pytest.raises(click.UsageError, match="files of JSON Lines"):
        _ledger.open_ledger(["usage.jsonl", "usage.db"])


def test_a_database_is_read_where_it_is_and_never_made(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="no such file"):
        LedgerTables(f"sqlite:///{tmp_path}/usage.db")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shown", [shown_address, _ledger.shown_address])
def test_a_password_is_never_shown(shown: object) -> None:
    assert callable(shown)
    assert shown("postgresql://me:se@cr:et@host/name") == "postgresql://me:***@host/name"
    assert shown("postgresql://host/name?password=secret&x=1") == "postgresql://host/name?password=***&x=1"
    assert shown("sqlite:///usage.db") == "sqlite:///usage.db"
    with pytest.raises(ValueError, match="postgresql://") as refused:
        parse_address("mysql://me:secret@host/name")
    assert "secret" not in str(refused.value)


def test_the_service_refuses_a_wrong_address_and_never_shows_a_password() -> None:
    with pytest.raises(ValidationError, match="--ledger: 'on' is neither a file"):
        ServiceSettings(ledger="on")
    settings = ServiceSettings(ledger="postgresql://me:secret@host/name")
    assert settings.model_dump(mode="json")["ledger"] == "postgresql://me:***@host/name"
    assert settings.ledger == "postgresql://me:secret@host/name"
