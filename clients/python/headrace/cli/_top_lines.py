"""`headrace top` without a screen: a row for each model, and JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any, Final

from headrace.cli._rates import Histogram
from headrace.cli._top_figures import LATENCIES, Figures, GatewayFigures, Load, ends_of
from headrace.cli._top_monitor import GatewayView, ModelView, Snapshot
from headrace.cli._top_words import NONE, count, duration, latency, rate, share, status_classes, token_rate

__all__ = ["fields_of", "header_row", "rows_of"]

_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
# Name and width of each column behind time and model.
_COLUMNS: Final = (
    ("ready", 5), ("slots", 7), ("wait", 5), ("oldest", 7), ("req/s", 6), ("out/s", 7), ("in/s", 7),
    ("ttft50", 7), ("ttft95", 7), ("ttft99", 7), ("queue95", 7), ("prefl95", 7), ("tpot50", 7), ("tpot95", 7),
    ("gap95", 7), ("lag95", 7), ("goodput", 7), ("done", 5), ("cancel", 6), ("fail", 5), ("refuse", 6),
)  # fmt: skip
_NAME_CELLS: Final = 12


def header_row(snapshot: Snapshot) -> str:
    """Return the names of the columns of `rows_of`."""
    return _row(snapshot, "time", "model", [name for name, _width in _COLUMNS])


def rows_of(snapshot: Snapshot) -> Iterator[str]:
    """Yield a row for each model, in columns that stay where they are and have no spaces in them; for gateways, one."""
    time = f"{snapshot.at:%H:%M:%S}"
    for model in snapshot.models:
        yield _row(snapshot, time, model.name, _cells(model, snapshot.span_s))
    if (gateway := snapshot.gateway) is not None:
        figures = gateway.total if gateway.lately is None else gateway.lately
        first = {name: latency(figures.first_chunk.quantile(rank)) for name, rank in _QUANTILES.items()}
        told = {
            "active": str(gateway.active),
            "req/s": rate(sum(figures.statuses.values()), snapshot.span_s),
            **{status: count(n) for status, n in status_classes(figures.statuses).items()},
            "left": count(sum(figures.left.values())),
            **{f"first-{name}": value.replace(" ", "") for name, value in first.items()},
        }
        yield f"{time} gateway {' '.join(f'{name}={value}' for name, value in told.items())}"
    if not snapshot.models and snapshot.gateway is None:
        yield f"{time} {NONE}"


def _row(snapshot: Snapshot, time: str, name: str, cells: list[str]) -> str:
    widest = max([_NAME_CELLS, *(len(model.name) for model in snapshot.models)])
    told = (cell.replace(" ", "").rjust(width) for cell, (_name, width) in zip(cells, _COLUMNS, strict=True))
    return f"{time:8} {name.ljust(widest)} {' '.join(told)}"


def _cells(model: ModelView, span_s: float | None) -> list[str]:
    figures, load = model.total if model.lately is None else model.lately, model.load
    ends = ends_of(figures)

    def quantile(name: str, rank: float) -> str:
        return latency(figures.histogram("interactive", name).quantile(rank))

    return [
        NONE if load is None else f"{load.ready}/{load.replicas}",
        NONE if load is None else f"{load.running}/{load.slots}",
        NONE if load is None else count(load.waiting),
        NONE if load is None or not load.waiting else duration(load.oldest_wait_s),
        rate(ends.total, span_s),
        token_rate(figures, span_s),
        rate(figures.input_tokens, span_s),
        *(quantile("ttft", rank) for rank in _QUANTILES.values()),
        quantile("queue", 0.95),
        quantile("prefill", 0.95),
        quantile("tpot", 0.5),
        quantile("tpot", 0.95),
        quantile("max_gap", 0.95),
        quantile("reader_lag", 0.95),
        share(*figures.met.get("all", (0, 0))),
        *(count(n) for n in (ends.completed, ends.cancelled, sum(ends.failed.values()), sum(ends.refused.values()))),
    ]


def fields_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot, ready for JSON: times in seconds, null where nothing is known."""
    return {
        "time": snapshot.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "window_s": _rounded(snapshot.span_s),
        "replicas": [{"url": r.shown, "is_up": r.problem is None, "problem": r.problem} for r in snapshot.replicas],
        "active": snapshot.active,
        "notes": list(snapshot.notes),
        "models": [
            {
                "model": model.name,
                **_load_fields(model.load),
                "window": None if model.lately is None else _figure_fields(model.lately, snapshot.span_s),
                "total": _figure_fields(model.total, None),
            }
            for model in snapshot.models
        ],
        "gateway": None if snapshot.gateway is None else _gateway_fields(snapshot.gateway, snapshot.span_s),
    }


