"""`headrace generate`: one prompt in, text out as it comes."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import click
from google.protobuf.json_format import MessageToDict

from headrace import GenerationStream, RequestFields
from headrace.cli._connection import Connection, connection_options
from headrace.cli._sampling import sampling_options
from headrace.cli._summary import summary_line

__all__ = ["generate"]


@click.command()
@click.argument("prompt")
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print every event as one line of JSON instead of text.")
@connection_options
def generate(*, connection: Connection, prompt: str, model: str | None, as_json: bool, fields: RequestFields) -> None:
    """Continue PROMPT and print the text as it comes; "-" reads the prompt from standard input.

    Text goes to standard output, a line with usage and timing to standard
    error. Ctrl-C cancels the generation.
    """
    if prompt == "-":
        prompt = sys.stdin.read()
    fields["prompt"] = prompt
    asyncio.run(_generate(connection, model, fields, as_json=as_json))


async def _generate(connection: Connection, model: str | None, fields: RequestFields, *, as_json: bool) -> None:
    async with connection.client() as client:
        fields["model"] = model or await client.default_model(timeout_s=connection.timeout_s)
        async with client.generate(timeout_s=connection.timeout_s, **fields) as stream:
            if as_json:
                await _print_events(stream)
            else:
                await _print_text(stream)
            click.echo(summary_line(stream), err=True)


async def _print_text(stream: GenerationStream) -> None:
    ends_line = True
    try:
        async for piece in stream.deltas():
            click.echo(piece, nl=False)  # flushes
            ends_line = piece.endswith("\n")
    finally:
        if not ends_line:
            click.echo()


async def _print_events(stream: GenerationStream) -> None:
    async for event in stream:
        fields: dict[str, Any] = MessageToDict(event, preserving_proto_field_name=True)
        click.echo(json.dumps(fields, ensure_ascii=False))
