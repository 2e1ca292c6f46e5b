"""What the OpenAI shapes cost: reading a long chat, and a token with and without log-probs and tools."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.load import read_streams
from bench.processes import Path
from gateway.openai.requests import Endpoint, parse

__all__ = ["measure", "print_table"]

STREAMS: Final = 16
TOKENS: Final = 1000
PARSES: Final = 400
MESSAGES: Final = 100
MESSAGE_BYTES: Final = 1000
_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

# What a chat asks for besides its text. The simulator makes words, so that the tool parser looks at each of them.
_VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "text": {},
    "log-probs": {"logprobs": True},
    "20 top log-probs": {"logprobs": True, "top_logprobs": 20},
    "tools": {"tools": [_TOOL]},
}


async def measure(path: Path, rounds: int, scale: int) -> dict[str, Any]:
    """Return the figures; `scale` divides the work."""
    rows = []
    for name, members in _VARIANTS.items():
        tokens = TOKENS // scale // (4 if members.get("top_logprobs") else 1)
        samples = [await _cost(path, members, tokens) for _ in range(rounds)]
        gateway_us, service_us = (statistics.median(sample[at] for sample in samples) for at in (0, 1))
        rows.append({"asked_for": name, "gateway_cpu_us_per_token": gateway_us, "service_cpu_us_per_token": service_us})
    return {"parse_ms": parse_ms(PARSES // scale), "streams": STREAMS, "rows": rows}


def parse_ms(times: int) -> float:
    """Return the median milliseconds to check and translate a chat of 100 messages and 100 kB."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": "word " * (MESSAGE_BYTES // 5)} for at in range(MESSAGES)]
    body = json.dumps({"model": "default", "messages": messages, "stream": True, "temperature": 0.5}).encode()
    taken = []
    for _ in range(times):
        begun_s = time.perf_counter()
        parse(Endpoint.CHAT, body)
        taken.append(time.perf_counter() - begun_s)
    return round(statistics.median(taken) * 1000, 3)


async def _cost(path: Path, members: dict[str, Any], tokens: int) -> tuple[float, float]:
    before = path.cpu_s()
    results = await read_streams(path.http_port, STREAMS, {}, tokens, members)
    if any(not one.is_whole for one in results):
        raise SystemExit("bench: a stream was cut; the figures would mean nothing")
    total = STREAMS * tokens
    service_us, gateway_us = ((end - begin) / total * 1e6 for begin, end in zip(before, path.cpu_s(), strict=True))
    return round(gateway_us, 1), round(service_us, 1)


def print_table(console: Console, results: dict[str, Any]) -> None:
    """Print the figures."""
    table = Table(title=f"OpenAI shapes, {results['streams']} streams flat out", title_justify="left")
    for name in ("asked for", "gateway", "service"):
        table.add_column(name, justify="left" if name == "asked for" else "right")
    table.add_row("", "µs/token", "µs/token", end_section=True)
    for row in results["rows"]:
        table.add_row(
            row["asked_for"], f"{row['gateway_cpu_us_per_token']:.1f}", f"{row['service_cpu_us_per_token']:.1f}"
        )
    console.print(table)
    console.print(f"a chat of {MESSAGES} messages and 100 kB is checked and translated in {results['parse_ms']} ms")
