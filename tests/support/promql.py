"""What PromQL stands on: the series that an expression reads, and the labels that it leaves. Pure.

Labels are followed from the attributes of `runtime.metrics` through every operator, so that a
misspelt label, or a join that can never match, is found without any data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import yaml

from runtime.metrics import METRICS, Kind, Metric

__all__ = [
    "DASHBOARD",
    "FOLDER",
    "GIVEN",
    "Rule",
    "filled",
    "known",
    "labels_of",
    "panels",
    "read_by",
    "rules",
    "series_of",
]

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "observability"
DASHBOARD: Final = FOLDER / "grafana" / "headrace.json"
# What Prometheus itself puts to every series.
GIVEN: Final = frozenset({"job", "instance"})
_UP: Final = {"up": GIVEN}
_VARIABLES: Final = {"model": ".*", "class": ".*", "objective": "ttft", "ttft_objective": "0.5"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `name` is what it records or the name of an alert."""

    name: str
    expr: str
    labels: Mapping[str, str]
    group: str
    annotations: Mapping[str, str] | None = None

    @property
    def is_alert(self) -> bool:
        return self.annotations is not None


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules of both files, as they follow one another."""
    found = []
    for name in ("recording.yml", "alerts.yml"):
        for group in yaml.safe_load((FOLDER / "rules" / name).read_text())["groups"]:
            for rule in group["rules"]:
                title, notes = rule.get("record") or rule["alert"], rule.get("annotations")
                found.append(Rule(title, rule["expr"], rule.get("labels", {}), group["name"], notes))
    return tuple(found)


@cache
def panels() -> tuple[dict[str, Any], ...]:
    """Return the panels of the committed dashboard, rows left out."""
    return tuple(panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row")


def filled(expr: str, *, rate: str = "5m", shown: str = "1h") -> str:
    """Return a query of the dashboard as Grafana sends it with everything chosen."""
    values = {**_VARIABLES, "__rate_interval": rate, "__range": shown}
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)


def series_of(metric: Metric) -> dict[str, frozenset[str]]:
    """Return the names that Prometheus has of one metric, with their labels."""
    labels = frozenset(attribute.replace(".", "_") for attribute in metric.attributes) | GIVEN
    if metric.kind is not Kind.HISTOGRAM:
        return {metric.prometheus: labels}
    return {
        f"{metric.prometheus}_bucket": labels | {"le"},
        f"{metric.prometheus}_sum": labels,
        f"{metric.prometheus}_count": labels,
    }


@cache
def known() -> dict[str, frozenset[str]]:
    """Return every series that there can be with its labels: of metrics, and what the rules record."""
    found = dict(_UP)
    for metric in METRICS:
        found |= series_of(metric)
    for rule in rules():
        if not rule.is_alert:
            found[rule.name] = (labels_of(rule.expr, found) or frozenset()) | rule.labels.keys()
    return found


def read_by(expr: str) -> set[str]:
    """Return the names of the series that an expression reads."""
    return {selector.name for selector in _selectors(promql.parse(expr))}


def labels_of(expr: str, series: Mapping[str, frozenset[str]] | None = None) -> frozenset[str] | None:
    """Return the labels of what an expression gives, None for a number.

    Fails for a series or a label that there is not, and for a join that cannot match.
    """
    return _labels(promql.parse(expr), known() if series is None else series)


def _labels(expr: Any, series: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    match expr:
        case promql.NumberLiteral() | promql.StringLiteral():
            return None
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return _labels(expr.expr, series)
        case promql.MatrixSelector():
            return _labels(expr.vector_selector, series)
        case promql.VectorSelector():
            assert expr.name in series, f"there is no series {expr.name}"
            return _has(series[expr.name], {matcher.name for matcher in expr.matchers.matchers}, expr)
        case promql.Call():
            return _of_call(expr, series)
        case promql.AggregateExpr():
            inner = _labels(expr.expr, series) or frozenset()
            wanted = frozenset() if expr.modifier is None else frozenset(expr.modifier.labels)
            assert expr.modifier is None or expr.modifier.type == promql.AggModifierType.By, f"without: {expr}"
            _has(inner, wanted, expr)
            return wanted
        case promql.BinaryExpr():
            return _of_join(expr, series)
    raise AssertionError(f"nobody has taught this test what {expr!r} is")


def _of_call(expr: Any, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    name = expr.func.name
    arguments = [labels for argument in expr.args if (labels := _labels(argument, series)) is not None]
    if name == "vector":
        return frozenset()
    assert name in {"rate", "increase", "histogram_quantile"}, f"nobody has taught this test what {name}() is"
    (labels,) = arguments
    if name == "histogram_quantile":
        _has(labels, {"le"}, expr)
        return labels - {"le"}
    return labels


def _of_join(expr: Any, series: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    left, right = _labels(expr.lhs, series), _labels(expr.rhs, series)
    if left is None or right is None:
        return right if left is None else left
    how = expr.modifier
    if how is None or how.matching is None:
        assert left == right, f"these never match: {sorted(left)} and {sorted(right)} in {expr}"
        return left
    assert how.matching.type == promql.LabelModifierType.Include, f"ignoring: {expr}"
    on = frozenset(how.matching.labels)
    _has(left, on, expr)
    _has(right, on, expr)
    if how.card == promql.VectorMatchCardinality.OneToOne:
        return on
    return left | frozenset(how.group_labels or ())


def _has(labels: frozenset[str], wanted: set[str] | frozenset[str], expr: Any) -> frozenset[str]:
    assert wanted <= labels, f"no label {sorted(wanted - labels)} in {expr}"
    return labels


def _selectors(expr: Any) -> Iterator[Any]:
    if isinstance(expr, promql.VectorSelector):
        yield expr
        return
    inner = [getattr(expr, name, None) for name in ("expr", "lhs", "rhs", "vector_selector")]
    for part in [*inner, *getattr(expr, "args", [])]:
        if isinstance(part, promql.Expr):
            yield from _selectors(part)
