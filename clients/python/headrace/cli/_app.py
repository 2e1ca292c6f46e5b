"""The group of commands, and how the process ends.

It owns exit codes: 0 done, 1 a call failed or its generation was cancelled by somebody else, 2 wrong usage, 130
interrupted.
"""

from __future__ import annotations

import sys

import click

from headrace._version import __version__
from headrace.cli._admin import admin
from headrace.cli._chat import chat
from headrace.cli._completion import completion
from headrace.cli._connection import INTERRUPTED
from headrace.cli._doctor import doctor
from headrace.cli._generate import generate
from headrace.cli._generations import attach, cancel, status
from headrace.cli._keys import keys
from headrace.cli._models import models
from headrace.cli._top import top
from headrace.cli._ttft import ttft
from headrace.cli._usage import usage

__all__ = ["app", "run"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="headrace")
def app() -> None:
    """Talk to a Headrace streaming inference service."""


app.add_command(admin)
app.add_command(attach)
app.add_command(cancel)
app.add_command(chat)
app.add_command(completion)
app.add_command(doctor)
app.add_command(generate)
app.add_command(keys)
app.add_command(models)
app.add_command(status)
app.add_command(top)
app.add_command(ttft)
app.add_command(usage)


def run() -> None:
    """Run the command in sys.argv and exit the process."""
    try:
        # Not standalone: click would turn Ctrl-C into exit code 1.
        result = app.main(prog_name="headrace", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    sys.exit(result if isinstance(result, int) else 0)
