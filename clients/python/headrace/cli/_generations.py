"""`headrace status` and `headrace cancel`: a generation by its id, from whichever client it was begun."""

from __future__ import annotations

import asyncio
import re
from typing import Final

import click

from headrace.cli._connection import Connection, connection_options
from headrace.cli._output import enum_word, print_json
from headrace.cli._summary import state_line
from headrace.v1 import generation_pb2 as pb

__all__ = ["cancel", "status"]

# What the HTTP gateway puts in front of the id of a generation.
_HTTP_PREFIX: Final = re.compile(r"^(chatcmpl-|cmpl-|resp_)(?=gen_)")


def _generation_id(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    return _HTTP_PREFIX.sub("", value)


@click.command()
@click.argument("generation_id", metavar="ID", callback=_generation_id)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@connection_options
def status(*, connection: Connection, generation_id: str, as_json: bool) -> None:
    """Tell where generation ID is: in the line, running, or how it ended.

    ID may also be that of an HTTP answer, chatcmpl-gen_... and the like.
    A server knows what it runs, and what ended there within the last minutes:
    of several replicas, name the right one with --target.
    """

    async def ask() -> pb.GetGenerationResponse:
        async with connection.client() as client:
            return await client.get_generation(generation_id, timeout_s=connection.timeout_s)

    found = asyncio.run(ask())
    if as_json:
        print_json(found)
    else:
        click.echo(state_line(found))


@click.command()
@click.argument("generation_id", metavar="ID", callback=_generation_id)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@connection_options
def cancel(*, connection: Connection, generation_id: str, as_json: bool) -> None:
    """Stop generation ID and print its state: stopping, or how it had ended.

    ID may also be that of an HTTP answer, chatcmpl-gen_... and the like.
    Its reader gets the text so far, usage, and the finish reason cancelled. One
    that has ended stays as it ended. Of several replicas, name the one that
    runs it with --target.
    """

    async def ask() -> pb.CancelGenerationResponse:
        async with connection.client() as client:
            return await client.cancel_generation(generation_id, timeout_s=connection.timeout_s)

    answer = asyncio.run(ask())
    if as_json:
        print_json(answer)
    elif answer.state in (pb.GENERATION_STATE_QUEUED, pb.GENERATION_STATE_RUNNING):
        click.echo("stopping")
    else:
        click.echo(enum_word(pb.GenerationState, answer.state, "GENERATION_STATE_"))
