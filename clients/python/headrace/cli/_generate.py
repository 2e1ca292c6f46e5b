"""`headrace generate`: one prompt in, text out as it comes."""

from __future__ import annotations

import asyncio
import sys

import click
import grpc

from headrace import GenerationStream, RequestFields, errors
from headrace.cli._connection import Connection, connection_options
from headrace.cli._output import print_json
from headrace.cli._progress import Progress, cancelled_line, text_pieces
from headrace.cli._sampling import sampling_options
from headrace.cli._summary import summary_line

__all__ = ["generate", "print_generation"]


@click.command()
@click.argument("prompt")
@sampling_options
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Run once, however often it is asked for: the same key and request join or replay the same generation.",
)
@click.option(
    "--retain-for",
    "retain_for_s",
    type=float,
    metavar="SECONDS",
    help="Keep what is generated so long behind its end, for `headrace attach`.",
)
@click.option("--continue-on-disconnect", is_flag=True, help="Keep it, and run to the end though nobody reads.")
@click.option("--json", "as_json", is_flag=True, help="Print every event as one line of JSON instead of text.")
@click.option(
    "-v", "--verbose", "is_verbose", is_flag=True, help="Tell the id of the generation as soon as it is known."
)
@connection_options
def generate(
    *,
    connection: Connection,
    prompt: str,
    model: str | None,
    idempotency_key: str | None,
    retain_for_s: float | None,
    continue_on_disconnect: bool,
    as_json: bool,
    is_verbose: bool,
    fields: RequestFields,
) -> None:
    """Continue PROMPT and print the text as it comes; "-" reads the prompt from standard input.

    Text goes to standard output, a line with usage and timing to standard
    error. Ctrl-C cancels the generation; one that is kept stops a while later,
    unless somebody attaches to it. One that somebody else cancels ends with exit
    code 1 behind the text that there is.
    """
    if prompt == "-":
        prompt = sys.stdin.read()
    fields["prompt"] = prompt
    if idempotency_key is not None:
        fields["idempotency_key"] = idempotency_key
    if retain_for_s is not None:
        fields["retain_for_s"] = retain_for_s
    if continue_on_disconnect:
        fields["continue_on_disconnect"] = True
    asyncio.run(_generate(connection, model, fields, Progress(is_verbose=is_verbose), as_json=as_json))


async def _generate(
    connection: Connection, model: str | None, fields: RequestFields, progress: Progress, *, as_json: bool
) -> None:
    async with connection.client() as client:
        fields["model"] = model or await client.default_model(timeout_s=connection.timeout_s)
        await print_generation(client.generate(timeout_s=connection.timeout_s, **fields), progress, as_json=as_json)


async def print_generation(stream: GenerationStream, progress: Progress, *, as_json: bool) -> None:
    """Enter a generation, print it, and a line about it at its end. Raises Cancelled for one stopped by its id."""
    async with stream:
        try:
            await (_print_events(stream, progress) if as_json else _print_text(stream, progress))
        except asyncio.CancelledError:
            click.echo(cancelled_line(stream), err=True)
            raise
        click.echo(summary_line(stream), err=True)
    if "CANCELLED" in stream.finish_reasons.values():
        raise errors.Cancelled(
            f"generation {stream.generation_id} was stopped by CancelGeneration", status=grpc.StatusCode.CANCELLED
        )


async def _print_text(stream: GenerationStream, progress: Progress) -> None:
    ends_line = True
    try:
        async for piece in text_pieces(stream, progress):
            click.echo(piece, nl=False)  # flushes
            ends_line = piece.endswith("\n")
    finally:
        if not ends_line:
            click.echo()


async def _print_events(stream: GenerationStream, progress: Progress) -> None:
    try:
        async for event in stream:
            progress.note(stream, event)
            print_json(event)
    finally:
        progress.clear()
