"""Draws the memory of a soak, with the lines whose slopes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.memory import trend
from bench.soak.run import Soaked

__all__ = ["draw"]

BLUE: Final = "#0072B2"
GREEN: Final = "#009E73"
RED: Final = "#D55E00"
INCHES: Final = (10.0, 6.0)
DOTS_PER_INCH: Final = 110
# The memory of an interpreter is seen to move at this scale, and no finer: a flat line must look flat.
LEAST_SPAN_MIB: Final = 8.0


def draw(soaked: Soaked, path: Path) -> None:
    """Write the picture, a PNG."""
    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    minutes = [one.at_s / 60 for one in soaked.rss]
    _draw_one(upper, "service", BLUE, minutes, [one.service_kib for one in soaked.rss], soaked.length_s)
    _draw_one(lower, "gateway", GREEN, minutes, [one.gateway_kib for one in soaked.rss], soaked.length_s)
    lower.set_xlabel("time, minutes")
    figure.suptitle(f"Soak: {soaked.made:,} calls in {soaked.length_s / 60:,.0f} minutes", fontsize=12)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def _draw_one(axes: Axes, name: str, colour: str, minutes: list[float], kib: list[float], length_s: float) -> None:
    axes.plot(minutes, [level / 1024 for level in kib], color=colour, linewidth=1.0, label=name)
    late = [
        (minute * 60, level)
        for minute, level in zip(minutes, kib, strict=True)
        if length_s / 2 <= minute * 60 <= length_s
    ]
    line = trend(late)
    middle_s = sum(at_s for at_s, _ in late) / len(late)
    mean_kib = sum(level for _, level in late) / len(late)
    ends = [late[0][0], late[-1][0]]
    levels = [(mean_kib + line.slope * (end - middle_s) / 60) / 1024 for end in ends]
    axes.plot([end / 60 for end in ends], levels, color=RED, linestyle="--", label=f"second half: {line}")
    low, high = min(kib) / 1024, max(kib) / 1024
    room = max(0.0, LEAST_SPAN_MIB - (high - low)) / 2 + 0.5
    axes.set_ylim(max(0.0, low - room), high + room)
    axes.set_xlim(0, minutes[-1])
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel(f"RSS of the {name}, MiB")
    axes.legend(loc="best", frameon=False, fontsize=9)