def _load_fields(load: Load | None) -> dict[str, Any]:
    if load is None:
        return {"ready_replicas": None, "replicas": None, "classes": None}
    return {
        "ready_replicas": load.ready,
        "replicas": load.replicas,
        "classes": {
            name: {
                "running": of_class.running,
                "slots": of_class.slots,
                "waiting": of_class.waiting,
                "oldest_wait_s": _rounded(of_class.oldest_wait_s),
            }
            for name, of_class in load.classes.items()
        },
    }


def _figure_fields(figures: Figures, span_s: float | None) -> dict[str, Any]:
    ends = ends_of(figures)
    rates = {"requests": ends.total, "output_tokens": figures.output_tokens, "input_tokens": figures.input_tokens}
    return {
        **{name: _rounded(value) for name, value in rates.items()},
        **({f"{name}_per_s": _rounded(value / span_s) for name, value in rates.items()} if span_s else {}),
        "wasted_tokens": _rounded(figures.wasted_tokens),
        "ended": {
            "completed": _rounded(ends.completed),
            "cancelled": _rounded(ends.cancelled),
            "failed": _counts(ends.failed),
            "refused": _counts(ends.refused),
        },
        "cancelled_by": [
            {"cause": cause, "phase": phase, "count": _rounded(n)}
            for (cause, phase), n in sorted(figures.cancelled.items())
            if n
        ],
        "goodput": {
            name: {"met": _rounded(good), "of": _rounded(of), "share": _rounded(good / of) if of else None}
            for name, (good, of) in sorted(figures.met.items())
        },
        "latency_s": {
            priority: {name: _histogram_fields(histograms.get(name) or Histogram()) for name in LATENCIES}
            for priority, histograms in sorted(figures.latency.items())
        },
    }


def _histogram_fields(histogram: Histogram) -> dict[str, Any]:
    """Return the quantiles; those in `beyond` lie above the last edge, which is given in their place."""
    found = {name: histogram.quantile(rank) for name, rank in _QUANTILES.items()}
    total = histogram.count
    return {
        "count": _rounded(total),
        "mean": _rounded(histogram.sum / total) if total else None,
        **{name: None if quantile is None else _rounded(quantile.value) for name, quantile in found.items()},
        "beyond": [name for name, quantile in found.items() if quantile is not None and quantile.is_beyond],
    }


def _gateway_fields(gateway: GatewayView, span_s: float | None) -> dict[str, Any]:
    return {
        "active": gateway.active,
        "window": None if gateway.lately is None else _gateway_figures(gateway.lately, span_s),
        "total": _gateway_figures(gateway.total, None),
    }


def _gateway_figures(figures: GatewayFigures, span_s: float | None) -> dict[str, Any]:
    requests = sum(figures.statuses.values())
    return {
        "requests": _rounded(requests),
        **({"requests_per_s": _rounded(requests / span_s)} if span_s else {}),
        "statuses": _counts(figures.statuses),
        "left": _counts(figures.left),
        "first_output_s": _histogram_fields(figures.first_chunk),
    }


def _counts(counts: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _rounded(n) for name, n in sorted(counts.items()) if n}


def _rounded(value: float | None) -> float | None:
    """Return a number without what only arithmetic has put there; a whole one as such."""
    if value is None:
        return None
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded
