"""`headrace doctor`: looks at the way to a service step by step, and says what is wrong with it."""

from __future__ import annotations

import asyncio
import json
from typing import Final

import click

from headrace.cli._connection import Connection, connection_options
from headrace.cli._doctor_checks import Finding, State, examine

__all__ = ["doctor"]

TIMEOUT_S: Final = 5.0
MARKS: Final = {State.OK: ("ok", "green"), State.WARNING: ("warning", "yellow"), State.FAILED: ("FAILED", "red")}
WIDTH: Final = 21


@click.command()
@click.option("--model", help="Model to try.  [default: the first one that is ready]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@connection_options
def doctor(*, connection: Connection, model: str | None, as_json: bool) -> None:
    """Check address, TLS, health, reflection, credentials, a small generation, its clocks, and a cancel.

    Says what was seen, and what to do about what is wrong. Exit code 1 if something is.
    """

    async def run() -> list[Finding]:
        findings = []
        async with connection.client() as client:
            async for finding in examine(
                client, connection.tls, connection.metadata, model, connection.timeout_s or TIMEOUT_S
            ):
                findings.append(finding)
                if not as_json:
                    _tell(finding)
        return findings

    findings = asyncio.run(run())
    failed = [finding for finding in findings if finding.state is State.FAILED]
    if as_json:
        checks = [
            {"check": one.check, "state": one.state.value, "told": one.told, "hint": one.hint or None}
            for one in findings
        ]
        click.echo(json.dumps({"target": connection.target, "is_well": not failed, "checks": checks}, indent=2))
    elif not failed:
        warnings = sum(finding.state is State.WARNING for finding in findings)
        click.echo("All is well." if not warnings else f"It works; {warnings} thing{'s' * (warnings > 1)} to look at.")
    if failed:
        raise click.exceptions.Exit(1)


def _tell(finding: Finding) -> None:
    word, colour = MARKS[finding.state]
    mark = click.style(f"{word:<8}", fg=colour, bold=finding.state is State.FAILED)
    click.echo(f"{mark}{finding.check:<{WIDTH}}{finding.told}")
    if finding.hint:
        click.echo(f"{'':<{8 + WIDTH}}{finding.hint}")
