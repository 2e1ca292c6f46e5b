"""How the commands write: tables, JSON, and the words for the contract's enums."""

from __future__ import annotations

import json
import sys
from typing import Final, Protocol

import click
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table

__all__ = ["enum_word", "print_json", "print_table"]

PIPED_WIDTH: Final = 240  # rich would fold cells at 80 columns when there is no terminal


class ProtoEnum(Protocol):
    """An enum of protobuf."""

    def Name(self, number: int) -> str:  # noqa: N802 - protobuf's name
        """Return the name of a value. ValueError if it has none."""


def print_table(table: Table) -> None:
    """Print a table, as wide as it needs when it is not for a terminal."""
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)


def print_json(message: Message) -> None:
    """Print a message as one line of JSON, with the field names of the contract."""
    fields = MessageToDict(message, preserving_proto_field_name=True)
    click.echo(json.dumps(fields, ensure_ascii=False))


def enum_word(enum: ProtoEnum, value: int, prefix: str) -> str:
    """Return a value's name without its prefix, in small letters; a number if this client does not know it."""
    try:
        return enum.Name(value).removeprefix(prefix).lower()
    except ValueError:  # of a newer service
        return str(value)
