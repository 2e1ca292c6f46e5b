"""`headrace keys`: makes, lists and revokes the API keys of a service, in the file that it reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
from rich.markup import escape
from rich.table import Table

from headrace.cli._keys_file import KeysFileProblem, add, new_key, read
from headrace.cli._keys_file import revoke as revoke_in
from headrace.cli._output import print_table

__all__ = ["keys"]

# As the service has it.
_TENANT: Final = re.compile(r"[A-Za-z0-9._:@/|+=~-]{1,128}")
# People paste the whole key where its id is asked for.
_ID: Final = re.compile(r"(?:hr_)?([0-9a-f]{8})(?:_[A-Za-z0-9_-]{43})?")
_AGE: Final = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}
_MAX_MODEL_CHARS: Final = 256


@click.group()
def keys() -> None:
    """Make, list and revoke API keys, in the file that the service reads (HEADRACE_KEYS_FILE there)."""


_FILE: Final[Callable[[Callable[..., None]], Callable[..., None]]] = click.option(
    "--file",
    "path",
    envvar="HEADRACE_KEYS_FILE",
    required=True,
    show_envvar=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of keys.",
)
_JSON: Final[Callable[[Callable[..., None]], Callable[..., None]]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON."
)


def _tenant(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not _TENANT.fullmatch(value):
        raise click.BadParameter("must be 1 to 128 letters, digits and characters of ._:@/|+=~-")
    return value


def _expiry(_context: click.Context, _option: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    now = datetime.now(UTC).replace(microsecond=0)
    if age := _AGE.fullmatch(value):
        return now + timedelta(hours=int(age[1]) * _HOURS[age[2]])
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter("must be like 12h, 90d, 52w, 2030-01-31 or 2030-01-31T12:00:00Z") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if moment <= now:
        raise click.BadParameter("is in the past")
    return moment.replace(microsecond=0)


def _models(_context: click.Context, _option: click.Parameter, value: str | None) -> list[str] | None:
    if value is None:
        return None
    models = [model.strip() for model in value.split(",")]
    if not all(0 < len(model) <= _MAX_MODEL_CHARS for model in models):
        raise click.BadParameter("must be ids of models with commas between")
    return models


def _key_id(_context: click.Context, _argument: click.Parameter, value: str) -> str:
    found = _ID.fullmatch(value)
    if found is None:  # without the value: it may be a secret
        raise click.BadParameter("must be the eight hexadecimal digits that `headrace keys list` shows")
    return found[1]


@keys.command()
@_FILE
@click.option("--tenant", required=True, callback=_tenant, help="Whom the key's limits, usage and generations are.")
@click.option("--expires", callback=_expiry, metavar="WHEN", help="12h, 90d, 52w or a date.  [default: never]")
@click.option("--models", callback=_models, metavar="ID,ID", help="Models that it may use.  [default: all]")
@click.option("--note", default="", help="Who has it, and what for.")
@_JSON
def create(
    *, path: Path, tenant: str, expires: datetime | None, models: list[str] | None, note: str, as_json: bool
) -> None:
    """Make a key and print it. It is shown this once: the file has the hash of its secret."""
    key = new_key(tenant, expires=expires, models=models, note=note)
    with _told():
        add(path, key)
    if as_json:
        fields = {"id": key.id, "key": key.text, "tenant": tenant, "expires": _text(expires), "models": models}
        click.echo(json.dumps(fields, ensure_ascii=False))
        return
    click.echo(key.text)
    ends = "never expires" if expires is None else f"expires {_text(expires)}"
    click.echo(f"key {key.id} of {tenant}, {ends}. Keep it: it is not shown again.", err=True)


@keys.command("list")
@_FILE
@_JSON
def list_keys(*, path: Path, as_json: bool) -> None:
    """List the keys, without their secrets."""
    with _told():
        rows = [_row(table) for table in read(path)]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    shown = Table("id", "tenant", "state", "created", "expires", "models", "note")
    for row in rows:
        models = "all" if row["models"] is None else ", ".join(row["models"])
        cells = (row["id"], row["tenant"], row["state"], row["created"] or "-", row["expires"] or "-", models)
        shown.add_row(*(escape(cell) for cell in (*cells, row["note"])))
    print_table(shown)


@keys.command()
@_FILE
@click.argument("key_id", metavar="ID", callback=_key_id)
def revoke(*, path: Path, key_id: str) -> None:
    """Revoke a key; the service refuses it about a second later. What runs with it ends as it would."""
    with _told():
        is_new = revoke_in(path, key_id)
    click.echo(f"revoked {key_id}" if is_new else f"{key_id} was revoked already")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except KeysFileProblem as problem:
        raise click.ClickException(str(problem)) from None


def _row(table: Mapping[str, Any]) -> dict[str, Any]:
    expires, models = table.get("expires"), table.get("models")
    state = "active"
    if isinstance(expires, datetime) and expires.tzinfo is not None and expires <= datetime.now(UTC):
        state = "expired"
    if table.get("revoked", False) is not False:
        state = "revoked"
    return {
        "id": str(table.get("id", "")),
        "tenant": str(table.get("tenant", "")),
        "state": state,
        "created": _text(table.get("created")),
        "expires": _text(expires),
        "models": [str(model) for model in models] if isinstance(models, list) else None,
        "note": str(table.get("note", "")),
    }


def _text(moment: object) -> str | None:
    if not isinstance(moment, datetime):
        return None
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
