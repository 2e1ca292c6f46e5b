"""Makes Grafana's JSON of the rows, by Grafana's own library: what Grafana 10.4 and later read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from runtime import metrics
from runtime.slo import TTFT, Objectives
from scripts.dashboard.latency import PROMISE, TIME
from scripts.dashboard.panel import Kind, Panel
from scripts.dashboard.processes import GATEWAY, HEALTH
from scripts.dashboard.queries import CLASS, MODEL, SLO
from scripts.dashboard.traffic import ENDS, LOAD

__all__ = ["ROWS", "TARGET", "document"]

TARGET: Final = Path(__file__).parents[2] / "deploy" / "observability" / "grafana" / "headrace.json"
ROWS: Final = (PROMISE, TIME, LOAD, ENDS, GATEWAY, HEALTH)

_SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT: Final = 8
_REFS: Final = "ABCDEFGH"
_COLOURS: Final = ("yellow", "orange", "red")

AnyPanel = timeseries.Panel | stat.Panel | heatmap.Panel
AnyVariable = dashboard.DatasourceVariable | dashboard.QueryVariable | dashboard.TextBoxVariable


def document() -> str:
    """Return the dashboard as JSON."""
    ids = count(1)
    page = (
        dashboard.Dashboard("Headrace")
        .uid("headrace")
        .description("Written by scripts/dashboard (make docs): what is changed here is gone with the next version.")
        .tags(["headrace", "llm"])
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .variables([*_variables()])
        .annotation(
            dashboard.AnnotationQuery()
            .name("Alerts")
            .datasource(_SOURCE)
            .enable(enable=True)
            .icon_color("red")
            .expr('ALERTS{alertname=~"Headrace.*", alertstate="firing"}')
        )
    )
    for row in ROWS:
        page.with_row(dashboard.Row(row.title).id(next(ids)))
        for panel in row.panels:
            page.with_panel(_panel(panel).id(next(ids)))
    return json.dumps(page.build(), cls=JSONEncoder, indent=1, ensure_ascii=False) + "\n"


def _variables() -> Iterator[AnyVariable]:
    yield dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    for name, title, metric, label in (
        ("model", "Model", metrics.MODELS, MODEL),
        ("class", "Class", metrics.SLOTS_LIMIT, CLASS),
    ):
        every = models.VariableOption(selected=True, text=["All"], value=["$__all"])
        chosen = _query(name, title, metric, label).multi(multi=True).include_all(include_all=True)
        yield chosen.all_value(".*").current(every)
    yield _query("objective", "Objective", metrics.SLO, SLO).current(
        models.VariableOption(selected=True, text=TTFT, value=TTFT)
    )
    default = str(Objectives().ttft_s)
    yield (
        dashboard.TextBoxVariable("ttft_objective")
        .label("Objective of the first token, s")
        .description("HEADRACE_SLO_TTFT_S of the service. Only a line in a graph: the service itself counts.")
        .default_value(default)
        .current(models.VariableOption(selected=True, text=default, value=default))
    )


def _query(name: str, title: str, metric: metrics.Metric, label: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(title)
        .datasource(_SOURCE)
        .query({"query": f"label_values({metric.prometheus}, {label})", "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def _panel(panel: Panel) -> AnyPanel:
    made: AnyPanel
    if panel.kind is Kind.NUMBER:
        made = _number(panel)
    elif panel.kind is Kind.HEATMAP:
        made = _heatmap(panel)
    else:
        made = _lines(panel)
    made.title(panel.title).description(panel.description).datasource(_SOURCE).unit(panel.unit)
    made.span(panel.width).height(_HEIGHT)
    for ref, query in zip(_REFS, panel.queries, strict=False):
        target = prometheus.Dataquery().datasource(_SOURCE).ref_id(ref).expr(query.expr).legend_format(query.legend)
        target = target.instant() if panel.kind is Kind.NUMBER else target.range()
        made.with_target(target.format(PromQueryFormat.HEATMAP) if panel.kind is Kind.HEATMAP else target)
    return made


def _lines(panel: Panel) -> timeseries.Panel:
    is_stack = panel.kind is Kind.STACK
    made = (
        timeseries.Panel()
        .show_points(looks.VisibilityMode.NEVER)
        .fill_opacity(30 if is_stack else 0)
        .legend(
            common.VizLegendOptions()
            .show_legend(show_legend=True)
            .display_mode(looks.LegendDisplayMode.LIST)
            .placement(looks.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
    )
    if is_stack:
        made.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A"))
    if panel.bottom is not None:
        made.min(panel.bottom)
    if panel.top is not None:
        made.max(panel.top)
    if panel.lines:
        made.thresholds(_thresholds(panel.lines))
        made.thresholds_style(common.GraphThresholdsStyleConfig().mode(looks.GraphThresholdsStyleMode.DASHED))
    for ref, query in zip(_REFS, panel.queries, strict=False):
        if query.is_limit:
            dashed = models.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [6, 6]})
            made.override_by_query(ref, [dashed])
    return made


def _number(panel: Panel) -> stat.Panel:
    return (
        stat.Panel()
        .decimals(2)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .text_mode(looks.BigValueTextMode.VALUE_AND_NAME)
        .graph_mode(looks.BigValueGraphMode.NONE)
        .color_mode(looks.BigValueColorMode.VALUE)
        .thresholds(_thresholds(panel.lines))
    )


def _heatmap(panel: Panel) -> heatmap.Panel:
    return (
        heatmap.Panel()
        .calculate(calculate=False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").exponent(0.5).steps(64))
        .y_axis(heatmap.YAxisConfig().unit(panel.unit).axis_placement(looks.AxisPlacement.LEFT))
        .show_legend()
    )


def _thresholds(lines: tuple[float, ...]) -> dashboard.ThresholdsConfig:
    """Return green below the first of `lines`, and red above the last."""
    colours = _COLOURS[len(_COLOURS) - len(lines) :]
    steps = [models.Threshold(value=None, color="green")]
    steps += [models.Threshold(value=line, color=colour) for line, colour in zip(lines, colours, strict=True)]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
