"""Rows about the processes: the gateway's HTTP, and whether all is well."""

from __future__ import annotations

from typing import Final

from runtime import metrics, semconv
from scripts.dashboard.panel import Kind, Panel, Query, Row
from scripts.dashboard.queries import OF_GATEWAY, OF_MODEL, in_all, named, per_second, percentile, percentiles

__all__ = ["GATEWAY", "HEALTH"]

GATEWAY: Final = Row(
    "Gateway",
    (
        Panel(
            "Requests by status",
            "HTTP answers per second; a stream that fails behind its 200 stays one.",
            "reqps",
            (
                Query(
                    per_second(metrics.HTTP_DURATION, "", semconv.HTTP_STATUS_CODE, of="_count"),
                    named(semconv.HTTP_STATUS_CODE),
                ),
            ),
            Kind.STACK,
        ),
        Panel(
            "Failed requests by route",
            "5xx, and streams that failed behind a 200, among all requests of a route.",
            "percentunit",
            (Query("headrace:http_failed:ratio_rate5m", named(semconv.HTTP_ROUTE)),),
        ),
        Panel(
            "Duration by route, p95",
            "Request received to the last byte handed over.",
            "s",
            (Query(percentile(0.95, metrics.HTTP_DURATION, "", semconv.HTTP_ROUTE), named(semconv.HTTP_ROUTE)),),
        ),
        Panel(
            "Generations by outcome",
            "How generations ended as the gateway told its callers.",
            "reqps",
            (Query(per_second(metrics.GATEWAY_GENERATIONS, "", semconv.OUTCOME), named(semconv.OUTCOME)),),
            Kind.STACK,
        ),
        Panel(
            "Whole generation, at the gateway",
            "Request received to the end of the answer, streams and whole answers.",
            "s",
            percentiles(metrics.CLIENT_DURATION, OF_GATEWAY),
        ),
        Panel(
            "Tokens of a generation",
            "Prompt and answer of generations that completed, p50 and p95.",
            "none",
            tuple(
                Query(
                    percentile(q, metrics.CLIENT_TOKENS, OF_GATEWAY, semconv.GEN_AI_TOKEN_TYPE),
                    named(semconv.GEN_AI_TOKEN_TYPE, before=f"p{100 * q:.0f}"),
                )
                for q in (0.5, 0.95)
            ),
        ),
    ),
)

HEALTH: Final = Row(
    "Health",
    (
        Panel(
            "Scraped",
            "1 for each process whose metrics Prometheus can read.",
            "none",
            (Query('up{job=~"headrace-service|headrace-gateway"}', named("job", "instance")),),
            top=1.0,
        ),
        Panel(
            "Model ready",
            "1 while a model takes requests at a replica, 0 while its engine does not work or is not there yet.",
            "none",
            (
                Query(
                    in_all(metrics.MODELS, OF_MODEL, semconv.GEN_AI_REQUEST_MODEL, "instance"),
                    named(semconv.GEN_AI_REQUEST_MODEL, "instance"),
                ),
            ),
            top=1.0,
        ),
        Panel(
            "Calls by status",
            "RPCs of the service per second, of all methods.",
            "reqps",
            (
                Query(
                    per_second(metrics.RPC_DURATION, "", semconv.RPC_STATUS_CODE, of="_count"),
                    named(semconv.RPC_STATUS_CODE),
                ),
            ),
            Kind.STACK,
        ),
        Panel(
            "Traces",
            "What became of the spans of requests: sampled, kept because slow or failed, dropped, or lost.",
            "ops",
            (
                Query(
                    per_second(metrics.TRACES, "", "job", semconv.SAMPLING_DECISION),
                    named("job", semconv.SAMPLING_DECISION),
                ),
            ),
        ),
        Panel(
            "Ledger, lost records",
            "Records that the usage ledger could not take since the process began; has to be empty or 0.",
            "none",
            (
                Query(
                    in_all(metrics.LEDGER_LOST, "", "instance", semconv.LEDGER_RECORD),
                    named("instance", semconv.LEDGER_RECORD),
                ),
            ),
        ),
        Panel(
            "Limits shared",
            "1 while replicas count limits together, 0 while each counts for itself; empty without a store.",
            "none",
            (Query(in_all(metrics.LIMITS_SHARED, "", "instance"), named("instance")),),
            top=1.0,
        ),
    ),
)
