"""`headrace completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]

PROGRAM = "headrace"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash: eval "$(headrace completion bash)", in ~/.bashrc to have it always; the same
    for zsh in ~/.zshrc. For fish: headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    made = get_completion_class(shell)
    assert made is not None, "click has these three"
    click.echo(made(context.find_root().command, {}, PROGRAM, "_HEADRACE_COMPLETE").source())
