"""Where a ledger is kept: a file of JSON Lines, or a SQL database. Pure.

`headrace usage` reads the same addresses; the client package stands alone and has a copy of these rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["FileAddress", "SqlAddress", "parse_address", "shown_address"]

_FILE: Final = "file:"
_JSONL_ENDINGS: Final = frozenset({".jsonl", ".ndjson"})
_SQLITE_ENDINGS: Final = frozenset({".db", ".sqlite", ".sqlite3"})
# What people write, and the driver that is meant.
_SCHEMES: Final = {
    "sqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_MEMORY: Final = frozenset({"", ":memory:"})
# Up to the last @: a password may have one.
_PASSWORD: Final = re.compile(r"(://[^:/@]*):.*@")
_PASSWORD_FIELD: Final = re.compile(r"([?&]password=)[^&]*")


@dataclass(frozen=True, slots=True)
class FileAddress:
    """A file of JSON Lines."""

    path: Path


@dataclass(frozen=True, slots=True)
class SqlAddress:
    """A SQLAlchemy URL with its driver; it may hold a password."""

    url: str


def parse_address(text: str) -> FileAddress | SqlAddress:
    """Return what `text` means. ValueError says what is accepted; it never holds a password."""
    if text.startswith(_FILE):
        path = text.removeprefix(_FILE)
        # file:///var/x is the URL form of /var/x; everything else is the path as it stands.
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path or path.endswith("/"):
            raise ValueError(f"{text!r} names no file")
        return FileAddress(Path(path))
    scheme, mark, rest = text.partition("://")
    if mark:
        return _sql(scheme, rest)
    ending = Path(text).suffix.lower()
    if ending in _JSONL_ENDINGS:
        return FileAddress(Path(text))
    if ending in _SQLITE_ENDINGS:
        return SqlAddress(f"sqlite:///{text}")
    raise ValueError(
        f"{shown_address(text)!r} is neither a file (.jsonl, .ndjson, or file:PATH) nor a SQLite file (.db, .sqlite) "
        "nor a URL (sqlite:///PATH, postgresql://USER@HOST/NAME)"
    )


def shown_address(text: str) -> str:
    """Return `text` without its password, for logs and for --print-config."""
    return _PASSWORD_FIELD.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def _sql(scheme: str, rest: str) -> SqlAddress:
    driver = _SCHEMES.get(scheme.lower())
    if driver is None:
        raise ValueError("a ledger is kept in sqlite:// or postgresql://, and in no other database")
    path = rest.removeprefix("/").partition("?")[0]
    if driver == "sqlite" and (not rest.startswith("/") or path in _MEMORY):
        raise ValueError("a ledger in SQLite needs a file: sqlite:///PATH")
    return SqlAddress(f"{driver}://{rest}")
