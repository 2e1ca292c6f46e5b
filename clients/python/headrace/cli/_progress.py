"""What a person is told of a generation besides its text, on standard error."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import click

from headrace import GenerationStream
from headrace.cli._summary import waiting_line
from headrace.v1 import generation_pb2 as pb

__all__ = ["Progress", "cancelled_line", "text_pieces"]


class Progress:
    """Shows a generation's id, if it is to, and its place in the waiting line while it waits.

    In a terminal the place is one line, written anew and gone at the end;
    elsewhere each one is a line of its own.
    """

    def __init__(self, *, is_verbose: bool = False) -> None:
        self._is_verbose = is_verbose
        self._is_terminal = sys.stderr.isatty()
        self._is_told = False
        self._shown = ""

    def note(self, stream: GenerationStream, event: pb.GenerateResponse) -> None:
        """Take any event of a stream."""
        if self._is_verbose and not self._is_told and stream.generation_id is not None:
            self._is_told = True
            request = f" (request {stream.request_id})" if stream.request_id else ""
            click.echo(f"generation {stream.generation_id}{request}", err=True)
        if event.HasField("queued"):
            self._show(waiting_line(event.queued))
        elif self._shown:
            self.clear()

    def clear(self) -> None:
        """Take away what only mattered while the request waited."""
        if self._is_terminal and self._shown:
            click.echo(f"\r{' ' * len(self._shown)}\r", nl=False, err=True)
        self._shown = ""

    def _show(self, text: str) -> None:
        if self._is_terminal:
            click.echo(f"\r{text.ljust(len(self._shown))}", nl=False, err=True)
        elif text != self._shown:
            click.echo(text, err=True)
        self._shown = text


async def text_pieces(stream: GenerationStream, progress: Progress) -> AsyncIterator[str]:
    """Yield the pieces of text of choice 0 as they come, and show the progress meanwhile."""
    try:
        async for event in stream:
            progress.note(stream, event)
            if event.HasField("delta") and event.delta.index == 0 and event.delta.text:
                yield event.delta.text
    finally:
        progress.clear()


def cancelled_line(stream: GenerationStream) -> str:
    """Return what Ctrl-C has done."""
    return f"cancelled generation {stream.generation_id}" if stream.generation_id else "cancelled"
