"""Tables on standard output."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console
from rich.table import Table

__all__ = ["print_table"]

PIPED_WIDTH: Final = 240  # rich would fold cells at 80 columns when there is no terminal


def print_table(table: Table) -> None:
    """Print a table, as wide as it needs when it is not for a terminal."""
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)
