"""A real Prometheus reads both processes, and answers every query of the dashboard and every rule.

The first tests are promtool's own: the configuration, the rules, and when alerts ring, which stands in
deploy/observability/rules/tests.yml.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from runtime.metrics import METRICS, SLO, TTFT, Kind
from runtime.slo import Objectives
from tests.support.gateway_harness import RawClient
from tests.support.http_stream import open_stream
from tests.support.otlp_sink import otlp_sink
from tests.support.processes import Stack, free_ports, stack
from tests.support.prometheus import Prometheus, prometheus, promtool
from tests.support.promql import Rule, filled, panels, read_by, rules, series_of
from tests.support.service import script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

MODEL: Final = "simulator"
OBJECTIVE_S: Final = Objectives().ttft_s
SLOW_MS: Final = 600
# Refused at a time: with the slow one, and the one that fails before its first token, enough for an alert.
REFUSED: Final = 4
# What this run does not make, and why. Everything else has to have a value.
ABSENT: Final = {
    "headrace_server_limited_total": "nobody has limits",
    "headrace_server_limits_shared": "there is no store of limits",
    "headrace_server_ledger_lost_total": "the ledger is off, and would lose nothing",
}
QUERIES: Final = [
    (f"{panel['title']} {target['refId']}", filled(target["expr"], rate="1m"))
    for panel in panels()
    for target in panel["targets"]
]


def test_rules_are_well_formed() -> None:
    assert promtool("check", "rules", "rules/recording.yml", "rules/alerts.yml").count("SUCCESS") == 2


def test_the_configuration_is_one() -> None:
    assert "is valid prometheus config file syntax" in promtool("check", "config", "prometheus.yml")


def test_alerts_ring_when_they_should_and_not_else() -> None:
    assert "SUCCESS" in promtool("test", "rules", "rules/tests.yml")


@dataclass(frozen=True, slots=True)
class Scraped:
    """What ran, and the Prometheus that read it."""

    stack: Stack
    prometheus: Prometheus

    def ended(self) -> list[dict[str, Any]]:
        """Return the service's log lines of all interactive generations."""
        lines = self.stack.service.lines(logger="headrace.request", priority="interactive")
        return [line for line in lines if line["message"].startswith("generation ")]


def chat(**options: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": script(**options) + "\n"}]}


async def post(port: int, body: dict[str, Any]) -> int:
    async with RawClient(port) as client:
        return (await client.post(body)).status


async def some_of_each_kind(running: Stack, metrics_port: int) -> None:
    """Good streams, a slow one, two failures, a batch request, a cancel, one that waits, and refused ones."""
    port = running.gateway.port
    for options in ({}, {}, {"prefill_ms": SLOW_MS}, {"fault": "error", "fault_after": 2}):
        async with open_stream(port, chat(output_tokens=5, **options)) as stream:
            await stream.rest()
    assert await post(port, chat(fault="error")) >= 500
    assert await post(port, {**chat(output_tokens=3), "service_tier": "flex"}) == 200
    async with asyncio.TaskGroup() as tasks:
        async with open_stream(port, {**chat(token_ms=20), "max_tokens": 4000}) as holder:
            await holder.until_text()
            waiting = tasks.create_task(post(port, chat(output_tokens=3)))
            await one_waits(metrics_port)
            for _ in range(REFUSED):
                assert await post(port, chat()) == 503
            holder.leave()
        assert await waiting == 200


async def one_waits(metrics_port: int) -> None:
    """Wait until the service's only place to wait is taken."""
    sign = b'headrace_server_queue_size{gen_ai_request_model="simulator",headrace_priority="interactive"} 1.0'
    async with asyncio.timeout(10):
        while True:
            async with RawClient(metrics_port) as client:
                if sign in (await client.get("/metrics")).body:
                    return
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("scraped")
    service_port, gateway_port = free_ports(2)
    with otlp_sink() as sink:
        # A sampler that drops all, so that traces are kept for being slow or failed.
        traced = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": sink.endpoint,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0",
        }
        settings = {"backend": "simulator", "simulator_token_ms": 2, "max_running": 1, "max_waiting": 1}
        front = {"metrics_port": gateway_port}
        with (
            stack(folder, both=traced, front=front, metrics_port=service_port, **settings) as running,
            prometheus(folder, service=service_port, gateway=gateway_port) as server,
        ):
            found = Scraped(running, server)
            # Twice, for a rate is a difference: what begins with its first value has none yet.
            for _ in range(2):
                asyncio.run(some_of_each_kind(running, service_port))
                wait_until_read(found)
            wait_until_evaluated(server)
            yield found


def wait_until_read(found: Scraped) -> None:
    """Wait until Prometheus has both processes' newest counts."""
    ended = f'sum(headrace_server_generations_total{{headrace_priority="interactive"}}) == {len(found.ended())}'
    # The gateway has those of batch besides, one each time.
    told = "sum(headrace_gateway_generations_total) == sum(headrace_server_generations_total)"
    found.prometheus.until(lambda: bool(found.prometheus.ask(f"{ended} and {told}")), f"{ended} and {told}")


