"""The Triton section of the bench: what is measured, and its two tables."""

from __future__ import annotations

import statistics
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.triton.cancels import measure_cancels
from bench.triton.load import Load, run_streams, wait_until_served
from bench.triton.servers import CONTRACTS, FAKE, GRPCIO, REAL, Servers
from headrace import AsyncClient

__all__ = ["measure", "print_tables"]

# Streams at once, and tokens of each. The real Triton is ten times slower than the fake one.
FAKE_STREAMS: Final = {1: 8000, 16: 1500, 64: 400}
REAL_STREAMS: Final = {1: 1000, 16: 300, 64: 75}
PACED_STREAMS: Final = 64
PACED_TOKENS: Final = 100
PACED_TOKEN_MS: Final = 20
CANCELS: Final = 48
_NAMES: Final = {FAKE: "fake", REAL: "real"}
# Each token is a word of its own, and none ends within a character.
FLAT_OUT: Final = "token_ms=0 text=word%20"


async def measure(servers: Servers, rounds: int, scale: int) -> dict[str, Any]:
    """Measure everything; medians of `rounds`, with a `scale`-th of the tokens."""
    plans = [(FAKE, 0, streams, tokens) for streams, tokens in FAKE_STREAMS.items()]
    plans.append((FAKE, PACED_TOKEN_MS, PACED_STREAMS, PACED_TOKENS))
    if servers.reason is None:
        plans += [(REAL, 0, streams, tokens) for streams, tokens in REAL_STREAMS.items()]
    rows, cancels = [], {}
    async with AsyncClient(servers.target, transport="asyncio") as client:
        for model in (FAKE, *(() if servers.reason else CONTRACTS)):
            await wait_until_served(client, model)
        await _costs(servers, client, FAKE, 0, 16, 500 // scale, 1)  # warm-up
        for model, token_ms, streams, tokens in plans:
            costs = await _costs(servers, client, model, token_ms, streams, max(2, tokens // scale), rounds)
            rows.append({"triton": _NAMES[model], "token_ms": token_ms, "streams": streams, **costs})
        for contract in () if servers.reason else CONTRACTS:
            cancels[contract] = await measure_cancels(client, contract, servers.event_log, max(8, CANCELS // scale))
    real = {"contract": REAL} if servers.reason is None else {"skipped": servers.reason}
    return {"rows": rows, "real": real, "cancels": cancels}


async def _costs(
    servers: Servers, client: AsyncClient, model: str, token_ms: int, streams: int, tokens: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Return the figures of both transports, whose rounds take turns."""
    prompt = FLAT_OUT if not token_ms else f"token_ms={token_ms}"
    found: dict[str, list[tuple[float, Load]]] = {"asyncio": [], "grpcio": []}
    for _ in range(rounds):
        for transport, name in (("asyncio", model), ("grpcio", model + GRPCIO)):
            begun_s = servers.cpu_s()
            load = await run_streams(client, name, prompt, streams, tokens)
            found[transport].append(((servers.cpu_s() - begun_s) / load.tokens * 1e6, load))
    return {
        transport: {
            "service_cpu_us_per_token": round(statistics.median(us for us, _ in rounds_of), 1),
            "tokens_per_s": round(statistics.median(load.tokens / load.wall_s for _, load in rounds_of)),
            "tokens_per_event": round(statistics.median(load.tokens / load.events for _, load in rounds_of), 1),
        }
        for transport, rounds_of in found.items()
    }


def print_tables(console: Console, results: dict[str, Any]) -> None:
    """Print what `measure` returned."""
    table = Table(title="The service in front of Triton, its own CPU", title_justify="left")
    for name in ("Triton", "streams", "pace", "asyncio", "grpcio", "tokens", "grpcio", "tokens", "grpcio"):
        table.add_column(name, justify="right" if name != "Triton" else "left")
    table.add_row("", "", "", "µs/token", "µs/token", "per event", "", "per s", "", end_section=True)
    for row in results["rows"]:
        lean, grpcio = row["asyncio"], row["grpcio"]
        table.add_row(
            row["triton"],
            str(row["streams"]),
            f"{row['token_ms']} ms" if row["token_ms"] else "flat out",
            f"{lean['service_cpu_us_per_token']:.1f}",
            f"{grpcio['service_cpu_us_per_token']:.1f}",
            f"{lean['tokens_per_event']:.1f}",
            f"{grpcio['tokens_per_event']:.1f}",
            f"{lean['tokens_per_s']:,}",
            f"{grpcio['tokens_per_s']:,}",
        )
    console.print(table)
    console.print("fake: a peer in Python that only sends; real: Triton with a scripted engine, on the same cores.")
    console.print("tokens per event: those that had arrived together leave together.")
    if "skipped" in results["real"]:
        console.print(f"No real Triton: {results['real']['skipped']}")
        return
    console.print(_cancel_table(results["cancels"]))
    console.print("ran on: to its own end, 300 tokens; nothing reaches an engine whose BLS model gives it another id")


def _cancel_table(cancels: dict[str, Any]) -> Table:
    table = Table(title="From the client's cancel to the engine's end, a token each 10 ms", title_justify="left")
    table.add_column("contract")
    for name in ("cancels", "p50", "p99", "wasted p50", "most", "ran on"):
        table.add_column(name, justify="right")
    table.add_row("", "", "ms", "ms", "tokens", "tokens", "", end_section=True)
    for contract, one in cancels.items():
        stop, wasted = one["stop_ms"], one["wasted_tokens"]
        table.add_row(
            contract,
            str(one["cancels"]),
            f"{stop['p50']:,.1f}",
            f"{stop['p99']:,.1f}",
            f"{wasted['p50']:.0f}",
            str(wasted["most"]),
            str(one["ran_on"]),
        )
    return table
