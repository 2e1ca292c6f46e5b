"""Rows about requests: how many there are, and how they end."""

from __future__ import annotations

from typing import Final

from runtime import metrics, semconv
from scripts.dashboard.panel import Kind, Panel, Query, Row
from scripts.dashboard.queries import (
    CLASS,
    MODEL,
    OF_CLASS,
    OF_MODEL,
    by_model_and_class,
    in_all,
    named,
    per_second,
    percentile,
)

__all__ = ["ENDS", "LOAD"]

_BY_CLASS: Final = (semconv.GEN_AI_REQUEST_MODEL, semconv.PRIORITY)

LOAD: Final = Row(
    "Load",
    (
        Panel(
            "Generations",
            "Ended per second, refused ones included.",
            "reqps",
            (by_model_and_class("generations:rate5m"),),
        ),
        Panel(
            "Being served",
            "Generate calls of the service, waiting ones included, and HTTP requests of the gateway.",
            "none",
            (Query(in_all(metrics.ACTIVE, ""), "service"), Query(in_all(metrics.HTTP_ACTIVE, ""), "gateway")),
        ),
        Panel(
            "Slots",
            "In use, against what a class may use; those of batch are among those of interactive.",
            "none",
            (
                Query(in_all(metrics.SLOTS_USED, OF_CLASS, *_BY_CLASS), named(*_BY_CLASS, before="used")),
                Query(
                    in_all(metrics.SLOTS_LIMIT, OF_CLASS, *_BY_CLASS), named(*_BY_CLASS, before="limit"), is_limit=True
                ),
            ),
        ),
        Panel(
            "Waiting for a slot",
            "Requests in the lines of all replicas.",
            "none",
            (Query(in_all(metrics.QUEUE_SIZE, OF_CLASS, *_BY_CLASS), named(*_BY_CLASS)),),
        ),
        Panel(
            "Oldest waiter",
            "How long the one that has waited longest has waited.",
            "s",
            (Query(f"max by ({MODEL}, {CLASS}) ({metrics.QUEUE_AGE.prometheus}{{{OF_CLASS}}})", named(*_BY_CLASS)),),
        ),
        Panel(
            "Tokens",
            "Tokens generated and prompt tokens taken in, per second.",
            "none",
            (by_model_and_class("output_tokens:rate5m", "out"), by_model_and_class("input_tokens:rate5m", "in")),
        ),
    ),
)


def _parts(metric: metrics.Metric, where: str, *by: str) -> tuple[Query, ...]:
    return (Query(per_second(metric, where, *by), named(*by)),)


ENDS: Final = Row(
    "Ends",
    (
        Panel(
            "Outcomes",
            "How generations ended and, of those that were refused or failed, why.",
            "reqps",
            _parts(metrics.GENERATIONS, OF_CLASS, semconv.OUTCOME, semconv.ERROR_REASON),
            Kind.STACK,
            width=16,
        ),
        Panel(
            "Failed and refused",
            "The part that failed by the server's fault, of which the engine's, and what its load made it refuse.",
            "percentunit",
            (
                by_model_and_class("generations_failed:ratio_rate5m", "failed"),
                by_model_and_class("generations_backend_error:ratio_rate5m", "engine"),
                by_model_and_class("generations_overload:ratio_rate5m", "refused"),
            ),
        ),
        Panel(
            "Ended before their time",
            "Cancelled generations by cause and by what they were doing.",
            "reqps",
            _parts(metrics.CANCELLED, OF_MODEL, semconv.CANCEL_CAUSE, semconv.CANCEL_PHASE),
            Kind.STACK,
        ),
        Panel(
            "Time to cancel, p95",
            "From the cause to the engine told and the slot free.",
            "s",
            (
                Query(
                    percentile(0.95, metrics.CANCEL_DURATION, OF_MODEL, semconv.CANCEL_CAUSE),
                    named(semconv.CANCEL_CAUSE),
                ),
            ),
        ),
        Panel(
            "Engine's acknowledgement of a stop, p95",
            "Cancel of a running generation to the engine's answer, of engines that give one.",
            "s",
            (
                Query(
                    percentile(0.95, metrics.ENGINE_STOP, OF_MODEL, semconv.GEN_AI_REQUEST_MODEL, semconv.CONTRACT),
                    named(semconv.GEN_AI_REQUEST_MODEL, semconv.CONTRACT),
                ),
            ),
        ),
        Panel(
            "Stops of the engine",
            "How far cancels went: failed and unreachable ones leave an engine that computes for nobody.",
            "ops",
            _parts(metrics.ENGINE_STOPS, OF_MODEL, semconv.CONTRACT, semconv.STOP_OUTCOME),
        ),
        Panel(
            "Wasted tokens",
            "At most how many tokens per second engines make for nobody after a cancel.",
            "none",
            _parts(metrics.WASTED_TOKENS, OF_MODEL, semconv.GEN_AI_REQUEST_MODEL),
        ),
        Panel(
            "Wasted tokens, share",
            "The same among all tokens that engines make, over 30 minutes.",
            "percentunit",
            (
                Query(
                    f"headrace:wasted_tokens:ratio_rate30m{{{OF_MODEL}}}",
                    named(semconv.GEN_AI_REQUEST_MODEL),
                ),
            ),
        ),
        Panel(
            "No first token",
            "Admitted generations that ended without a token, of which the time to first token knows nothing.",
            "reqps",
            _parts(metrics.FIRST_TOKEN_MISSING, OF_CLASS, semconv.OUTCOME),
        ),
        Panel(
            "Clients who left",
            "Disconnects at the gateway, by whether the client had seen output.",
            "reqps",
            _parts(metrics.DISCONNECTS, "", semconv.DISCONNECT_PHASE),
        ),
        Panel(
            "Refused by limits",
            "Generations that a limit of their tenant refused.",
            "reqps",
            _parts(metrics.LIMITED, OF_MODEL, semconv.LIMIT),
        ),
    ),
)
