"""`make bench`: a table per topic on the terminal, and bench/results/latest.json.

CPU figures are the processes' own user + system time, so that they hold on a
noisy machine; wall-clock figures are to be read as ratios within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from pathlib import Path as FilePath
from typing import Any

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from bench import floor, openai
from bench.load import StreamResult, open_stream, read_streams
from bench.processes import Path, running_path
from bench.triton import section as triton
from bench.triton.servers import running_servers

RESULTS = FilePath(__file__).parent / "results" / "latest.json"
# Streams at once, and tokens of each: long enough that a request's own cost is
# small beside its tokens'.
STREAMS = {1: 4000, 16: 1500, 128: 600}
PACED_STREAMS = 64
PACED_TOKENS = 250
PACED_TOKEN_MS = 20
TTFT_REQUESTS = 300
IDLE_STREAMS = 1000


def main() -> None:
    """Run everything; takes about four minutes."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds per figure; the median is taken")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument(
        "--only", choices=("path", "openai", "triton"), help="one topic; the others keep their last figures"
    )
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    scale = 10 if arguments.quick else 1
    results = json.loads(RESULTS.read_text()) if arguments.only and RESULTS.exists() else {}
    results |= {"machine": _machine(), "rounds": rounds}
    console = Console(width=110)
    if arguments.only in {None, "path"}:
        bare = [floor.measure(streams, tokens // scale) for streams, tokens in STREAMS.items()]
        with running_path() as path:
            results |= uvloop.run(_measure(path, rounds, scale))
        for row, one in zip(results["rows"], bare, strict=True):
            row["floor"] = one
        _print(console, results)
    if arguments.only in {None, "openai"}:
        with running_path() as path:
            results["openai"] = uvloop.run(openai.measure(path, rounds, scale))
        openai.print_table(console, results["openai"])
    if arguments.only in {None, "triton"}:
        with running_servers() as servers:
            results["triton"] = uvloop.run(triton.measure(servers, rounds, scale))
        triton.print_tables(console, results["triton"])
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"Written to {RESULTS.parent.name}/{RESULTS.name}")


async def _measure(path: Path, rounds: int, scale: int) -> dict[str, Any]:
    await _cost(path, 16, {}, 1000 // scale)  # warm-up
    rows = []
    for streams, tokens in STREAMS.items():
        flat = [await _cost(path, streams, {}, tokens // scale) for _ in range(rounds)]
        rows.append(
            {
                "streams": streams,
                "tokens_per_s": round(_median(flat, "tokens_per_s")),
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
    total = _checked(await read_streams(path.http_port, streams, script, tokens), tokens)
    wall_s = time.perf_counter() - begun_s
    service_end_s, gateway_end_s = path.cpu_s()
    return {
        "tokens_per_s": total / wall_s,
        "service_us": (service_end_s - service_s) / total * 1e6,
        "gateway_us": (gateway_end_s - gateway_s) / total * 1e6,
    }


async def _added_ttft(path: Path, streams: int, requests: int) -> dict[str, float]:
    """Time to first token of one request after another, while the other streams get a token each 20 ms.

    The engine gives its first token at once, so that all of it is added by the path.
    """
    others = [await open_stream(path.http_port, {"token_ms": PACED_TOKEN_MS}, 4000) for _ in range(streams - 1)]
    await asyncio.gather(*(reader.first for reader in others))
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
    await asyncio.gather(*(reader.first for reader in readers))
    after = path.rss_mb()
    for reader in readers:
        reader.close()
    total = round(after["service"] + after["gateway"], 1)
    per_stream = (total - before["service"] - before["gateway"]) * 1000 / streams
    return {"streams": streams, "rss_mb": {**after, "both": total}, "kb_per_stream": round(per_stream, 1)}


def _machine() -> dict[str, Any]:
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_mb": round(psutil.virtual_memory().total / 1e6),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _print(console: Console, results: dict[str, Any]) -> None:
    table = Table(title="Through gateway and service, one token per event", title_justify="left")
    columns = (
        "streams",
        "tokens/s",
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
    table.add_row("", "", "µs/token", "µs/token", "µs", "µs", "ms", "ms", "MB", "MB", end_section=True)
    for row in results["rows"]:
        ttft, rss = row["added_ttft_ms"], row["rss_mb"]
        table.add_row(
            str(row["streams"]),
            f"{row['tokens_per_s']:,}",
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


if __name__ == "__main__":
    main()
