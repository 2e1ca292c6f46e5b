"""From pages of metrics, round by round, to what is shown of a service. Pure: times and pages are given."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from headrace.cli._rates import Counts, Key, Window, has_restarted, increments
from headrace.cli._scrape import Page
from headrace.cli._top_figures import (
    ACTIVE,
    HTTP_ACTIVE,
    LEDGER_LOST,
    LIMITS_SHARED,
    Figures,
    GatewayFigures,
    Load,
    figures_of,
    gateway_figures_of,
    loads_of,
)

__all__ = ["CELL_S", "GatewayView", "History", "ModelView", "Monitor", "ReplicaView", "Snapshot"]

# What one cell of a sparkline covers, and how many are kept: ten minutes.
CELL_S: Final = 5.0
_CELLS: Final = 120
# How long a restart is worth to be told.
_TOLD_S: Final = 60.0


class History:
    """The last value of each of the last cells of time, the newest last; None where there was none."""

    def __init__(self) -> None:
        self._cells: deque[float | None] = deque(maxlen=_CELLS)
        self._last_cell: int | None = None

    def add(self, now_s: float, value: float | None) -> None:
        """Add a value; a later one of the same cell takes its place."""
        cell = int(now_s // CELL_S)
        passed = 1 if self._last_cell is None else min(cell - self._last_cell, _CELLS)
        self._cells.extend([None] * passed)
        self._last_cell = cell
        if value is not None:
            self._cells[-1] = value

    @property
    def cells(self) -> Sequence[float | None]:
        """The cells that there are, the newest last."""
        return list(self._cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One address: why it gives no page and for how long, and how long ago its process has started anew."""

    shown: str
    problem: str | None = None
    down_s: float = 0.0
    restarted_ago_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """What is known of a model. `load` is None while no replica that has it answers, `lately` before the second round.

    `total` is since the start of each process. Of `history` there is time to first
    token, p95, and output tokens a second.
    """

    name: str
    load: Load | None
    lately: Figures | None
    total: Figures
    ttft_history: Sequence[float | None] = ()
    tokens_history: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayView:
    """What is known of gateways; like `ModelView`."""

    active: int
    lately: GatewayFigures | None
    total: GatewayFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that is shown at one moment. `span_s` is what `lately` covers; None before the second round."""

    at: datetime
    span_s: float | None
    replicas: Sequence[ReplicaView]
    active: int | None
    models: Sequence[ModelView]
    gateway: GatewayView | None
    notes: Sequence[str] = ()

    @property
    def up(self) -> int:
        """How many replicas answer."""
        return sum(replica.problem is None for replica in self.replicas)


@dataclass(slots=True)
class _Replica:
    """What is remembered of one address. Counts of a process that started anew are another's: its edges may differ."""

    number: int
    shown: str
    page: Page | None = None
    page_s: float = 0.0
    problem: str | None = "no answer yet"
    down_since_s: float | None = None
    restarted_s: float | None = None
    starts: int = 0

    @property
    def gauges(self) -> Mapping[Key, float]:
        """What it says of now: nothing while it does not answer."""
        return self.page.gauges if self.page is not None and self.problem is None else {}

    def tagged(self, counts: Counts) -> dict[Key, float]:
        """Return counts with the process as one more label."""
        tag = (("", f"{self.number}.{self.starts}"),)
        return {(name, labels + tag): count for (name, labels), count in counts.items()}

    def view(self, now_s: float) -> ReplicaView:
        ago_s = None if self.restarted_s is None else now_s - self.restarted_s
        return ReplicaView(
            shown=self.shown,
            problem=self.problem,
            down_s=0.0 if self.down_since_s is None else now_s - self.down_since_s,
            restarted_ago_s=None if ago_s is None or ago_s > _TOLD_S else ago_s,
        )


@dataclass(slots=True)
class _Lines:
    ttft: History = field(default_factory=History)
    tokens: History = field(default_factory=History)


