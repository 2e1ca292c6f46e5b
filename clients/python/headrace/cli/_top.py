"""`headrace top`: what a service does now, from its metrics."""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import click
import grpc
from rich.console import Console

from headrace import errors
from headrace.cli._connection import PEM, CallFailed
from headrace.cli._scrape import Address, Page, Poller, reader_of
from headrace.cli._top_lines import fields_of, header_row, rows_of
from headrace.cli._top_monitor import Monitor, Snapshot
from headrace.cli._top_screen import show
from headrace.cli._top_view import Report

__all__ = ["top"]

_DEFAULT_URL: Final = "http://127.0.0.1:9464/metrics"
_HINT: Final = "the service shows its metrics if it is started with --metrics-port"
# How long a round waits for the page that comes last, and how often keys get their turn.
_LATE_S: Final = 1.0
_IDLE_S: Final = 0.1
# Of --once without a terminal.
_PIPED_WIDTH: Final = 100
# Rows between two lines of names.
_ROWS_A_HEADER: Final = 30


def _addresses(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> tuple[Address, ...]:
    try:
        return tuple(dict.fromkeys(Address.parsed(value) for value in values))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "--url",
    "addresses",
    multiple=True,
    default=(_DEFAULT_URL,),
    envvar="HEADRACE_METRICS_URL",
    show_default=True,
    show_envvar=True,
    callback=_addresses,
    metavar="URL",
    help="Where the metrics are, of each replica (repeatable; in the variable with spaces between). A gateway's may be "
    "among them.",
)
@click.option(
    "-n",
    "--interval",
    "interval_s",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings.",
)
@click.option(
    "--window",
    "window_s",
    type=click.FloatRange(1, 86_400),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Rates, percentiles and counts are those of so many last seconds.",
)
@click.option("--model", "models", multiple=True, metavar="ID", help="Show this model alone (repeatable).")
@click.option("--once", is_flag=True, help="Print one interval, and what was counted since the start.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each interval; times in seconds.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True, max=600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time of one reading.",
)
@click.option("--tls-ca", type=PEM, help="Root certificates (PEM) for https.")
def top(
    *,
    addresses: Sequence[Address],
    interval_s: float,
    window_s: float,
    models: Sequence[str],
    once: bool,
    as_json: bool,
    timeout_s: float,
    tls_ca: str | None,
) -> None:
    """Watch a running service: load, speed and failures of every model.

    Reads the metrics port (--metrics-port of the service). Several replicas are
    added up. A first token is counted when it is there, tokens every few seconds, and
    the rest of a generation when it ends. Without a terminal it prints a row for each
    model and interval.

    \b
    q, Ctrl-C  leave
    Tab        go on to the next model, where not all have room
    """
    try:
        tls = ssl.create_default_context(cafile=tls_ca)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{tls_ca}: no certificates", param_hint="--tls-ca") from error
    poller = Poller(addresses, reader_of(tls, timeout_s))
    monitor = Monitor([address.shown for address in addresses], interval_s if once else window_s, models)
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    try:
        snapshots = _checked(_rounds(poller, monitor, interval_s, timeout_s, is_patient=once), models)
        if once:
            _print_once(console, snapshots, as_json=as_json)
        elif as_json or not console.is_terminal or console.is_dumb_terminal or not sys.stdout.isatty():
            _print_rows(snapshots, as_json=as_json)
        else:
            show(console, snapshots)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _rounds(
    poller: Poller, monitor: Monitor, interval_s: float, timeout_s: float, *, is_patient: bool
) -> Iterator[Snapshot | None]:
    """Yield a snapshot each interval, and None many times meanwhile. The first round waits for every page."""
    patience_s = timeout_s + _LATE_S
    next_s = time.monotonic()
    while True:
        found: dict[int, Page | str] = {answer.number: answer.found for answer in poller.take(0)}
        poller.ask(began_s := time.monotonic())
        while poller.asked_s and time.monotonic() < began_s + patience_s:
            found |= {answer.number: answer.found for answer in poller.take(_IDLE_S)}
            yield None
        now_s = time.monotonic()
        for number, asked_s in poller.asked_s.items():
            if now_s - asked_s >= timeout_s + _LATE_S:
                found[number] = f"no answer within {timeout_s:g} s"
        yield monitor.round(now_s, datetime.now().astimezone(), found)
        if not is_patient:
            patience_s = min(interval_s, _LATE_S)
        next_s = max(next_s + interval_s, time.monotonic())
        while (rest_s := next_s - time.monotonic()) > 0:
            time.sleep(min(rest_s, _IDLE_S))
            yield None


def _checked(snapshots: Iterator[Snapshot | None], models: Sequence[str]) -> Iterator[Snapshot | None]:
    """Yield the same, if the first snapshot shows a service, and the models that are wanted."""
    is_first = True
    for snapshot in snapshots:
        if is_first and snapshot is not None:
            is_first = False
            if not snapshot.up:
                told = "; ".join(f"{replica.shown}: {replica.problem}" for replica in snapshot.replicas)
                raise CallFailed(errors.Unavailable(f"{told}; {_HINT}", status=grpc.StatusCode.UNAVAILABLE))
            if models and not snapshot.models:
                raise CallFailed(errors.NotFound(f"no model {', '.join(models)}", status=grpc.StatusCode.NOT_FOUND))
        yield snapshot


def _print_once(console: Console, snapshots: Iterator[Snapshot | None], *, as_json: bool) -> None:
    last = next(snapshot for snapshot in snapshots if snapshot is not None and snapshot.span_s is not None)
    if as_json:
        click.echo(json.dumps(fields_of(last), ensure_ascii=False, allow_nan=False))
    else:
        console.print(Report(last))


def _print_rows(snapshots: Iterator[Snapshot | None], *, as_json: bool) -> None:
    """Print each interval; what is wrong beside the models goes to standard error, once."""
    rows, told = 0, set[str]()
    for snapshot in snapshots:
        if snapshot is None or snapshot.span_s is None:
            continue
        if as_json:
            click.echo(json.dumps(fields_of(snapshot), ensure_ascii=False, allow_nan=False))
            continue
        problems = {f"{r.shown}: {r.problem}" for r in snapshot.replicas if r.problem is not None}
        for problem in sorted(problems - told):
            click.echo(problem, err=True)
        told = problems
        for row in rows_of(snapshot):
            if rows % _ROWS_A_HEADER == 0:
                click.echo(header_row(snapshot))
            click.echo(row)
            rows += 1
