"""The scenario: a service with known capacity, phases of load, and the limits that it states."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.arrivals import poisson
from bench.calls import Call, Priority, Wire

__all__ = [
    "BATCH_QUEUE_S",
    "CAPACITY_PER_S",
    "PREFILL_MS",
    "QUEUE_S",
    "SETTINGS",
    "SLOTS",
    "TENANTS",
    "TOKENS",
    "TOKEN_MS",
    "WAITING",
    "WAITING_BATCH",
    "Arrival",
    "Phase",
    "arrivals",
    "phases",
]

SLOTS: Final = 16
PREFILL_MS: Final = 100
TOKEN_MS: Final = 10
TOKENS: Final = 40
# A slot is held from admission to the last token.
CAPACITY_PER_S: Final = SLOTS / ((PREFILL_MS + (TOKENS - 1) * TOKEN_MS) / 1000)

# The bounds of the waiting lines, as an operator states them: for callers who are there, about what they
# would wait for a first token; for batch work, longer.
WAITING: Final = 32
WAITING_BATCH: Final = 32
RESERVED_SLOTS: Final = 2
QUEUE_S: Final = 2.0
BATCH_QUEUE_S: Final = 5.0

SETTINGS: Final[Mapping[str, str]] = {
    "HEADRACE_SIMULATOR_MAX_RUNNING": str(SLOTS),
    "HEADRACE_SIMULATOR_PREFILL_MS": str(PREFILL_MS),
    "HEADRACE_SIMULATOR_TOKEN_MS": str(TOKEN_MS),
    "HEADRACE_MAX_WAITING": str(WAITING),
    "HEADRACE_MAX_WAITING_BATCH": str(WAITING_BATCH),
    "HEADRACE_RESERVED_SLOTS": str(RESERVED_SLOTS),
    "HEADRACE_QUEUE_TIMEOUT_S": str(QUEUE_S),
    "HEADRACE_BATCH_QUEUE_TIMEOUT_S": str(BATCH_QUEUE_S),
    # Thousands of refusals are not worth a line each.
    "HEADRACE_LOG_LEVEL": "error",
    "HEADRACE_GATEWAY_LOG_LEVEL": "error",
}

SEED: Final = 1
BATCH_SHARE: Final = 0.15
# One tenant asks for half of everything.
TENANTS: Final[Mapping[str, float]] = {"greedy": 0.5, "a": 0.5 / 3, "b": 0.5 / 3, "c": 0.5 / 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of time with one load, as a multiple of the capacity; seconds from the beginning."""

    name: str
    begin_s: float
    end_s: float
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A call, when it is made, and in which phase."""

    at_s: float
    phase: str
    call: Call


def phases(*, is_quick: bool) -> tuple[Phase, Phase, Phase]:
    """Return the unloaded, the overloaded and the recovered phase; between them what waits is worked off."""
    calm_s, full_s, after_s = (4.0, 5.0, 3.0) if is_quick else (20.0, 20.0, 10.0)
    full_begin_s = calm_s + 1.0
    after_begin_s = full_begin_s + full_s + BATCH_QUEUE_S + 2.0
    return (
        Phase(name="unloaded", begin_s=0.0, end_s=calm_s, load=0.3),
        Phase(name="overload", begin_s=full_begin_s, end_s=full_begin_s + full_s, load=4.0),
        Phase(name="recovered", begin_s=after_begin_s, end_s=after_begin_s + after_s, load=0.3),
    )


def arrivals(plan: tuple[Phase, ...], seed: int = SEED) -> list[Arrival]:
    """Return every call in order; the same seed gives the same ones."""
    chance = random.Random(seed)  # spreads load, hides nothing
    return [
        Arrival(at_s=at_s, phase=phase.name, call=_call(chance))
        for phase in plan
        for at_s in poisson(phase.load * CAPACITY_PER_S, phase.begin_s, phase.end_s, chance)
    ]


def _call(chance: random.Random) -> Call:
    wires: tuple[Wire, Wire] = ("grpc", "http")
    priority: Priority = "batch" if chance.random() < BATCH_SHARE else "interactive"
    (tenant,) = chance.choices(tuple(TENANTS), tuple(TENANTS.values()))
    return Call(
        wire=chance.choice(wires), prompt="What is it like?", max_tokens=TOKENS, priority=priority, tenant=tenant
    )
