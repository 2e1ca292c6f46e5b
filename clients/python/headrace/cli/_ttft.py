"""`headrace ttft`: how long the first token takes, and how fast the rest come."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
from rich import box
from rich.table import Table

from headrace import AsyncClient, RequestFields
from headrace.cli._connection import Connection, connection_options
from headrace.cli._measure import QUESTION, Case, Run, prompt_words, summarize
from headrace.cli._output import print_table
from headrace.cli._summary import duration_s, milliseconds
from headrace.cli._ttft_plot import NO_MATPLOTLIB, draw
from headrace.v1 import model_pb2

__all__ = ["ttft"]

Command = Callable[..., None]

COLUMNS: Final = ("tokens in", "out", "TTFT p50", "p90", "queue", "prefill", "gap p50", "p90", "tokens/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    model: str
    runs: int
    max_output_tokens: int
    is_chat: bool
    is_cached: bool
    timeout_s: float | None


def _count_option(name: str, variable: str, default: int, text: str) -> Callable[[Command], Command]:
    return click.option(name, variable, type=click.IntRange(1), default=default, show_default=True, help=text)


@click.command()
@click.option("--model", help="Model id or alias.  [default: the first model that is ready]")
@_count_option("--runs", "runs", 5, "Measured runs of each prompt.")
@_count_option("--short", "short_words", 8, "Words of the short prompt.")
@_count_option("--long", "long_words", 1000, "Words of the long prompt.")
@_count_option("--max-tokens", "max_output_tokens", 64, "Output tokens per run.")
@click.option("--cached", is_flag=True, help="Send the same prompt every time, so that a prefix cache may serve it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table; times in seconds.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it too, for example ttft.png or ttft.svg."
)
@connection_options
def ttft(
    *,
    connection: Connection,
    model: str | None,
    runs: int,
    short_words: int,
    long_words: int,
    max_output_tokens: int,
    cached: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure time to first token and tokens per second, for a short and a long system prompt.

    One after another, each prompt after one warm-up run. TTFT is the time from
    sending the request to the first text, on this machine's clock; queue and
    prefill are the service's own figures.
    """
    if plot is not None:
        if find_spec("matplotlib") is None:
            raise click.UsageError(NO_MATPLOTLIB)
        if plot.suffix not in {".png", ".svg", ".pdf"} or not plot.absolute().parent.is_dir():
            raise click.BadParameter(f"{plot} is no .png, .svg or .pdf in a folder that there is", param_hint="--plot")
    lengths = {"short": short_words, "long": long_words}

    async def run() -> dict[str, Any]:
        async with connection.client() as client:
            chosen = model or await client.default_model(timeout_s=connection.timeout_s)
            found = await client.get_model(chosen, timeout_s=connection.timeout_s)
            plan = _Plan(
                model=found.id,
                runs=runs,
                max_output_tokens=max_output_tokens,
                is_chat=model_pb2.MODEL_CAPABILITY_CHAT in found.capabilities,
                is_cached=cached,
                timeout_s=connection.timeout_s,
            )
            cases = [await _measure(client, plan, name, words) for name, words in lengths.items()]
        return {
            "target": connection.target,
            "model": found.id,
            "max_output_tokens": max_output_tokens,
            "cached": cached,
            "cases": [summarize(case) for case in cases],
        }

    report = asyncio.run(run())
    if plot is not None:
        draw(report, plot)
        click.echo(f"drawn to {plot}", err=True)
    if as_json:
        click.echo(json.dumps(report, indent=2, allow_nan=False))
    else:
        print_table(_table(report))


async def _measure(client: AsyncClient, plan: _Plan, name: str, words: int) -> Case:
    seeds = [0] * (plan.runs + 1) if plan.is_cached else range(plan.runs + 1)
    runs = [await _run(client, plan, prompt_words(words, seed)) for seed in seeds]
    return Case(name=name, words=words, runs=runs[1:])  # the first warms up connection and engine


async def _run(client: AsyncClient, plan: _Plan, text: str) -> Run:
    fields: RequestFields = {"model": plan.model, "max_output_tokens": plan.max_output_tokens, "temperature": 0.0}
    if plan.is_chat:
        fields["chat"] = [("system", text), ("user", QUESTION)]
    else:
        fields["prompt"] = f"{text}\n\n{QUESTION}\n"
    async with client.generate(timeout_s=plan.timeout_s, **fields) as stream:
        times_s = [time.perf_counter() async for _piece in stream.deltas()]
    usage, timing = stream.usage, stream.timing
    return Run(
        ttft_s=stream.time_to_first_delta_s,
        gaps_s=[later - earlier for earlier, later in pairwise(times_s)],
        prompt_tokens=usage.prompt_token_count if usage and usage.HasField("prompt_token_count") else None,
        output_tokens=usage.output_token_count if usage and usage.HasField("output_token_count") else None,
        server_queue_s=duration_s(timing.queue_duration) if timing else None,
        server_prefill_s=duration_s(timing.prefill_duration) if timing else None,
        output_tokens_per_second=(timing.output_tokens_per_second or None) if timing else None,
    )


def _table(report: dict[str, Any]) -> Table:
    table = Table(
        title=f"{report['model']} at {report['target']}, {report['cases'][0]['runs']} runs each",
        caption="queue and prefill: p50 of the service's own figures; the rest is measured here",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("prompt")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for case in report["cases"]:
        table.add_row(
            case["case"],
            _count(case["prompt_tokens"]),
            _count(case["output_tokens"]),
            milliseconds(case["ttft_s"]["p50"]),
            milliseconds(case["ttft_s"]["p90"]),
            milliseconds(case["server_queue_s"]["p50"]),
            milliseconds(case["server_prefill_s"]["p50"]),
            milliseconds(case["inter_token_gap_s"]["p50"]),
            milliseconds(case["inter_token_gap_s"]["p90"]),
            _count(case["output_tokens_per_second"]["p50"], decimals=1),
        )
    return table


def _count(value: float | None, decimals: int = 0) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"
