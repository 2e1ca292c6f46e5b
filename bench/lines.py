"""What a section has found, one line a figure, and whether it is what was promised. Pure but for printing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["Line", "Quantiles", "at_most", "document", "figure", "holds", "print_lines", "quantiles"]


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. `promised` is what it is held against and `is_kept` the verdict, both None where nothing is."""

    what: str
    measured: str
    promised: str | None = None
    is_kept: bool | None = None

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return {None: "", True: "kept", False: "BROKEN"}[self.is_kept]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of one set of samples, in their unit; all 0 for none."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


def quantiles(samples: Sequence[float]) -> Quantiles:
    """Return the quantiles of samples in any order, interpolated, never beyond the largest."""
    if len(samples) < 2:
        only = samples[0] if samples else 0.0
        return Quantiles(len(samples), only, only, only, only)
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return Quantiles(len(samples), cuts[49], cuts[94], cuts[98], max(samples))


def figure(what: str, measured: str) -> Line:
    """Return a figure that is held against nothing."""
    return Line(what, measured)


def holds(what: str, measured: str, promised: str, *, is_kept: bool) -> Line:
    """Return a figure and its verdict."""
    return Line(what, measured, promised, is_kept)


def at_most(what: str, value: float, limit: float, unit: str, *, more: str = "") -> Line:
    """Return a figure that must not exceed `limit`; `more` is told beside it."""
    measured = f"{value:,.1f} {unit}" + (f" ({more})" if more else "")
    return Line(what, measured, f"at most {limit:,.1f} {unit}", value <= limit)


def document(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Return the lines for the results file."""
    return [asdict(line) for line in lines]


def print_lines(console: Console, title: str, lines: Iterable[Line]) -> None:
    """Print a table of figures and verdicts."""
    table = Table(title=title, title_justify="left")
    for name in ("", "measured", "promised", "verdict"):
        table.add_column(name)
    for line in lines:
        colour = {None: "", True: "green", False: "bold red"}[line.is_kept]
        verdict = f"[{colour}]{line.verdict}[/]" if colour else ""
        table.add_row(line.what, line.measured, line.promised or "", verdict)
    console.print(table)
