"""How `headrace top` writes figures: in a screen with a space before the unit, in rows without. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.cli._rates import Histogram, Quantile
from headrace.cli._top_figures import Ends, Figures, Load
from headrace.cli._top_monitor import ReplicaView

__all__ = [
    "BAD",
    "BUSY",
    "DIM",
    "GOOD",
    "NONE",
    "age",
    "count",
    "duration",
    "ends_line",
    "goodput_line",
    "known",
    "latency",
    "queue_share",
    "rate",
    "ready",
    "replica_line",
    "share",
    "sparkline",
    "status_classes",
    "token_rate",
]

NONE: Final = "-"
# Styles of rich; without colours the words alone have to do.
GOOD, BAD, BUSY, DIM = "green", "bold red", "yellow", "dim"
_BARS: Final = "▁▂▃▄▅▆▇█"
# Names of objectives, in the order in which they are shown; `all` is goodput itself.
_OBJECTIVES: Final = ("ttft", "tpot", "e2e")
# Causes of a cancel that are told as failures.
_FAILED: Final = frozenset({"deadline", "drain", "slow_reader"})


def duration(seconds: float | None) -> str:
    """Return "4.8 ms", "126 ms", "1.24 s", "45 s", "12 min", "3 h", or "-"."""
    if seconds is None:
        return NONE
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.00995 or seconds == 0 else f"{seconds * 1000:.1f} ms"
    if seconds < 99.5:
        return f"{seconds:.{2 if seconds < 9.995 else 0}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def age(seconds: float) -> str:
    """Return a time that has passed, in words short enough for a sentence."""
    return f"{seconds:.0f} s" if 1 <= seconds < 99.5 else duration(seconds)


def latency(quantile: Quantile | None) -> str:
    """Return a quantile in seconds as a duration; what lies outside of all edges as such: "> 80 s", "< 5 ms"."""
    if quantile is None:
        return NONE
    if quantile.is_beyond:
        return f"> {_edge(quantile.edge)}"
    return f"< {_edge(quantile.edge)}" if quantile.is_below else duration(quantile.value)


def _edge(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def ready(load: Load) -> str:
    """Return whether a model takes requests: "yes", "no", or on how many of its replicas."""
    if load.replicas == 1:
        return "yes" if load.ready else "no"
    return f"{load.ready} of {load.replicas}"


def rate(events: float, span_s: float | None) -> str:
    """Return how many a second, or "-"."""
    return NONE if not span_s else _number(events / span_s)


def token_rate(figures: Figures, span_s: float | None) -> str:
    """Return output tokens a second."""
    return rate(figures.output_tokens, span_s)


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def count(value: float) -> str:
    """Return a number of things."""
    return f"{round(value):,}"


def share(part: float, whole: float) -> str:
    """Return a part in percent, never 100 where something is missing; "-" of nothing."""
    if not whole > 0:
        return NONE
    percent = 100 * part / whole
    if 99 <= percent < 100 - 1e-9:
        return f"{min(percent, 99.9):.1f} %"
    return f"{percent:.0f} %"


def ends_line(ends: Ends, cancelled: Mapping[tuple[str, str], float]) -> str:
    """Return how generations ended: "10 completed, 1 cancelled (client in prefill), 2 refused (QUEUE_FULL)"."""
    parts = []
    if ends.completed:
        parts.append(f"{count(ends.completed)} completed")
    if ends.cancelled:
        ways = {f"{cause} in {phase}": n for (cause, phase), n in cancelled.items() if cause not in _FAILED and n}
        parts.append(f"{count(ends.cancelled)} cancelled{_why(ways)}")
    for word, reasons in (("failed", ends.failed), ("refused", ends.refused)):
        if reasons:
            parts.append(f"{count(sum(reasons.values()))} {word}{_why(reasons)}")
    return ", ".join(parts)


def _why(reasons: Mapping[str, float]) -> str:
    if not reasons:
        return ""
    if len(reasons) == 1:
        return f" ({next(iter(reasons))})"
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return f" ({', '.join(f'{count(n)} {name}' for name, n in ordered)})"


def status_classes(statuses: Mapping[str, float]) -> dict[str, float]:
    """Return counts by HTTP status as those of 2xx, 4xx and so on; those that are there."""
    found: dict[str, float] = {}
    for status, n in sorted(statuses.items()):
        if n > 0:
            found[f"{status[:1]}xx"] = found.get(f"{status[:1]}xx", 0.0) + n
    return found


def goodput_line(met: Mapping[str, tuple[float, float]]) -> str:
    """Return how many were good, and by which objective: "66 % of 12   ttft 66 %, tpot 100 %"."""
    good, of = met.get("all", (0.0, 0.0))
    if not of:
        return NONE
    parts = [f"{name} {share(*met[name])}" for name in _OBJECTIVES if name in met and met[name][1]]
    return f"{share(good, of)} of {count(of)}" + (f"   {', '.join(parts)}" if parts else "")


def queue_share(histograms: Mapping[str, Histogram]) -> float | None:
    """Return which share of the time to first token was waiting; None without one. The rest is prefill."""
    ttft, prefill = histograms.get("ttft"), histograms.get("prefill")
    if ttft is None or prefill is None or not ttft.sum > 0:
        return None
    return min(1.0, max(0.0, 1 - prefill.sum / ttft.sum))


def replica_line(replica: ReplicaView) -> str | None:
    """Return what there is to say of a replica; None if it is well."""
    if replica.problem is not None:
        since = f" for {age(replica.down_s)}" if replica.down_s else ""
        return f"{replica.shown}: {replica.problem}{since}; trying again"
    if replica.restarted_ago_s is not None:
        return f"{replica.shown}: has started anew {age(replica.restarted_ago_s)} ago"
    return None


def sparkline(values: Sequence[float | None]) -> str:
    """Return values as bars that stand on 0, the highest for the greatest; a blank where there is none."""
    top = max(known(values), default=0.0)
    return "".join(
        " " if value is None else _BARS[min(len(_BARS) - 1, int(len(_BARS) * value / top)) if top > 0 else 0]
        for value in values
    )


def known(values: Iterable[float | None]) -> list[float]:
    """Return the values that there are."""
    return [value for value in values if value is not None]