def wait_until_evaluated(server: Prometheus) -> None:
    """Wait until every rule was evaluated over what was read last; twice, for alerts stand on recorded rules."""
    for _ in range(2):
        now = datetime.now(UTC)
        server.until(
            lambda now=now: all(
                datetime.fromisoformat(group["lastEvaluation"]) > now for group in server.get("rules")["groups"]
            ),
            "rules were evaluated",
        )


def test_both_are_read_whole(scraped: Scraped) -> None:
    targets = scraped.prometheus.get("targets")["activeTargets"]
    assert {target["labels"]["job"] for target in targets} == {"headrace-service", "headrace-gateway"}
    assert [target["lastError"] for target in targets] == ["", ""]


def test_what_is_read_is_what_the_table_of_metrics_says(scraped: Scraped) -> None:
    types = {Kind.HISTOGRAM: "histogram", Kind.COUNTER: "counter", Kind.UP_DOWN: "gauge", Kind.GAUGE: "gauge"}
    told = scraped.prometheus.get("metadata")
    for metric in METRICS:
        if metric.prometheus in ABSENT:
            continue
        # A counter is described without the ending of its series.
        kinds = [item["type"] for item in told[metric.prometheus.removesuffix("_total")]]
        assert kinds == [types[metric.kind]] * len(kinds), metric.name
        for name, labels in series_of(metric).items():
            seen = scraped.prometheus.ask(name)
            assert seen, name
            assert {label for labels_seen, _ in seen for label in labels_seen} <= labels | {"__name__"}, name


@pytest.mark.parametrize(("title", "expr"), QUERIES, ids=[title for title, _ in QUERIES])
def test_a_query_of_the_dashboard_has_an_answer(title: str, expr: str, scraped: Scraped) -> None:
    values = [value for _, value in scraped.prometheus.ask(expr)]
    if read_by(expr) & ABSENT.keys():
        assert not values, "say no longer that this is not made"
    else:
        assert [value for value in values if not math.isnan(value)], expr


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_a_rule_has_an_answer(rule: Rule, scraped: Scraped) -> None:
    values = [value for _, value in scraped.prometheus.ask(rule.expr)]
    assert not [value for value in values if math.isnan(value)], "no value is better than NaN"
    if not rule.is_alert:
        assert values
        assert scraped.prometheus.ask(rule.name)


def test_prometheus_evaluates_every_rule(scraped: Scraped) -> None:
    groups = scraped.prometheus.get("rules")["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert sorted(rule["name"] for rule in found) == sorted(rule.name for rule in rules())
    assert {(rule["health"], rule.get("lastError", "")) for rule in found} == {("ok", "")}


def test_buckets_count_the_streams_and_the_objective_is_an_edge(scraped: Scraped) -> None:
    ttfts_ms = [line["ttft_ms"] for line in scraped.ended() if line["ttft_ms"] is not None]
    assert sum(ttft_ms >= SLOW_MS for ttft_ms in ttfts_ms) >= 2
    where = 'headrace_priority="interactive"'
    number = scraped.prometheus.number
    assert number(f"sum({TTFT.prometheus}_count{{{where}}})") == len(ttfts_ms)
    assert number(f'sum({TTFT.prometheus}_bucket{{{where}, le="+Inf"}})') == len(ttfts_ms)
    good = sum(ttft_ms <= OBJECTIVE_S * 1000 for ttft_ms in ttfts_ms)
    assert number(f'sum({TTFT.prometheus}_bucket{{{where}, le="{OBJECTIVE_S}"}})') == good


def test_goodput_counts_the_slow_the_failed_and_the_refused_ones_as_bad(scraped: Scraped) -> None:
    lines = scraped.ended()
    ttfts_ms = [line["ttft_ms"] for line in lines if line["ttft_ms"] is not None]
    late = sum(ttft_ms > OBJECTIVE_S * 1000 for ttft_ms in ttfts_ms)
    failed = sum(line["outcome"] == "backend_error" and line["ttft_ms"] is None for line in lines)
    refused = sum(line["reason"] == "QUEUE_FULL" for line in lines)
    assert late >= 2
    assert (failed, refused) == (2, 2 * REFUSED)
    counted = {
        labels["headrace_slo_met"]: value
        for labels, value in scraped.prometheus.ask(f'{SLO.prometheus}{{headrace_slo_name="ttft"}}')
    }
    assert counted == {"true": len(ttfts_ms) - late, "false": late + failed + refused}


def test_the_burn_pages(scraped: Scraped) -> None:
    ringing = {
        (alert["labels"]["alertname"], alert["labels"].get("headrace_slo_name")): alert
        for alert in scraped.prometheus.get("alerts")["alerts"]
        if alert["state"] == "firing"
    }
    alert = ringing["HeadraceBudgetBurn14x", "ttft"]
    assert alert["labels"] == {
        "alertname": "HeadraceBudgetBurn14x",
        "gen_ai_request_model": MODEL,
        "headrace_slo_name": "ttft",
        "severity": "page",
    }
    assert f"{MODEL} misses its objective ttft for " in alert["annotations"]["summary"]
    # What waits for minutes before it rings has not rung, and nothing rings that has no cause here.
    assert {name for name, _ in ringing} <= {f"HeadraceBudgetBurn{times}x" for times in (14, 6, 3, 1)}
