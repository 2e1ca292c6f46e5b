"""The screen of `headrace top`: a snapshot as rich renderables, for any size of terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from headrace.cli._top_block import gateway_block, is_idle, model_block
from headrace.cli._top_figures import ends_of
from headrace.cli._top_monitor import Snapshot
from headrace.cli._top_words import (
    BAD,
    BUSY,
    DIM,
    NONE,
    age,
    count,
    duration,
    latency,
    rate,
    ready,
    replica_line,
    share,
    token_rate,
)

__all__ = ["Report", "View"]

# From here on the table of all models has every column.
_WIDE: Final = 110
# For a terminal that has no others.
_ASCII: Final = str.maketrans("▁▂▃▄▅▆▇█░─…", "._-=+*%#.-.")


class View:
    """A snapshot, as much of it as there is room for: of several models those from `first` on come first."""

    def __init__(self, snapshot: Snapshot, first: int = 0) -> None:
        self._snapshot = snapshot
        self._first = first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what fits; the size may be another one each time."""
        width, options = options.max_width, options.update(height=None)
        blocks = list(_blocks(self._snapshot, width, self._first))
        room = console.height - 1
        for number, part in enumerate((Group(*_head(self._snapshot, width)), *blocks)):
            lines = console.render_lines(part, options, pad=False)
            yield from _segments(lines[: max(0, room)], is_ascii=options.ascii_only)
            room -= len(lines)
            if room < 0 or (room == 0 and number < len(blocks)):
                yield Text("there is more: enlarge the window" if len(blocks) < 2 else "Tab: the next model", style=DIM)
                return


class Report:
    """A snapshot to be printed once: everything, lately and since the start."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield all of it."""
        snapshot, width = self._snapshot, options.max_width
        parts = [*_head(snapshot, width, is_live=False), *_blocks(snapshot, width, 0)]
        parts += [model_block(model, None, width, is_total=True) for model in snapshot.models]
        if snapshot.gateway is not None:
            parts.append(gateway_block(snapshot.gateway, None, width, is_total=True))
        yield from _segments(console.render_lines(Group(*parts), options, pad=False), is_ascii=options.ascii_only)


def _segments(lines: Iterable[Iterable[Segment]], *, is_ascii: bool) -> Iterator[Segment]:
    for line in lines:
        for segment in line:
            yield Segment(segment.text.translate(_ASCII), segment.style) if is_ascii else segment
        yield Segment.line()


def _blocks(snapshot: Snapshot, width: int, first: int) -> Iterator[RenderableType]:
    # Of several models the table has said all that there is to say of one that does nothing.
    models = [model for model in snapshot.models if len(snapshot.models) == 1 or not is_idle(model)]
    first = first % len(models) if models else 0
    for model in (*models[first:], *models[:first]):
        yield model_block(model, snapshot.span_s, width)
    if snapshot.gateway is not None:
        yield gateway_block(snapshot.gateway, snapshot.span_s, width)


def _head(snapshot: Snapshot, width: int, *, is_live: bool = True) -> Iterator[RenderableType]:
    replicas = snapshot.replicas
    things = "replicas" if snapshot.gateway is None else "addresses"
    where = replicas[0].shown if len(replicas) == 1 else f"{snapshot.up} of {len(replicas)} {things} answer"
    lately = "since the start" if snapshot.span_s is None else f"last {age(snapshot.span_s)}"
    told = Text.assemble(("headrace top", "bold"), "  ", (where, "" if snapshot.up == len(replicas) else BAD))
    told.append(f"  {lately}")
    if snapshot.active is not None and width >= _WIDE:
        told.append(f"  {snapshot.active} calls active")
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    line.add_row(told, Text(f"{snapshot.at:%H:%M:%S}{'  q quits' if is_live else ''}", style=DIM))
    yield line
    for replica in replicas:
        if (told_line := replica_line(replica)) is not None:
            yield Text(f"! {told_line}", style=BUSY if replica.problem is None else BAD)
    for note in snapshot.notes:
        yield Text(f"! {note}", style=BAD)
    if len(snapshot.models) > 1:
        yield _overview(snapshot, width)
    if not snapshot.models and snapshot.gateway is None:
        yield Text("no models yet" if snapshot.up else "nothing is known yet", style=DIM)


def _overview(snapshot: Snapshot, width: int) -> Table:
    is_wide = width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style=DIM, padding=(0, 2, 0, 0))
    table.add_column("model", no_wrap=True, overflow="ellipsis", max_width=max(12, width - (100 if is_wide else 58)))
    names = ["ready", "slots", "waiting", "tokens/s", "TTFT p95", "goodput"]
    for name in names + (["oldest", "req/s", "failed", "refused"] if is_wide else []):
        table.add_column(name, justify="right", no_wrap=True)
    for model in snapshot.models:
        figures, load = model.total if model.lately is None else model.lately, model.load
        ends = ends_of(figures)
        is_well = load is not None and load.ready == load.replicas
        cells = [
            *([NONE] * 3 if load is None else [ready(load), f"{load.running} of {load.slots}", count(load.waiting)]),
            token_rate(figures, snapshot.span_s),
            latency(figures.histogram("interactive", "ttft").quantile(0.95)),
            share(*figures.met.get("all", (0, 0))),
        ]
        if is_wide:
            cells.append(duration(load.oldest_wait_s) if load is not None and load.waiting else NONE)
            cells.append(rate(ends.total, snapshot.span_s))
            cells += [count(sum(reasons.values())) for reasons in (ends.failed, ends.refused)]
        table.add_row(Text(model.name, style="" if is_well else BAD), *cells)
    return table