class Monitor:
    """Takes what came of each round of reading, and tells what it means.

    `models` are those that are wanted; all of them, if it is empty.
    """

    def __init__(self, addresses: Sequence[str], window_s: float, models: Sequence[str] = ()) -> None:
        self._replicas = [_Replica(number, shown) for number, shown in enumerate(addresses)]
        self._window = Window(window_s)
        self._wanted = frozenset(models)
        self._lines: dict[str, _Lines] = {}

    def round(self, now_s: float, at: datetime, found: Mapping[int, Page | str]) -> Snapshot:
        """Take the pages of a round, or why there is none, by the address's number; one that is late has none yet."""
        self._window.advance(now_s)
        for number, what in found.items():
            replica = self._replicas[number]
            if isinstance(what, Page):
                self._take(replica, what, now_s)
            else:
                replica.problem = what
                if replica.down_since_s is None:
                    replica.down_since_s = now_s
        return self._snapshot(now_s, at)

    def _take(self, replica: _Replica, page: Page, now_s: float) -> None:
        before = replica.page
        if before is not None:
            is_new = before.process != page.process or has_restarted(before.counts, page.counts)
            if is_new:
                replica.restarted_s = now_s
                replica.starts += 1
            counted = increments(before.counts, page.counts, is_new=is_new)
            self._window.add(replica.page_s, replica.tagged(counted))
        replica.page, replica.page_s = page, now_s
        replica.problem = replica.down_since_s = None

    def _snapshot(self, now_s: float, at: datetime) -> Snapshot:
        span_s, counted = self._window.span_s, self._window.counts()
        whole: dict[Key, float] = {}
        for replica in self._replicas:
            if replica.page is not None:
                whole |= replica.tagged(replica.page.counts)
        now = [replica.gauges for replica in self._replicas]
        active = [gauges[ACTIVE, ()] for gauges in now if (ACTIVE, ()) in gauges]
        total = gateway_figures_of(whole)
        gateway = None
        if total is not None:
            gateway = GatewayView(
                active=round(sum(n for gauges in now for (name, _), n in gauges.items() if name == HTTP_ACTIVE)),
                lately=None if span_s is None else gateway_figures_of(counted),
                total=total,
            )
        return Snapshot(
            at=at,
            span_s=span_s,
            replicas=[replica.view(now_s) for replica in self._replicas],
            active=round(sum(active)) if active else None,
            models=list(self._models(now_s, counted, whole)),
            gateway=gateway,
            notes=list(_notes(now, counted)),
        )

    def _models(self, now_s: float, counted: Counts, whole: Counts) -> Iterator[ModelView]:
        span_s = self._window.span_s
        loads = loads_of(replica.gauges for replica in self._replicas)
        known = loads_of(replica.page.gauges for replica in self._replicas if replica.page is not None)
        lately, totals = figures_of(counted), figures_of(whole)
        for name in sorted((known.keys() | totals.keys() | lately.keys()) - {""}):
            if self._wanted and name not in self._wanted:
                continue
            seen, lines = lately.get(name, Figures()), self._lines.setdefault(name, _Lines())
            if span_s is not None:
                p95 = seen.histogram("interactive", "ttft").quantile(0.95)
                lines.ttft.add(now_s, None if p95 is None else p95.value)
                lines.tokens.add(now_s, seen.output_tokens / span_s if name in loads else None)
            yield ModelView(
                name=name,
                load=loads.get(name),
                lately=None if span_s is None else seen,
                total=totals.get(name, Figures()),
                ttft_history=lines.ttft.cells,
                tokens_history=lines.tokens.cells,
            )


def _notes(pages: Sequence[Mapping[Key, float]], counted: Counts) -> Iterator[str]:
    """Yield what an operator should know besides the models."""
    if any(value == 0 for gauges in pages for (name, _), value in gauges.items() if name == LIMITS_SHARED):
        yield "limits are not shared: their store does not answer, and each replica counts for itself"
    if lost := sum(count for (name, _), count in counted.items() if name == LEDGER_LOST):
        yield f"the usage ledger has lost {lost:.0f} records lately"
