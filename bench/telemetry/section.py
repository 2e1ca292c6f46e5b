"""The telemetry section of the bench: the same load over servers with and without telemetry, in turns."""

from __future__ import annotations

import asyncio
import math
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

import uvloop

from bench.lines import Line, figure
from bench.load import read_streams
from bench.options import Options
from bench.processes import Path, free_ports, running_path

__all__ = ["Way", "judge", "measure"]

# A request of 100 tokens as fast as they come: where tokens are cheapest, what a request costs weighs most.
STREAMS: Final = 64
TOKENS: Final = 100
BATCHES: Final = 6
# Two processes of the same program differ by some percent for as long as they live, by where their memory lies: each
# way is started anew several times, and what is told of it is how much those differ.
STARTS: Final = 3  # for each round that is asked for
ROUNDS: Final = 2
PROMISED: Final = 1.05
NOISE: Final = 2.0
# Standard error above which a ratio says nothing of five percent.
RESOLVED: Final = 0.02


class Way(Enum):
    """What is recorded, and where it goes."""

    OFF = "off"
    METRICS = "metrics port, read once a round"
    SAMPLED = "metrics port, and OTLP with 10 % of the traces"
    ALL = "metrics port, and OTLP with all traces"
    GONE = "as with 10 %, and the collector is gone"


@dataclass(frozen=True, slots=True)
class Cost:
    """One way: CPU ms per request, gateway and service together."""

    of_tokens_ms: float
    of_one_token_ms: float


def measure(options: Options) -> list[Line]:
    """Return the figures. About seven minutes."""
    return list(judge(_lives(tuple(Way), 1 if options.is_quick else options.rounds * STARTS, options.scale)))


def _lives(ways: Sequence[Way], starts: int, scale: int) -> Mapping[Way, Sequence[Cost]]:
    """Return what each way cost in each of `starts` lives of its processes."""
    found: dict[Way, list[Cost]] = {way: [] for way in ways}
    with _sink() as sink:
        for _ in range(starts):
            with ExitStack() as stack:
                paths = {way: stack.enter_context(running_path(_settings(way, sink))) for way in ways}
                for way, rounds in uvloop.run(_rounds(paths, ROUNDS, scale)).items():
                    found[way].append(_mean(rounds))
    return found


def _mean(rounds: Sequence[Cost]) -> Cost:
    return Cost(
        statistics.mean(cost.of_tokens_ms for cost in rounds), statistics.mean(cost.of_one_token_ms for cost in rounds)
    )


def judge(costs: Mapping[Way, Sequence[Cost]]) -> Iterable[Line]:
    """Return what each way costs, as a ratio to what was measured beside it without, and whether that is promised."""
    cases: tuple[tuple[str, Callable[[Cost], float], bool], ...] = (
        (f"a request of {TOKENS} tokens", lambda cost: cost.of_tokens_ms, True),
        ("a request of one token", lambda cost: cost.of_one_token_ms, False),
    )
    for name, read, is_promised in cases:
        off = [read(cost) for cost in costs[Way.OFF]]
        yield figure(f"{name}, telemetry {Way.OFF.value}", f"{statistics.median(off):.2f} ms CPU")
        for way in Way:
            if way is Way.OFF:
                continue
            ratios = [read(own) / base for own, base in zip(costs[way], off, strict=True)]
            ratio, error = statistics.median(ratios), _error(ratios)
            more_us = 1000 * (ratio - 1) * statistics.median(off)
            measured = f"{ratio:.3f} ± {error:.3f} times ({more_us:+.0f} µs)"
            if is_promised and way in (Way.SAMPLED, Way.GONE):
                is_kept = _is_kept(ratio, error)
                told = measured + ("; too noisy to tell" if is_kept is None else "")
                yield Line(f"  {way.value}", told, f"at most {PROMISED:.2f} times", is_kept)
            else:
                yield figure(f"  {way.value}", measured)


def _is_kept(ratio: float, error: float) -> bool | None:
    if ratio - NOISE * error > PROMISED:
        return False
    return True if error <= RESOLVED else None


def _error(ratios: Sequence[float]) -> float:
    return statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0


async def _rounds(paths: Mapping[Way, Path], rounds: int, scale: int) -> Mapping[Way, list[Cost]]:
    costs: dict[Way, list[Cost]] = {way: [] for way in paths}
    for way in paths:
        await _play(way, paths[way], 1, 1)  # warm-up
    for number in range(rounds):
        # Forth and back: who comes first must not always be the same.
        for way in list(paths) if number % 2 else list(paths)[::-1]:
            costs[way].append(await _play(way, paths[way], max(1, BATCHES // scale), 1))
    return costs


async def _play(way: Way, path: Path, batches: int, short_batches: int) -> Cost:
    begun_s = sum(path.cpu_s())
    for _ in range(batches):
        await read_streams(path.http_port, STREAMS, {}, TOKENS)
    if way is not Way.OFF:
        await asyncio.to_thread(_scrape, path)
    between_s = sum(path.cpu_s())
    for _ in range(short_batches * 4):
        await read_streams(path.http_port, STREAMS, {}, 1)
    ended_s = sum(path.cpu_s())
    return Cost(
        1000 * (between_s - begun_s) / (batches * STREAMS),
        1000 * (ended_s - between_s) / (short_batches * 4 * STREAMS),
    )


def _scrape(path: Path) -> None:
    for port in path.metrics_ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            page.read()


def _settings(way: Way, sink: str) -> dict[str, str]:
    if way is Way.OFF:
        return {}
    ports = free_ports(2)
    found = {"HEADRACE_METRICS_PORT": str(ports[0]), "HEADRACE_GATEWAY_METRICS_PORT": str(ports[1])}
    if way is Way.METRICS:
        return found
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    return found | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": gone if way is Way.GONE else sink,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "1.0" if way is Way.ALL else "0.1",
        "OTEL_METRIC_EXPORT_INTERVAL": "10000",
    }


@contextmanager
def _sink() -> Iterator[str]:
    """Run a collector for the length of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.telemetry.sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.stdin.close()
        process.wait(10)
