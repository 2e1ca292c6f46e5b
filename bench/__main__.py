"""`make bench`: one table on the terminal, and bench/results/latest.json.

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

from bench.load import StreamResult, open_stream, read_streams
from bench.processes import Path, running_path

RESULTS = FilePath(__file__).parent / "results" / "latest.json"
STREAMS = (1, 16, 128)
# Tokens per measured round, shared by the streams; one token is one event.
ROUND_TOKENS = 24_000
PACED_TOKEN_MS = 20
TTFT_REQUESTS = 256
IDLE_STREAMS = 1000
STREAM_LIMIT = 4096


def main() -> None:
    """Run everything; takes about two minutes."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds per figure; the median is taken")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    scale = 10 if arguments.quick else 1
    with running_path() as path:
        results = uvloop.run(_measure(path, rounds, scale))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    _print(results)


async def _measure(path: Path, rounds: int, scale: int) -> dict[str, Any]:
    await _flat_out(path, 16, ROUND_TOKENS // scale)  # warm-up
    rows = []
    for streams in STREAMS:
        flat = [await _flat_out(path, streams, ROUND_TOKENS // scale) for _ in range(rounds)]
        paced = [await _paced(path, streams, scale) for _ in range(rounds)]
        rows.append(
            {
                "streams": streams,
                "tokens_per_s": round(_median(flat, "tokens_per_s")),
                "gateway_cpu_us_per_token": round(_median(flat, "gateway_us"), 1),
                "service_cpu_us_per_token": round(_median(flat, "service_us"), 1),
                "paced_gateway_cpu_us_per_token": round(_median(paced, "gateway_us"), 1),
                "paced_service_cpu_us_per_token": round(_median(paced, "service_us"), 1),
                "added_ttft_ms": await _added_ttft(path, streams, scale),
                "rss_mb": path.rss_mb(),
            }
        )
    return {
        "machine": _machine(),
        "rounds": rounds,
        "rows": rows,
        "idle": await _idle(path, IDLE_STREAMS // scale),
    }


def _median(rounds: list[dict[str, float]], key: str) -> float:
    return statistics.median(one[key] for one in rounds)


def _checked(results: list[StreamResult], tokens: int) -> int:
    if any(not one.is_whole or one.tokens != tokens for one in results):
        bad = next(one for one in results if not one.is_whole or one.tokens != tokens)
        raise SystemExit(f"bench: a stream gave {bad.tokens} of {tokens} tokens; the figures would mean nothing")
    return tokens * len(results)


async def _cost(path: Path, streams: int, script: dict[str, object], tokens: int, repeats: int) -> dict[str, float]:
    service_s, gateway_s = path.cpu_s()
    begun_s, total = time.perf_counter(), 0
    for _ in range(repeats):
        total += _checked(await read_streams(path.http_port, streams, script, tokens), tokens)
    wall_s = time.perf_counter() - begun_s
    service_end_s, gateway_end_s = path.cpu_s()
    return {
        "tokens_per_s": total / wall_s,
        "service_us": (service_end_s - service_s) / total * 1e6,
        "gateway_us": (gateway_end_s - gateway_s) / total * 1e6,
    }


async def _flat_out(path: Path, streams: int, round_tokens: int) -> dict[str, float]:
    """The engine sends as fast as it can."""
    tokens = min(max(round_tokens // streams, 64), STREAM_LIMIT)
    return await _cost(path, streams, {}, tokens, max(1, round_tokens // (tokens * streams)))


async def _paced(path: Path, streams: int, scale: int) -> dict[str, float]:
    """Every stream gets a token each 20 ms, as a real model gives them."""
    tokens = max(200 // scale, 20)
    return await _cost(path, streams, {"token_ms": PACED_TOKEN_MS}, tokens, 1)


async def _added_ttft(path: Path, streams: int, scale: int) -> dict[str, float]:
    """Time to first token through the whole path; the backend's own is none, so all of it is added."""
    script: dict[str, object] = {"token_ms": PACED_TOKEN_MS, "prefill_ms": 0}
    samples: list[float] = []
    for _ in range(max(3, TTFT_REQUESTS // scale // streams)):
        for one in await read_streams(path.http_port, streams, script, 5):
            if one.ttft_s is None:
                raise SystemExit("bench: a stream gave no token")
            samples.append(one.ttft_s * 1000)
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


def _print(results: dict[str, Any]) -> None:
    table = Table(title="Through gateway and service, one token per event", title_justify="left")
    table.add_column("streams", justify="right")
    for name in ("tokens/s", "gateway µs/token", "service µs/token", "paced gateway", "paced service"):
        table.add_column(name, justify="right")
    table.add_column("added TTFT p50 / p99 ms", justify="right")
    table.add_column("RSS MB gateway / service", justify="right")
    for row in results["rows"]:
        ttft, rss = row["added_ttft_ms"], row["rss_mb"]
        table.add_row(
            str(row["streams"]),
            f"{row['tokens_per_s']:,}",
            f"{row['gateway_cpu_us_per_token']:.1f}",
            f"{row['service_cpu_us_per_token']:.1f}",
            f"{row['paced_gateway_cpu_us_per_token']:.1f}",
            f"{row['paced_service_cpu_us_per_token']:.1f}",
            f"{ttft['p50']:.2f} / {ttft['p99']:.2f}",
            f"{rss['gateway']:.0f} / {rss['service']:.0f}",
        )
    console = Console(width=120)
    console.print(table)
    idle = results["idle"]
    console.print(
        f"{idle['streams']} idle streams: {idle['rss_mb']['both']:.0f} MB for both processes, "
        f"{idle['kb_per_stream']:.0f} kB a stream"
    )
    console.print(
        f"Written to {RESULTS.relative_to(FilePath.cwd()) if RESULTS.is_relative_to(FilePath.cwd()) else RESULTS}"
    )


if __name__ == "__main__":
    main()
