"""`headrace usage`: what the service's usage ledger adds up to."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import click
from rich.table import Table

from headrace.cli._ledger import Filter, UsageLedger, open_ledger, utc
from headrace.cli._output import print_table
from headrace.cli._summary import milliseconds
from headrace.cli._usage_sums import GROUPINGS, INTERRUPTED, Row, Sum, sums_of

__all__ = ["usage"]

_OPEN_FIELDS: Final = (
    *("state", "generation_id", "request_id", "received_at", "tenant", "subject", "end_user", "model", "process_id"),
)


class _Address(click.ParamType[str]):
    """An address that a variable holds one of, whatever is in it."""

    name = "address"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return it whole: click would take spaces for several."""
        return [rv]


def _moment(_context: click.Context, _parameter: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        return utc(datetime.fromisoformat(value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no date (2026-11-01) or time (2026-11-01T12:00:00+01:00)") from None


def _groupings(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if unknown := [name for name in names if name not in GROUPINGS]:
        raise click.BadParameter(f"{', '.join(unknown)}: not among {', '.join(GROUPINGS)}")
    return names


@click.command()
@click.option(
    "--ledger",
    "addresses",
    type=_Address(),
    multiple=True,
    required=True,
    envvar="HEADRACE_LEDGER",
    show_envvar=True,
    metavar="PATH|URL",
    help="As the service's HEADRACE_LEDGER. Rotated files, also .gz, can be named too, the oldest first.",
)
@click.option(
    "--since", callback=_moment, metavar="TIME", help="Requests received from then on; UTC unless it says so."
)
@click.option("--until", callback=_moment, metavar="TIME", help="Requests received before then.")
@click.option("--tenant", help="Requests of this tenant.")
@click.option(
    "--by",
    default="tenant,model",
    show_default=True,
    callback=_groupings,
    metavar="NAMES",
    help=f"One line for each of: {', '.join(GROUPINGS)}. An empty one gives the total alone.",
)
@click.option("--open", "is_open", is_flag=True, help="List what has no end: what runs, and what was interrupted.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV, with a line of names.")
def usage(
    *,
    addresses: Sequence[str],
    since: datetime | None,
    until: datetime | None,
    tenant: str | None,
    by: Sequence[str],
    is_open: bool,
    form: str | None,
) -> None:
    """Add up the usage ledger: requests, tokens, time to first token, outcomes.

    Reads the ledger itself; the service need not run. Quantiles are true to
    one in a hundred.
    """
    ledger = open_ledger(addresses)
    wanted = Filter(since=since, until=until, tenant=tenant)
    if is_open:
        _print_open(_open_rows(ledger, wanted), form)
    else:
        _print_sums(ledger, wanted, by, form)
    for note in ledger.notes:
        click.echo(note, err=True)


def _open_rows(ledger: UsageLedger, wanted: Filter) -> list[dict[str, Any]]:
    rows: list[Row] = [{**row, "state": INTERRUPTED} for row in ledger.ended(wanted) if row["outcome"] == INTERRUPTED]
    rows += ledger.unended(wanted)
    rows.sort(key=lambda row: row["received_at"])
    return [
        {**{name: row.get(name) for name in _OPEN_FIELDS}, "received_at": _shown(row["received_at"])} for row in rows
    ]


def _print_open(rows: Sequence[dict[str, Any]], form: str | None) -> None:
    if form == "json":
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    elif form == "csv":
        _print_csv(_OPEN_FIELDS, [list(row.values()) for row in rows])
    elif rows:
        table = Table("state", "generation", "received", "tenant", "model", "process")
        for row in rows:
            names = ("state", "generation_id", "received_at", "tenant", "model", "process_id")
            table.add_row(*(row[name] or "-" for name in names))
        print_table(table)
    else:
        click.echo("nothing runs, nothing was interrupted")


def _print_sums(ledger: UsageLedger, wanted: Filter, by: Sequence[str], form: str | None) -> None:
    groups, total = sums_of(ledger.ended(wanted), by)
    unended = len(ledger.unended(wanted))
    lines = [dict(zip(by, key, strict=True)) | group.fields() for key, group in groups.items()]
    if form == "json":
        found = {"groups": lines, "total": total.fields(), "unended_requests": unended}
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if form == "csv":
        for line in lines:
            line["outcomes"] = " ".join(f"{name}={count}" for name, count in line["outcomes"].items())
        _print_csv((*by, *total.fields()), [list(line.values()) for line in lines])
        return
    if not groups:
        click.echo("no requests")
        return
    table = Table(*by)
    for name in ("requests", "prompt", "cached", "output", "TTFT p50", "p95"):
        table.add_column(name, justify="right")
    table.add_column("outcomes")
    for key, group in groups.items():
        table.add_row(*(name or "-" for name in key), *_cells(group))
    if len(groups) > 1:
        table.add_section()
        table.add_row("total", *[""] * (len(by) - 1), *_cells(total))
    print_table(table)
    if total.uncounted:
        click.echo(f"requests without token counts, which the sums miss: {total.uncounted:,}")
    if unended:
        click.echo(f"requests without an end, which are not counted: {unended:,}; see --open")


def _cells(group: Sum) -> list[str]:
    tokens = group.tokens
    figures = (group.requests, tokens["prompt_tokens"], tokens["cached_prompt_tokens"], tokens["output_tokens"])
    outcomes = ", ".join(f"{count:,} {name}" for name, count in group.fields()["outcomes"].items())
    times = (milliseconds(group.ttft.at(rank)) for rank in (0.5, 0.95))
    return [*(f"{figure:,}" for figure in figures), *times, outcomes]


def _print_csv(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)


def _shown(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
