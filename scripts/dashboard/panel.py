"""What a dashboard consists of, as values. Knows neither Grafana's JSON nor what is shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Kind", "Panel", "Query", "Row"]


class Kind(Enum):
    """How values are shown."""

    LINES = "lines"
    STACK = "stack"
    NUMBER = "number"
    HEATMAP = "heatmap"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and what its series are called. `is_limit` draws a dashed line."""

    expr: str
    legend: str = ""
    is_limit: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    `description` is one sentence for somebody who sees it for the first time. `unit` is
    one of Grafana's names, `width` of 24 columns, `lines` are marks on the axis, which goes
    from `bottom` to `top`; None: as far as the values go.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    width: int = 8
    lines: tuple[float, ...] = ()
    bottom: float | None = 0.0
    top: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]
