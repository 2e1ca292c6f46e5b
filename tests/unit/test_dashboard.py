"""Dashboard, rules and alerts stand on metrics that there are: names, labels and joins are checked without any data."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard

from runtime import metrics
from runtime.slo import ALL, Objectives
from scripts.dashboard.page import document
from tests.support import promql
from tests.support.promql import DASHBOARD, FOLDER, GIVEN, Rule, filled, labels_of, panels, read_by, rules

PAGE = json.loads(DASHBOARD.read_text())
RULES = rules()
ALERTS = [rule for rule in RULES if rule.is_alert]
PANELS = panels()
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]
OUTCOMES = [
    "completed",
    "client_cancelled",
    "cancelled",
    "deadline_exceeded",
    "rejected",
    "backend_error",
    "consumer_too_slow",
    "internal_error",
    "drained",
]


def of_panel(panel: dict[str, Any]) -> str:
    return str(panel["title"])


def of_rule(rule: Rule) -> str:
    return rule.name


def metrics_behind(names: set[str]) -> set[str]:
    """Return the series of metrics behind `names`, recorded rules followed to where they come from."""
    recorded = {rule.name: rule.expr for rule in RULES if not rule.is_alert}
    found: set[str] = set()
    for name in names:
        found |= metrics_behind(read_by(recorded[name])) if name in recorded else {name}
    return found


def test_the_committed_dashboard_is_what_the_code_makes() -> None:
    assert document() == DASHBOARD.read_text(), "run: make docs"


def test_grafana_s_own_types_read_the_dashboard() -> None:
    page = Dashboard.from_json(PAGE)
    assert (page.uid, page.title) == ("headrace", "Headrace")
    assert len(page.panels or ()) == len(PAGE["panels"])


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PAGE["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in PAGE["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("panel", PANELS, ids=of_panel)
def test_a_panel_says_in_a_sentence_what_it_shows_and_in_what_unit(panel: dict[str, Any]) -> None:
    text = panel["description"]
    assert text.endswith(".")
    assert ". " not in text, "more than one sentence"
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    refs = [target["refId"] for target in panel["targets"]]
    assert refs
    assert len(set(refs)) == len(refs)


def test_rows_and_titles_are_told_apart() -> None:
    titles = [panel["title"] for panel in PAGE["panels"]]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(("panel", "target"), TARGETS, ids=[f"{p['title']} {t['refId']}" for p, t in TARGETS])
def test_a_query_stands_on_series_and_labels_that_there_are(panel: dict[str, Any], target: dict[str, Any]) -> None:
    labels = labels_of(filled(target["expr"]))
    assert labels is not None, "a number is no series"
    named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert named <= labels, f"no label {named - labels} for the legend"
    if panel["type"] != "heatmap":
        # Two series of one name cannot be told apart; the one objective that is chosen need not be told.
        held = set(re.findall(r'(\w+)=~?"\$objective"', target["expr"]))
        assert labels - named - held == set(), "series with the same name"


@pytest.mark.parametrize("rule", RULES, ids=of_rule)
def test_a_rule_stands_on_series_and_labels_that_there_are(rule: Rule) -> None:
    assert labels_of(rule.expr) is not None


def test_what_the_variables_ask_for_exists() -> None:
    series = promql.known()
    asked = [item["query"]["query"] for item in PAGE["templating"]["list"] if item["type"] == "query"]
    assert len(asked) == 3
    for query in asked:
        name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert label in series[name]


def test_every_metric_is_shown() -> None:
    shown = metrics_behind({name for _, target in TARGETS for name in read_by(filled(target["expr"]))})
    missing = [metric.name for metric in metrics.METRICS if not shown & promql.series_of(metric).keys()]
    assert not missing


@pytest.mark.parametrize("rule", ALERTS, ids=of_rule)
def test_an_alert_says_how_bad_it_is_what_happened_and_where_to_look(rule: Rule) -> None:
    assert rule.labels["severity"] in {"page", "ticket"}
    notes = rule.annotations or {}
    assert notes.keys() == {"summary", "description"}
    assert "Look first" in notes["description"]
    labels = labels_of(rule.expr) or frozenset()
    used = {name for text in notes.values() for name in re.findall(r"\$labels\.(\w+)", text)}
    assert used <= labels, f"no label {used - labels}"


def test_descriptions_name_rows_of_the_dashboard() -> None:
    rows = {panel["title"] for panel in PAGE["panels"] if panel["type"] == "row"}
    told = {name for rule in ALERTS for name in re.findall(r'"([A-Z][^"]*)"', (rule.annotations or {})["description"])}
    assert told
    assert told <= rows


def test_every_alert_is_shown_ringing() -> None:
    text = (FOLDER / "rules" / "tests.yml").read_text()
    quiet = [rule.name for rule in ALERTS if f'alertname="{rule.name}", alertstate="firing"' not in text]
    assert not quiet


def test_windows_of_a_rule_differ_in_nothing_else() -> None:
    plain: dict[str, set[str]] = {}
    for rule in RULES:
        if found := re.fullmatch(r"(headrace:goodput:ratio_rate)(\w+)", rule.name):
            assert f"[{found[2]}]" in rule.expr
            plain.setdefault(found[1], set()).add(rule.expr.replace(f"[{found[2]}]", "[]"))
    assert {name: len(texts) for name, texts in plain.items()} == {"headrace:goodput:ratio_rate": 1}


def test_rules_count_the_failures_that_objectives_count() -> None:
    objectives = Objectives()
    failed = {
        outcome
        for outcome in OUTCOMES
        if outcome != "rejected" and objectives.judge(outcome, ttft_s=0.0, tpot_s=0.0, total_s=0.0).get(ALL) is False
    }
    (rule,) = (rule for rule in RULES if rule.name == "headrace:generations_failed:ratio_rate5m")
    (matched,) = re.findall(r'headrace_stream_outcome=~"([^"]*)"', rule.expr)
    assert set(matched.split("|")) == failed


def test_prometheus_scrapes_the_jobs_that_rules_and_dashboard_name() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert jobs == {"headrace-service": ["127.0.0.1:9464"], "headrace-gateway": ["127.0.0.1:9465"]}
    texts = [rule.expr for rule in RULES] + [target["expr"] for _, target in TARGETS]
    named = {job for text in texts for found in re.findall(r'job=~?"([^"]*)"', text) for job in found.split("|")}
    assert named == jobs.keys()


def test_a_label_that_a_metric_does_not_have_is_found() -> None:
    name = metrics.TTFT.prometheus
    for expr in (
        "no_such_metric",
        f'{name}_bucket{{model="m"}}',
        f"sum by (model) (rate({name}_count[5m]))",
        f"histogram_quantile(0.5, sum by (job) (rate({name}_bucket[5m])))",
        f"{name}_count / on (le) {name}_sum",
        f"{name}_sum / sum by (job) ({name}_count)",
    ):
        with pytest.raises(AssertionError):
            labels_of(expr)
    assert labels_of(f"sum by (job) (rate({name}_count[5m])) > 0") == {"job"}
    assert labels_of("up") == GIVEN
