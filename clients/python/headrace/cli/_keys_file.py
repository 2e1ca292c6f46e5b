"""The file of API keys: read, and changed so that nothing else in it changes.

The service reads the same file with an implementation of its own; this package
imports nothing of it. The file is TOML that people write in too: a change adds
lines, keeps their comments, and is looked at before it takes the old file's place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

__all__ = ["KeysFileProblem", "NewKey", "add", "new_key", "read", "revoke"]

_HEADING: Final = """\
# API keys of Headrace, and whose client certificates are. `headrace keys` adds and revokes keys.
# The secrets are not in here: `sha256` is the hash of one.
"""
_TABLE: Final = "[[keys]]"
_ID_BYTES: Final = 4
_SECRET_BYTES: Final = 32
_LOCK_WAIT_S: Final = 10.0
_LOCK_POLL_S: Final = 0.05
_NEW_MODE: Final = 0o600


class KeysFileProblem(Exception):  # noqa: N818 - told to a person as it is
    """The file cannot be read or changed; the text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made. `text` is the key itself, which is nowhere else."""

    id: str
    text: str = field(repr=False)
    sha256: str
    tenant: str
    created: datetime
    expires: datetime | None = None
    models: Sequence[str] | None = None
    note: str = ""


def new_key(
    tenant: str, *, expires: datetime | None = None, models: Sequence[str] | None = None, note: str = ""
) -> NewKey:
    """Return a new key with an id and 256 random bits."""
    key_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    return NewKey(
        id=key_id,
        text=f"hr_{key_id}_{secret}",
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        tenant=tenant,
        created=datetime.now(UTC).replace(microsecond=0),
        expires=expires,
        models=models,
        note=note,
    )


def read(path: Path) -> list[dict[str, Any]]:
    """Return the tables of the keys, as they stand in the file. Raises `KeysFileProblem`."""
    return _tables(_parsed(_text(path), path), path)


def add(path: Path, key: NewKey) -> None:
    """Add a key; a file that is not there is made, readable for its owner alone. Raises `KeysFileProblem`."""
    with _locked(path):
        text = _text(path) if path.exists() else _HEADING
        before = _parsed(text, path)
        if any(table.get("id") == key.id for table in _tables(before, path)):
            raise KeysFileProblem("the new key's id is taken: try again")
        changed = f"{text.rstrip()}\n\n{_written(key)}"
        expected = {**before, "keys": [*_tables(before, path), _table(key)]}
        _replace(path, changed, expected)


def revoke(path: Path, key_id: str) -> bool:
    """Mark a key as revoked; return False if it was already. Raises `KeysFileProblem`, also if there is none."""
    with _locked(path):
        text = _text(path)
        before = _parsed(text, path)
        tables = _tables(before, path)
        number = next((at for at, table in enumerate(tables) if table.get("id") == key_id), None)
        if number is None:
            raise KeysFileProblem(f"{path} has no key with the id {key_id}")
        if tables[number].get("revoked", False) is not False:
            return False
        now = datetime.now(UTC).replace(microsecond=0)
        tables[number] = {**tables[number], "revoked": now}
        _replace(path, _with_line(text, number, f"revoked = {_time(now)}"), {**before, "keys": tables})
        return True


def _with_line(text: str, number: int, line: str) -> str:
    """Return `text` with a line below the head of one of its tables of keys, instead of one that sets the same."""
    lines = [found + "\n" for found in text.split("\n")]  # and at no other character that Python takes for an end
    heads = [at for at, found in enumerate(lines) if _head(found).startswith(_TABLE)]
    if number >= len(heads):
        return text  # it is written in another way, and what is not as expected is refused
    begin = heads[number]
    end = next((at for at in range(begin + 1, len(lines)) if _head(lines[at]).startswith("[")), len(lines))
    name = line.partition("=")[0].strip()
    body = [found for found in lines[begin + 1 : end] if found.partition("=")[0].strip() != name]
    return "".join([*lines[: begin + 1], line + "\n", *body, *lines[end:]]).removesuffix("\n")


def _head(line: str) -> str:
    return line.replace(" ", "").replace("\t", "")


def _table(key: NewKey) -> dict[str, Any]:
    table: dict[str, Any] = {"id": key.id, "tenant": key.tenant, "sha256": key.sha256, "created": key.created}
    if key.expires is not None:
        table["expires"] = key.expires
    if key.models is not None:
        table["models"] = list(key.models)
    if key.note:
        table["note"] = key.note
    return table


def _written(key: NewKey) -> str:
    return "".join([f"{_TABLE}\n", *(f"{name} = {_value(value)}\n" for name, value in _table(key).items())])


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return _time(value)
    # TOML's basic strings take JSON's escapes; DEL alone is none of JSON's.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise KeysFileProblem(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise KeysFileProblem(f"{path} is not UTF-8") from None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise KeysFileProblem(f"{path} is not TOML: {error}") from None


def _tables(document: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    tables = document.get("keys", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise KeysFileProblem(f"{path} is no file of keys: its keys are no tables")
    return list(tables)


def _replace(path: Path, text: str, expected: Mapping[str, Any]) -> None:
    """Put `text` in the file's place in one step, if it says what is expected."""
    try:
        is_right = tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise KeysFileProblem(
            f"{path} is written in a way that this command does not change: write the keys as {_TABLE} tables, or "
            "change it by hand"
        )
    target = path.resolve()  # a link stays one
    kept = target.stat() if target.exists() else None
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(descriptor, _NEW_MODE if kept is None else kept.st_mode & 0o777)
                if kept is not None and (kept.st_uid, kept.st_gid) != (os.geteuid(), os.getegid()):
                    # Else the service could not read its keys any more.
                    os.fchown(descriptor, kept.st_uid, kept.st_gid)
                os.fsync(descriptor)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise KeysFileProblem(f"{path} cannot be written: {error.strerror}") from None
    except UnicodeEncodeError:
        raise KeysFileProblem("what was given is no text that UTF-8 has") from None


def _sync_folder(folder: Path) -> None:
    """Have the new name survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other commands from changing the file meanwhile.

    The lock is on the folder: the file itself is replaced, and a lock on what it was keeps nobody away.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        raise KeysFileProblem("this system has no file locks, without which keys are not written") from None
    try:
        descriptor = os.open(path.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise KeysFileProblem(f"{path} cannot be written: its folder: {error.strerror}") from None
    try:
        give_up_s = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    raise KeysFileProblem(f"somebody else has been writing beside {path} for too long") from None
                time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)
