"""What the whole path costs: CPU per token of gateway and service, added time to first token, idle memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import floor
from bench.load import StreamResult, began, open_stream, read_streams
from bench.processes import Path

__all__ = ["measure", "measure_floor", "print_table"]

# Streams at once, and tokens of each: long enough that a request's own cost is
# small beside its tokens'.
STREAMS = {1: 4000, 16: 1500, 128: 600}
PACED_STREAMS = 64
PACED_TOKENS = 250
PACED_TOKEN_MS = 20
TTFT_REQUESTS = 300
IDLE_STREAMS = 1000


def measure_floor(scale: int) -> list[dict[str, float]]:
    """Return what bare gRPC costs, for the same numbers of streams."""
    return [floor.measure(streams, tokens // scale) for streams, tokens in STREAMS.items()]


async def measure(path: Path, rounds: int, scale: int) -> dict[str, Any]:
    """Return the figures: medians of `rounds`, with a `scale`-th of the work."""
    await _cost(path, 16, {}, 1000 // scale)  # warm-up
    rows = []
    for streams, tokens in STREAMS.items():
        flat = [await _cost(path, streams, {}, tokens // scale) for _ in range(rounds)]
        rows.append(
            {
                "streams": streams,
                "tokens_per_s": round(_median(flat, "tokens_per_s")),
                "tokens_per_event": round(_median(flat, "tokens_per_event"), 1),
                "gateway_cpu_us_per_token": round(_median(flat, "gateway_us"), 1),
                "service_cpu_us_per_token": round(_median(flat, "service_us"), 1),
                "added_ttft_ms": await _added_ttft(path, streams, TTFT_REQUESTS // scale),
                "rss_mb": path.rss_mb(),
            }
        )
    script: dict[str, object] = {"token_ms": PACED_TOKEN_MS}
    paced = [await _cost(path, PACED_STREAMS, script, PACED_TOKENS // scale) for _ in range(rounds)]
    return {
        "rows": rows,
        "paced": {
            "streams": PACED_STREAMS,
            "token_ms": PACED_TOKEN_MS,
            "gateway_cpu_us_per_token": round(_median(paced, "gateway_us"), 1),
            "service_cpu_us_per_token": round(_median(paced, "service_us"), 1),
        },
        "idle": await _idle(path, IDLE_STREAMS // scale),
    }


def _median(rounds: list[dict[str, float]], key: str) -> float:
    return statistics.median(one[key] for one in rounds)


def _checked(results: list[StreamResult], tokens: int) -> int:
    if any(not one.is_whole or one.tokens != tokens for one in results):
        bad = next(one for one in results if not one.is_whole or one.tokens != tokens)
        raise SystemExit(f"bench: a stream gave {bad.tokens} of {tokens} tokens; the figures would mean nothing")
    return tokens * len(results)


async def _cost(path: Path, streams: int, script: dict[str, object], tokens: int) -> dict[str, float]:
    """CPU per token of `streams` streams at once; an empty script sends as fast as it can."""
    service_s, gateway_s = path.cpu_s()
    begun_s = time.perf_counter()
    results = await read_streams(path.http_port, streams, script, tokens)
    total = _checked(results, tokens)
    wall_s = time.perf_counter() - begun_s
    service_end_s, gateway_end_s = path.cpu_s()
    return {
        "tokens_per_s": total / wall_s,
        "tokens_per_event": total / sum(one.events for one in results),
        "service_us": (service_end_s - service_s) / total * 1e6,
        "gateway_us": (gateway_end_s - gateway_s) / total * 1e6,
    }


async def _added_ttft(path: Path, streams: int, requests: int) -> dict[str, float]:
    """Time to first token of one request after another, while the other streams get a token each 20 ms.

    The engine gives its first token at once, so that all of it is added by the path.
    """
    others = [await open_stream(path.http_port, {"token_ms": PACED_TOKEN_MS}, 4000) for _ in range(streams - 1)]
    await asyncio.gather(*(began(reader) for reader in others))
    samples: list[float] = []
    try:
        for _ in range(requests):
            (one,) = await read_streams(path.http_port, 1, {}, 1)
            if one.ttft_s is None:
                raise SystemExit("bench: a stream gave no token")
            samples.append(one.ttft_s * 1000)
    finally:
        for reader in others:
            reader.close()
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "requests": len(samples)}


async def _idle(path: Path, streams: int) -> dict[str, Any]:
    """Memory of streams that have begun and wait for their next token."""
    before = path.rss_mb()
    # One after the other: a burst of connects would measure the accept queue.
    readers = [await open_stream(path.http_port, {"token_ms": 600_000}, 2) for _ in range(streams)]
    await asyncio.gather(*(began(reader) for reader in readers))
    after = path.rss_mb()
    for reader in readers:
        reader.close()
    total = round(after["service"] + after["gateway"], 1)
    per_stream = (total - before["service"] - before["gateway"]) * 1000 / streams
    return {"streams": streams, "rss_mb": {**after, "both": total}, "kb_per_stream": round(per_stream, 1)}


def print_table(console: Console, results: dict[str, Any]) -> None:
    """Print the figures."""
    table = Table(title="Through gateway and service, flat out", title_justify="left")
    columns = (
        "streams",
        "tokens/s",
        "tokens",
        "gateway",
        "service",
        "grpc read",
        "write",
        "added TTFT p50",
        "p99",
        "RSS gw",
        "svc",
    )
    for name in columns:
        table.add_column(name, justify="right")
    table.add_row("", "", "per event", "µs/token", "µs/token", "µs", "µs", "ms", "ms", "MB", "MB", end_section=True)
    for row in results["rows"]:
        ttft, rss = row["added_ttft_ms"], row["rss_mb"]
        table.add_row(
            str(row["streams"]),
            f"{row['tokens_per_s']:,}",
            f"{row['tokens_per_event']:.1f}",
            f"{row['gateway_cpu_us_per_token']:.1f}",
            f"{row['service_cpu_us_per_token']:.1f}",
            f"{row['floor']['grpc_read_us']:.1f}",
            f"{row['floor']['grpc_write_us']:.1f}",
            f"{ttft['p50']:.2f}",
            f"{ttft['p99']:.2f}",
            f"{rss['gateway']:.0f}",
            f"{rss['service']:.0f}",
        )
    console.print(table)
    console.print("tokens per event: those that waited for the reader leave together, which a paced engine's do not.")
    console.print("grpc read, write: what a bare grpc.aio client and server cost here, per message")
    paced, idle = results["paced"], results["idle"]
    console.print(
        f"{paced['streams']} streams at a token each {paced['token_ms']} ms: gateway "
        f"{paced['gateway_cpu_us_per_token']:.1f}, service {paced['service_cpu_us_per_token']:.1f} µs/token"
    )
    console.print(
        f"{idle['streams']} idle streams: {idle['rss_mb']['both']:.0f} MB for both processes, "
        f"{idle['kb_per_stream']:.0f} kB a stream"
    )
