"""`headrace chat`: a conversation, typed or piped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import click

from headrace import AsyncClient, HeadraceError, RequestFields
from headrace.cli._connection import CallFailed, Connection, connection_options
from headrace.cli._progress import Progress, text_pieces
from headrace.cli._sampling import sampling_options

__all__ = ["chat"]


@dataclass(slots=True, kw_only=True)
class _Conversation:
    """The turns so far. A turn without any answer is taken back; half an answer is kept."""

    client: AsyncClient
    timeout_s: float | None
    fields: RequestFields
    turns: list[tuple[str, str]] = field(default_factory=list)

    async def answer(self, text: str) -> None:
        """Send one user turn and print the answer as it comes; cancelling stops it."""
        self.turns.append(("user", text))
        pieces: list[str] = []
        note = ""
        try:
            self.fields["chat"] = self.turns
            async with self.client.generate(timeout_s=self.timeout_s, **self.fields) as stream:
                async for piece in text_pieces(stream, Progress()):
                    pieces.append(piece)
                    click.echo(piece, nl=False)
            note = _ending_note(stream.finish_reasons.get(0))
        except asyncio.CancelledError:
            note = "cancelled"
            raise
        finally:
            click.echo()
            if note:
                click.echo(f"({note})", err=True)
            if pieces:
                self.turns.append(("assistant", "".join(pieces)))
            else:
                self.turns.pop()


@click.command()
@sampling_options
@click.option("--system", help="System prompt.")
@connection_options
def chat(*, connection: Connection, model: str | None, system: str | None, fields: RequestFields) -> None:
    """Talk to a model, turn by turn; every line is a turn.

    Ctrl-C stops the current answer, Ctrl-D leaves. Lines can also be piped in.
    """
    is_interactive = sys.stdin.isatty()
    # One loop for the whole conversation, and not running while a line is typed: the runner turns
    # Ctrl-C into a cancel of the current answer, and the prompt keeps the terminal's own editing.
    with asyncio.Runner() as runner:
        client = connection.client()
        try:
            fields["model"] = model or runner.run(client.default_model(timeout_s=connection.timeout_s))
            conversation = _Conversation(client=client, timeout_s=connection.timeout_s, fields=fields)
            if system:
                conversation.turns.append(("system", system))
            if is_interactive:
                click.echo(
                    f"{fields['model']} at {connection.target}. Ctrl-C stops an answer, Ctrl-D leaves.", err=True
                )
            for line in _typed_lines() if is_interactive else _piped_lines():
                _take_turn(runner, conversation, line, is_interactive=is_interactive)
        finally:
            runner.run(client.close())


def _ending_note(finish_reason: str | None) -> str:
    """Return what a person should know of an answer's end: nothing where the model came to its end."""
    return "" if finish_reason in (None, "STOP") else finish_reason.lower().replace("_", " ")


def _take_turn(runner: asyncio.Runner, conversation: _Conversation, line: str, *, is_interactive: bool) -> None:
    try:
        runner.run(conversation.answer(line))
    except HeadraceError as error:
        if not is_interactive:
            raise
        CallFailed(error).show()
    except KeyboardInterrupt:
        if not is_interactive:
            raise


def _typed_lines() -> Iterator[str]:
    with suppress(ImportError):
        import readline  # noqa: F401 - editing and history for input()
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            click.echo(err=True)
            return
        except KeyboardInterrupt:  # throws the half-typed line away, like a shell
            click.echo(err=True)
            continue
        if line:
            yield line


def _piped_lines() -> Iterator[str]:
    for line in sys.stdin:
        if line.strip():
            yield line.strip()
