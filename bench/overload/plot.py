"""Draws one recording: what callers waited, who waited and ran, what became of calls, and the memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.calls import COMPLETED, QUEUE_FULL, QUEUE_TIMEOUT
from bench.overload.judge import TTFT_FACTOR, unloaded_ttft_ms
from bench.overload.plan import CAPACITY_PER_S, QUEUE_S, SLOTS, WAITING, WAITING_BATCH
from bench.overload.run import Recording

__all__ = ["draw"]

# Readable for the colour-blind, and in print (Okabe and Ito's palette).
BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
RED: Final = "#D55E00"
GREY: Final = "#666666"
SHADE: Final = {"unloaded": "#EAF3EA", "overload": "#FBEBE2", "recovered": "#EAF3EA"}
INCHES: Final = (10.0, 11.0)
DOTS_PER_INCH: Final = 110
# What is beyond the last call: the second in which lines and memory are seen at rest.
REST_S: Final = 1.0


def draw(recording: Recording, path: Path) -> None:
    """Write the picture, a PNG."""
    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    panels: list[Axes] = list(
        figure.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": [3.2, 2.2, 2.6, 1.8]}).flat
    )
    _first_tokens(panels[0], recording)
    _lines(panels[1], recording)
    _outcomes(panels[2], recording)
    _memory(panels[3], recording)
    for axes in panels:
        for phase in recording.plan:
            axes.axvspan(phase.begin_s, phase.end_s, color=SHADE[phase.name], zorder=0, linewidth=0)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, recording.plan[-1].end_s + REST_S)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    for phase in recording.plan:
        panels[0].text(
            (phase.begin_s + phase.end_s) / 2,
            1.02,
            f"{phase.load:g} times the capacity",
            transform=panels[0].get_xaxis_transform(),
            ha="center",
            fontsize=10,
        )
    panels[-1].set_xlabel("time, s")
    figure.suptitle(
        f"Overload: {SLOTS} slots, {CAPACITY_PER_S:.0f} calls/s capacity, arrivals at random, over gRPC and HTTP",
        fontsize=12,
    )
    path.parent.mkdir(exist_ok=True)
    # No software and date in it: a run that looks the same is the same file.
    figure.savefig(path, metadata={"Software": None})


def _first_tokens(axes: Axes, recording: Recording) -> None:
    kinds = (
        ("interactive, gRPC", "grpc", "interactive", BLUE, "o"),
        ("interactive, HTTP", "http", "interactive", GREEN, "^"),
        ("batch", None, "batch", ORANGE, "s"),
    )
    for label, wire, priority, colour, marker in kinds:
        found = [
            (one.sent_s, one.answer.ttft_s)
            for one in recording.answered
            if one.answer.ttft_s is not None
            and one.arrival.call.priority == priority
            and wire in {None, one.arrival.call.wire}
        ]
        axes.scatter([x for x, _ in found], [y for _, y in found], s=9, c=colour, marker=marker, label=label, alpha=0.7)
    limit_s = TTFT_FACTOR * max(unloaded_ttft_ms(recording, wire) for wire in ("grpc", "http")) / 1000 + QUEUE_S
    axes.axhline(limit_s, color=RED, linestyle="--", linewidth=1.2, label=f"bound for interactive\n({limit_s:.2f} s)")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("time to first token, s\n(by the time of the call)")


def _lines(axes: Axes, recording: Recording) -> None:
    at_s = [one_s for one_s, _ in recording.loads]
    axes.step(at_s, [load.running for _, load in recording.loads], where="post", color=GREY, label="slots in use")
    axes.step(
        at_s,
        [load.waiting for _, load in recording.loads],
        where="post",
        color=BLUE,
        label=f"interactive waiting\n(at most {WAITING})",
    )
    axes.step(
        at_s,
        [load.waiting_batch for _, load in recording.loads],
        where="post",
        color=ORANGE,
        label=f"batch waiting\n(at most {WAITING_BATCH})",
    )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("slots, requests")


def _outcomes(axes: Axes, recording: Recording) -> None:
    kinds = (
        ("interactive completed", BLUE, "-", COMPLETED, "interactive"),
        ("batch completed", ORANGE, "-", COMPLETED, "batch"),
        ("refused: line full", RED, "--", QUEUE_FULL, None),
        ("refused: waited\ntoo long", GREY, "--", QUEUE_TIMEOUT, None),
    )
    seconds = range(int(recording.plan[-1].end_s + REST_S) + 1)
    for label, colour, style, outcome, priority in kinds:
        counts = Counter(
            int(one.sent_s + one.answer.total_s)
            for one in recording.answered
            if one.answer.outcome == outcome and priority in {None, one.arrival.call.priority}
        )
        per_s = [counts[second] for second in seconds]
        axes.step(seconds, per_s, where="post", color=colour, linestyle=style, label=label, linewidth=1.4)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("calls ended per second")


def _memory(axes: Axes, recording: Recording) -> None:
    at_s = [one.at_s for one in recording.rss]
    axes.plot(at_s, [one.service_kib / 1024 for one in recording.rss], color=BLUE, label="service")
    axes.plot(at_s, [one.gateway_kib / 1024 for one in recording.rss], color=GREEN, label="gateway")
    axes.set_ylim(0, 1.25 * max(max(one.service_kib, one.gateway_kib) for one in recording.rss) / 1024)
    axes.set_ylabel("RSS, MiB")
