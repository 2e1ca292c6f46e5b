"""PromQL over the metrics of `runtime.metrics`: a rename there is one here. Pure."""

from __future__ import annotations

from typing import Final

from runtime import metrics, semconv
from runtime.metrics import Metric
from scripts.dashboard.panel import Query

__all__ = [
    "CLASS",
    "MODEL",
    "OF_CLASS",
    "OF_GATEWAY",
    "OF_MODEL",
    "OF_SLO",
    "SLO",
    "by_model_and_class",
    "in_all",
    "label",
    "missed",
    "named",
    "of_budget",
    "per_second",
    "percentile",
    "percentiles",
]


def label(attribute: str) -> str:
    """Return the label that Prometheus makes of an attribute."""
    return attribute.replace(".", "_")


MODEL: Final = label(semconv.GEN_AI_REQUEST_MODEL)
CLASS: Final = label(semconv.PRIORITY)
SLO: Final = label(semconv.SLO_NAME)
# What is chosen on top of the page.
OF_MODEL: Final = f'{MODEL}=~"$model"'
OF_CLASS: Final = f'{OF_MODEL}, {CLASS}=~"$class"'
OF_GATEWAY: Final = f'{label(semconv.GEN_AI_RESPONSE_MODEL)}=~"$model"'
OF_SLO: Final = f'{OF_MODEL}, {SLO}=~"$objective"'


def named(*attributes: str, before: str = "") -> str:
    """Return the name of a series: `before`, and the values of its labels."""
    return " ".join([*([before] if before else []), *(f"{{{{{label(attribute)}}}}}" for attribute in attributes)])


def per_second(metric: Metric, where: str, *by: str, of: str = "") -> str:
    """Return how much of a counter comes in a second; `of` is `_sum` or `_count` of a histogram."""
    return f"sum{_by(*by)} (rate({metric.prometheus}{of}{_where(where)}[$__rate_interval]))"


def percentile(q: float, metric: Metric, where: str, *by: str) -> str:
    """Return the quantile `q` of a histogram."""
    return f"histogram_quantile({q}, {per_second(metric, where, *by, 'le', of='_bucket')})"


def percentiles(metric: Metric, where: str = OF_CLASS) -> tuple[Query, ...]:
    """Return p50, p95 and p99 of a histogram."""
    return tuple(Query(percentile(q, metric, where), f"p{100 * q:.0f}") for q in (0.5, 0.95, 0.99))


def in_all(metric: Metric, where: str, *by: str) -> str:
    """Return the sum of a gauge over replicas."""
    return f"sum{_by(*by)} ({metric.prometheus}{_where(where)})"


def by_model_and_class(rule: str, before: str = "") -> Query:
    """Return a recorded rule that has model and class."""
    return Query(f"headrace:{rule}{{{OF_CLASS}}}", named(semconv.GEN_AI_REQUEST_MODEL, semconv.PRIORITY, before=before))


def missed() -> str:
    """Return the part of the evaluations in all of the time shown that missed the objective."""
    of_all, of_missed = OF_SLO, f'{OF_SLO}, {label(semconv.SLO_MET)}="false"'
    both, bad = (
        f"sum by ({MODEL}, {SLO}) (increase({metrics.SLO.prometheus}{{{where}}}[$__range]))"
        for where in (of_all, of_missed)
    )
    return f"({bad} or 0 * {both}) / ({both} > 0)"


def of_budget(bad: str) -> str:
    """Return `bad`, a part of evaluations, in units of what the target allows."""
    return f'({bad}) / on ({SLO}) group_left () (1 - headrace:slo_target:ratio{{{SLO}=~"$objective"}})'


def _by(*names: str) -> str:
    return f" by ({', '.join(label(name) for name in names)})" if names else ""


def _where(matchers: str) -> str:
    return f"{{{matchers}}}" if matchers else ""
