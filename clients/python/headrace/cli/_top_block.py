"""One model, or the gateways, on the screen of `headrace top`: load on one side, latencies on the other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.cli._rates import Histogram
from headrace.cli._top_figures import CLASSES, Figures, Load, ends_of
from headrace.cli._top_monitor import GatewayView, ModelView
from headrace.cli._top_words import (
    BAD,
    BUSY,
    DIM,
    GOOD,
    NONE,
    count,
    duration,
    ends_line,
    goodput_line,
    known,
    latency,
    queue_share,
    rate,
    share,
    sparkline,
    status_classes,
    token_rate,
)

__all__ = ["gateway_block", "is_idle", "model_block"]

# From here on load and latencies stand side by side.
_WIDE: Final = 120
_BAR: Final = 20
_ROWS: Final = (
    ("ttft", "TTFT"),
    ("queue", "  queue"),
    ("prefill", "  prefill"),
    ("tpot", "TPOT"),
    ("max_gap", "longest gap"),
    ("reader_lag", "reader lag"),
)
_STYLES: Final = dict(zip(CLASSES, ("cyan", "magenta"), strict=True))
# What stands left of the sparkline in a row of facts, and of latencies.
_FACT_CELLS: Final = 28
_LATENCY_CELLS: Final = 62
_MOST_CELLS: Final = 60  # five minutes


def model_block(model: ModelView, span_s: float | None, width: int, *, is_total: bool = False) -> RenderableType:
    """Return all that is known of a model; `is_total` gives what it did since the start, and not what it does now."""
    figures = model.total if is_total or model.lately is None else model.lately
    if (is_total or is_idle(model)) and not ends_of(figures).total:
        facts = _grid()
        facts.add_row("requests", "none")
        return _block(_title(model.name, Text("  since the start") if is_total else _state(model.load), width), facts)
    side = (width - 4) // 2 if width >= _WIDE else width - 2
    facts = _facts(model, figures, None if is_total else span_s, side, is_total=is_total)
    batch = figures.latency.get("batch", {})
    has_batch = any(histogram.count for histogram in batch.values())
    history = () if is_total else model.ttft_history
    tables = [_latencies(CLASSES[0], figures, history, side)]
    if has_batch:
        tables.append(_latencies(CLASSES[1], figures, (), side))
    told = Text("  since the start") if is_total else _state(model.load)
    return _block(_title(model.name, told, width), facts, tables, width)


def is_idle(model: ModelView) -> bool:
    """Return whether there is nothing to see of a model: nothing runs, waits, or has ended lately."""
    figures, load = model.total if model.lately is None else model.lately, model.load
    return not ends_of(figures).total and (load is None or not (load.running or load.waiting))


def gateway_block(gateway: GatewayView, span_s: float | None, width: int, *, is_total: bool = False) -> RenderableType:
    """Return all that is known of gateways; like `model_block`."""
    figures = gateway.total if is_total or gateway.lately is None else gateway.lately
    facts = _grid()
    statuses = ", ".join(f"{count(n)} {name}" for name, n in status_classes(figures.statuses).items())
    per_second = "" if is_total or span_s is None else f"{rate(sum(figures.statuses.values()), span_s)} /s   "
    facts.add_row("requests", f"{'' if is_total else f'{gateway.active} active   '}{per_second}{statuses or 'none'}")
    left = ", ".join(f"{count(n)} {phase.replace('_', ' ')}" for phase, n in sorted(figures.left.items()) if n)
    facts.add_row("left", Text(left or "nobody", style=BUSY if left else ""))
    table = _latency_table("")
    _add_latencies(table, "first output", figures.first_chunk)
    return _block(_title("gateway", Text("  since the start" if is_total else ""), width), facts, [table], width)


def _block(title: Text, facts: Table, tables: Sequence[Table] = (), width: int = 0) -> RenderableType:
    if width < _WIDE or not tables:
        return Group(title, Padding(Group(facts, *tables), (0, 0, 0, 2)))
    both = Table.grid(expand=True, padding=(0, 2, 0, 0))
    both.add_column(ratio=1)
    both.add_column(ratio=1)
    both.add_row(facts, Group(*tables))
    return Group(title, Padding(both, (0, 0, 0, 2)))


def _title(name: str, told: Text, width: int) -> Text:
    title = Text.assemble(("── ", DIM), (name, "bold"), told, no_wrap=True, overflow="ellipsis")
    title.append(" " + "─" * max(0, width - title.cell_len - 1), style=DIM)
    return title


def _state(load: Load | None) -> Text:
    if load is None:
        return Text("  no answer", style=BAD)
    style = GOOD if load.ready == load.replicas else BAD
    if load.replicas == 1:
        return Text("  ready" if load.ready else "  not ready", style=style)
    return Text(f"  ready on {load.ready} of {load.replicas}", style=style)


def _grid() -> Table:
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style=DIM, no_wrap=True)
    facts.add_column()
    return facts


def _facts(model: ModelView, figures: Figures, span_s: float | None, width: int, *, is_total: bool) -> Table:
    facts, ends = _grid(), ends_of(figures)
    if not is_total:
        facts.add_row("slots", _slots(model.load))
        facts.add_row("waiting", _waiting(model.load))
    per_second = "" if span_s is None else f"{rate(ends.total, span_s)} /s   "
    facts.add_row("requests", per_second + (ends_line(ends, figures.cancelled) or "none ended"))
    if span_s is None:
        tokens = f"{count(figures.output_tokens)} out, {count(figures.input_tokens)} in"
    else:
        out = token_rate(figures, span_s)
        tokens = f"{out} /s out, {rate(figures.input_tokens, span_s)} /s in"
    if figures.wasted_tokens:
        tokens += f", at most {count(figures.wasted_tokens)} wasted"
    facts.add_row("tokens", tokens)
    if span_s is not None and len(known(model.tokens_history)) > 1:
        facts.add_row("  out", _line(model.tokens_history, width - _FACT_CELLS, lambda peak: f"{rate(peak, 1)} /s"))
    good, of = figures.met.get("all", (0.0, 0.0))
    style = "" if not of else GOOD if good >= 0.99 * of else BUSY if good >= 0.9 * of else BAD
    facts.add_row("goodput", Text(goodput_line(figures.met), style=style))
    return facts


def _slots(load: Load | None) -> Text:
    if load is None:
        return Text(NONE)
    line, filled, slots = Text(), 0, max(load.slots, load.running, 1)
    for name, style in _STYLES.items():
        running = load.classes[name].running
        cells = min(_BAR - filled, max(round(_BAR * running / slots), int(running > 0)))
        line.append("█" * cells, style=style)
        filled += cells
    line.append("░" * (_BAR - filled), style=DIM)
    line.append(f"  {load.running} of {load.slots}", style=BUSY if load.running >= load.slots else "")
    if load.classes["batch"].running:
        parts = (f"{load.classes[name].running} {name}" for name in CLASSES)
        line.append(f"   {', '.join(parts)}", style=DIM)
    return line


def _waiting(load: Load | None) -> Text:
    if load is None:
        return Text(NONE)
    parts = [
        f"{of_class.waiting} {name} (the oldest for {duration(of_class.oldest_wait_s)})"
        for name, of_class in load.classes.items()
        if of_class.waiting
    ]
    return Text(", ".join(parts), style=BUSY) if parts else Text("nobody")


def _latency_table(name: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style=DIM, padding=(0, 2, 0, 0))
    table.add_column(Text(name, style=_STYLES.get(name, "")), header_style="not dim", min_width=12, no_wrap=True)
    for quantile in ("p50", "p95", "p99"):
        table.add_column(quantile, justify="right", min_width=7, no_wrap=True)
    table.add_column("of", justify="right", min_width=3, no_wrap=True)
    table.add_column("", no_wrap=True)
    return table


def _add_latencies(table: Table, word: str, histogram: Histogram, note: Text | str = "") -> None:
    quantiles = (latency(histogram.quantile(rank)) for rank in (0.5, 0.95, 0.99))
    table.add_row(word, *quantiles, count(histogram.count) if histogram.count else NONE, note)


def _latencies(priority: str, figures: Figures, history: Sequence[float | None], width: int) -> Table:
    table = _latency_table(priority)
    histograms = figures.latency.get(priority, {})
    waited = queue_share(histograms)
    for name, word in _ROWS:
        histogram = histograms.get(name) or Histogram()
        note: Text | str = ""
        if name == "ttft" and len(known(history)) > 1:
            note = _line(history, width - _LATENCY_CELLS, duration)
        elif name in {"queue", "prefill"} and waited is not None:
            part = waited if name == "queue" else 1 - waited
            note = Text(f"{share(part, 1)} of TTFT", style="" if part >= 0.5 else DIM)
        elif name == "tpot" and histogram.sum > 0:  # the mean is exact, and quantiles are not
            note = Text(f"{rate(histogram.count, histogram.sum)} tokens/s a stream", style=DIM)
        _add_latencies(table, word, histogram, note)
    return table


def _line(values: Sequence[float | None], cells: int, told: Callable[[float], str]) -> Text:
    last = list(values)[-max(8, min(cells, _MOST_CELLS)) :]
    peak = max(known(last), default=None)
    return Text.assemble((sparkline(last), "cyan"), ("" if peak is None else f" peak {told(peak)}", DIM))
