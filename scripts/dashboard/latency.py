"""Rows about time: whether the promise is kept, and where the time goes."""

from __future__ import annotations

from typing import Final

from runtime import metrics, semconv
from runtime.metrics import Metric
from scripts.dashboard.panel import Kind, Panel, Query, Row
from scripts.dashboard.queries import (
    OF_CLASS,
    OF_GATEWAY,
    OF_MODEL,
    OF_SLO,
    SLO,
    by_model_and_class,
    missed,
    named,
    of_budget,
    per_second,
    percentile,
    percentiles,
)

__all__ = ["PROMISE", "TIME"]

_BY_OBJECTIVE: Final = (semconv.GEN_AI_REQUEST_MODEL, semconv.SLO_NAME)


def _seconds(*added: Metric, less: tuple[Metric, ...] = ()) -> str:
    """Return seconds of a generation on average: all that are admitted have a duration."""
    all_s = " + ".join(per_second(metric, OF_CLASS, of="_sum") for metric in added)
    less_s = "".join(f" - {per_second(metric, OF_CLASS, of='_sum')}" for metric in less)
    return f"({all_s}{less_s}) / {per_second(metrics.DURATION, OF_CLASS, of='_count')}"


PROMISE: Final = Row(
    "Is the promise kept?",
    (
        Panel(
            "Goodput, all of the time shown",
            "The part of the evaluated generations that met the chosen objective.",
            "percentunit",
            (Query(f"1 - {missed()}", named(*_BY_OBJECTIVE)),),
            Kind.NUMBER,
            width=4,
        ),
        Panel(
            "Error budget used",
            "Missed generations in units of what the target allows for as many; show 30 days, the time of the promise: "
            "above 100 % it is broken.",
            "percentunit",
            (Query(of_budget(missed()), named(*_BY_OBJECTIVE)),),
            Kind.NUMBER,
            width=4,
            lines=(1.0,),
        ),
        Panel(
            "Goodput",
            "The part of the evaluated generations that met the chosen objective, over 5 minutes and an hour.",
            "percentunit",
            (
                *(
                    Query(f"headrace:goodput:ratio_rate{window}{{{OF_SLO}}}", named(*_BY_OBJECTIVE, before=window))
                    for window in ("5m", "1h")
                ),
                Query(f'headrace:slo_target:ratio{{{SLO}=~"$objective"}}', "target", is_limit=True),
            ),
            bottom=None,  # what matters lies above 0.9
            top=1.0,
        ),
        Panel(
            "Burn rate",
            "How many times faster than allowed the error budget is used; alerts ring at 14.4, 6, 3 and 1.",
            "none",
            tuple(
                Query(
                    of_budget(f"1 - headrace:goodput:ratio_rate{window}{{{OF_SLO}}}"),
                    named(semconv.GEN_AI_REQUEST_MODEL, before=window),
                )
                for window in ("5m", "1h", "6h", "3d")
            ),
            lines=(1.0, 6.0, 14.4),
        ),
        Panel(
            "Time to first token",
            "Received to first generated token, beside the objective that is set on top of this page.",
            "s",
            (*percentiles(metrics.TTFT), Query("vector($ttft_objective)", "objective", is_limit=True)),
        ),
        Panel(
            "Time to first token, distribution",
            "How many streams had their first token after how long; a second band is a second kind of request.",
            "s",
            (
                Query(
                    f"sum by (le) (increase({metrics.TTFT.prometheus}_bucket{{{OF_CLASS}}}[$__rate_interval]))",
                    "{{le}}",
                ),
            ),
            Kind.HEATMAP,
        ),
        Panel(
            "Time to first token by model and class, p95",
            "Which model and which class are slow, over 5 minutes.",
            "s",
            (by_model_and_class("ttft_seconds:p95_rate5m"),),
        ),
    ),
)

TIME: Final = Row(
    "Where does the time go?",
    (
        Panel(
            "A generation on average",
            "Waiting for a slot, prefill, and the rest: decode, and whatever had no first token.",
            "s",
            (
                Query(_seconds(metrics.QUEUE), "queue"),
                Query(_seconds(metrics.PREFILL), "prefill"),
                Query(_seconds(metrics.DURATION, less=(metrics.QUEUE, metrics.PREFILL)), "decode and rest"),
            ),
            Kind.STACK,
        ),
        Panel(
            "Shares of the time to first token",
            "Much queue is more load than slots; little of it, and a late token, is long prompts or a slow engine.",
            "percentunit",
            (
                by_model_and_class("ttft_queue:ratio_rate5m", "queue"),
                by_model_and_class("ttft_prefill:ratio_rate5m", "prefill"),
            ),
            top=1.0,
        ),
        Panel(
            "Gateway's first text against the service's first token",
            "What the gateway and the way to it add; it counts streams only, the service every generation.",
            "s",
            tuple(
                Query(percentile(q, metric, where), f"{whose} p{100 * q:.0f}")
                for q in (0.5, 0.95)
                for whose, metric, where in (
                    ("gateway", metrics.CLIENT_TTFC, OF_GATEWAY),
                    ("service", metrics.TTFT, OF_MODEL),
                )
            ),
        ),
        Panel(
            "Queue",
            "Received to admitted, and the engine's own queue where it reports one: load moves it.",
            "s",
            percentiles(metrics.QUEUE),
        ),
        Panel("Prefill", "Admitted to first token: long prompts move it.", "s", percentiles(metrics.PREFILL)),
        Panel(
            "Decode, time per token",
            "Time per token after the first: a slow engine, or many streams in one batch, move it.",
            "s",
            percentiles(metrics.TPOT),
        ),
        Panel(
            "Longest gap",
            "The longest silence between two tokens of each stream: what a reader sees as a stall.",
            "s",
            percentiles(metrics.MAX_GAP),
        ),
        Panel(
            "Reader lag",
            "How long events waited because the reader had not taken those before: the client, or the network to it.",
            "s",
            percentiles(metrics.READER_LAG),
        ),
        Panel(
            "Whole generation",
            "Received to last token, of generations that were admitted.",
            "s",
            percentiles(metrics.DURATION),
        ),
    ),
)
