"""The picture of `headrace ttft --plot`: where the time to the first token goes, and the gaps behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["NO_MATPLOTLIB", "draw"]

NO_MATPLOTLIB: Final = "--plot needs matplotlib: pip install 'headrace[plot]'"
QUEUE, PREFILL, WAY, GAP = "#b9770e", "#1f618d", "#85929e", "#148f77"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw a report of `headrace ttft`. ModuleNotFoundError without matplotlib."""
    from matplotlib.figure import Figure

    cases: Sequence[Mapping[str, Any]] = report["cases"]
    names = [f"{case['case']} prompt\n{_tokens(case['prompt_tokens'])}" for case in cases]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    first, gaps = figure.subplots(1, 2, width_ratios=(3, 2))
    queue, prefill, ttft = (
        [1000 * (case[key]["p50"] or 0.0) for case in cases] for key in ("server_queue_s", "server_prefill_s", "ttft_s")
    )
    way = [max(0.0, whole - waited - filled) for whole, waited, filled in zip(ttft, queue, prefill, strict=True)]
    left = [0.0] * len(cases)
    for label, values, colour in (("queue", queue, QUEUE), ("prefill", prefill, PREFILL), ("on the way", way, WAY)):
        first.barh(names, values, left=left, label=label, color=colour)
        left = [begin + value for begin, value in zip(left, values, strict=True)]
    for place, (end, whole) in enumerate(zip(left, ttft, strict=True)):
        first.annotate(f" {whole:.0f} ms", (end, place), va="center")
    first.invert_yaxis()
    first.set_xlim(0, 1.2 * max(left, default=1.0) or 1.0)
    first.set_xlabel("time to first token, ms (p50)")
    first.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=3, frameon=False)
    middles, highs = ([1000 * (case["inter_token_gap_s"][rank] or 0.0) for case in cases] for rank in ("p50", "p90"))
    gaps.barh(names, highs, color=GAP, alpha=0.35, label="p90")
    gaps.barh(names, middles, color=GAP, height=0.4, label="p50")
    gaps.invert_yaxis()
    gaps.set_yticks([])
    gaps.set_xlabel("gap between tokens, ms")
    gaps.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2, frameon=False)
    for axes in (first, gaps):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{report['model']}, {cases[0]['runs']} runs each", x=0.01, ha="left", fontsize="medium")
    figure.savefig(path, dpi=140)


def _tokens(count: int | None) -> str:
    return "" if count is None else f"{count} tokens"
