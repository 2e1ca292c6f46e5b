"""`headrace attach`, `status` and `cancel`: a generation by its id or key, from whichever client it was begun."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import click

from headrace.cli._connection import Connection, connection_options
from headrace.cli._generate import print_generation
from headrace.cli._output import enum_word, print_json
from headrace.cli._progress import Progress
from headrace.cli._summary import state_line
from headrace.v1 import generation_pb2 as pb

__all__ = ["attach", "cancel", "status"]

# What the HTTP gateway puts in front of the id of a generation.
_HTTP_PREFIX: Final = re.compile(r"^(chatcmpl-|cmpl-|resp_)(?=gen_)")


def _generation_id(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else _HTTP_PREFIX.sub("", value)


def _target(command: Callable[..., None]) -> Callable[..., None]:
    """Add what names a generation: its id, or its key."""

    @click.argument("generation_id", metavar="[ID]", required=False, callback=_generation_id)
    @click.option("--key", "idempotency_key", metavar="KEY", help="The key that it was asked for with, in place of ID.")
    @wraps(command)
    def named(*, generation_id: str | None, idempotency_key: str | None, **options: Any) -> None:
        if (generation_id is None) is (idempotency_key is None):
            raise click.UsageError("give ID or --key.")
        name = {"idempotency_key": idempotency_key} if generation_id is None else {"generation_id": generation_id}
        command(named=name, **options)

    return named


@click.command()
@_target
@click.option("--after", "after_sequence", default=0, show_default=True, help="Number of the last event that is known.")
@click.option("--json", "as_json", is_flag=True, help="Print every event as one line of JSON instead of text.")
@connection_options
def attach(*, connection: Connection, named: dict[str, Any], after_sequence: int, as_json: bool) -> None:
    """Print generation ID from its beginning, or behind an event, and go on until it ends.

    Of one that is kept: it has a key, or was asked for with --retain-for or
    --continue-on-disconnect. Ctrl-C leaves it.
    """

    async def read() -> None:
        async with connection.client() as client:
            stream = client.attach(after_sequence=after_sequence, timeout_s=connection.timeout_s, **named)
            await print_generation(stream, Progress(), as_json=as_json)

    asyncio.run(read())


@click.command()
@_target
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@connection_options
def status(*, connection: Connection, named: dict[str, Any], as_json: bool) -> None:
    """Tell where generation ID is: in the line, running, or how it ended.

    ID may also be that of an HTTP answer, chatcmpl-gen_... and the like.
    A server knows what it runs, and what ended there within the last minutes;
    of replicas that share no store, name the right one with --target.
    """

    async def ask() -> pb.GetGenerationResponse:
        async with connection.client() as client:
            return await client.get_generation(timeout_s=connection.timeout_s, **named)

    found = asyncio.run(ask())
    if as_json:
        print_json(found)
    else:
        click.echo(state_line(found))


@click.command()
@_target
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@connection_options
def cancel(*, connection: Connection, named: dict[str, Any], as_json: bool) -> None:
    """Stop generation ID and print its state: stopping, or how it had ended.

    ID may also be that of an HTTP answer, chatcmpl-gen_... and the like.
    Its reader gets the text so far, usage, and the finish reason cancelled. One
    that has ended stays as it ended.
    """

    async def ask() -> pb.CancelGenerationResponse:
        async with connection.client() as client:
            return await client.cancel_generation(timeout_s=connection.timeout_s, **named)

    answer = asyncio.run(ask())
    if as_json:
        print_json(answer)
    elif answer.state in (pb.GENERATION_STATE_QUEUED, pb.GENERATION_STATE_RUNNING):
        click.echo("stopping")
    else:
        click.echo(enum_word(pb.GenerationState, answer.state, "GENERATION_STATE_"))
