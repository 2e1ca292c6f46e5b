"""`headrace models`: what the service can run."""

from __future__ import annotations

import asyncio
import json

import click
from google.protobuf.json_format import MessageToDict
from rich.table import Table

from headrace.cli._connection import Connection, connection_options
from headrace.cli._output import enum_word, print_table
from headrace.v1 import model_pb2

__all__ = ["models"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@connection_options
def models(*, connection: Connection, as_json: bool) -> None:
    """List the models of the service."""
    listed = asyncio.run(_list(connection))
    if as_json:
        fields = [MessageToDict(model, preserving_proto_field_name=True) for model in listed]
        click.echo(json.dumps(fields, indent=2, ensure_ascii=False))
        return
    table = Table("id", "aliases", "state", "context", "max output", "capabilities")
    for model in listed:
        table.add_row(
            model.id,
            ", ".join(model.aliases),
            enum_word(model_pb2.ModelState, model.state, "MODEL_STATE_"),
            str(model.max_context_tokens or "-"),
            str(model.max_output_tokens or "-"),
            ", ".join(enum_word(model_pb2.ModelCapability, item, "MODEL_CAPABILITY_") for item in model.capabilities),
        )
    print_table(table)


async def _list(connection: Connection) -> list[model_pb2.Model]:
    async with connection.client() as client:
        return await client.list_models(timeout_s=connection.timeout_s)
