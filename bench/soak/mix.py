"""What the callers of the soak do: most read to the end, some leave, are late, read slowly or not at all. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Final

from bench.calls import Call, Priority, Wire

__all__ = ["CALLS_PER_S", "CAPACITY_PER_S", "EXPECTED", "LOAD", "SETTINGS", "call"]

SLOTS: Final = 16
PREFILL_MS: Final = 50
TOKEN_MS: Final = 5
TOKENS: Final = 20
LOAD: Final = 0.6
CAPACITY_PER_S: Final = SLOTS / ((PREFILL_MS + (TOKENS - 1) * TOKEN_MS) / 1000)
CALLS_PER_S: Final = LOAD * CAPACITY_PER_S

READER_TIMEOUT_S: Final = 2.0
SLOW_S: Final = 0.5
FROZEN_S: Final = 8.0

SETTINGS: Final[Mapping[str, str]] = {
    "HEADRACE_SIMULATOR_MAX_RUNNING": str(SLOTS),
    "HEADRACE_SIMULATOR_PREFILL_MS": str(PREFILL_MS),
    "HEADRACE_SIMULATOR_TOKEN_MS": str(TOKEN_MS),
    "HEADRACE_READER_TIMEOUT_S": str(READER_TIMEOUT_S),
    "HEADRACE_GATEWAY_SEND_TIMEOUT_S": str(READER_TIMEOUT_S),
    "HEADRACE_LOG_LEVEL": "error",
    "HEADRACE_GATEWAY_LOG_LEVEL": "error",
}

PLAIN: Final = "What is it like?"
# More than the kernels and the servers hold for one reader, as fast as can be.
FLOOD: Final = f"simulate: {json.dumps({'prefill_ms': 0, 'token_ms': 0, 'tokens': ['sixty bytes of text ' * 3]})}\n"
FLOOD_TOKENS: Final = 3000
BATCH_SHARE: Final = 0.15
# What a call may come to, over either wire, when everybody does as the mix says. CUT: an answer that its
# reader did not take is ended with the connection.
EXPECTED: Final = frozenset(
    {
        *("completed", "left", "cut", "QUEUE_FULL", "QUEUE_TIMEOUT", "INVALID_FIELD"),
        *("DEADLINE_EXCEEDED", "DEADLINE_TOO_SHORT", "DEADLINE_IN_QUEUE", "DEADLINE_IN_DECODE", "deadline_exceeded"),
        *("CONSUMER_TOO_SLOW", "consumer_too_slow"),
    }
)


def call(chance: random.Random) -> Call:
    """Return the next caller's call."""
    wires: tuple[Wire, Wire] = ("grpc", "http")
    wire = chance.choice(wires)
    priority: Priority = "batch" if chance.random() < BATCH_SHARE else "interactive"
    (make,) = chance.choices(tuple(_KINDS), tuple(_KINDS.values()))
    return make(wire, priority, chance)


def _whole(wire: Wire, priority: Priority, chance: random.Random) -> Call:
    tenant = f"tenant-{chance.randrange(50)}"
    return Call(wire=wire, prompt=PLAIN, max_tokens=TOKENS, priority=priority, tenant=tenant)


def _left(wire: Wire, priority: Priority, chance: random.Random) -> Call:
    leave_s = chance.uniform(0.001, 0.2)
    return Call(wire=wire, prompt=PLAIN, max_tokens=TOKENS, priority=priority, leave_after_s=leave_s)


def _late(wire: Wire, priority: Priority, chance: random.Random) -> Call:
    limit_s = chance.uniform(0.005, 0.2)
    return Call(wire=wire, prompt=PLAIN, max_tokens=TOKENS, priority=priority, timeout_s=limit_s)


def _wrong(wire: Wire, priority: Priority, _: random.Random) -> Call:
    return Call(wire=wire, prompt=PLAIN, max_tokens=TOKENS, priority=priority, top_p=7.0)


def _slow(wire: Wire, priority: Priority, _: random.Random) -> Call:
    return Call(wire=wire, prompt=FLOOD, max_tokens=FLOOD_TOKENS, priority=priority, pause_s=SLOW_S)


def _frozen(wire: Wire, priority: Priority, _: random.Random) -> Call:
    return Call(wire=wire, prompt=FLOOD, max_tokens=FLOOD_TOKENS, priority=priority, pause_s=FROZEN_S)


_KINDS: Final[Mapping[Callable[[Wire, Priority, random.Random], Call], float]] = {
    _whole: 0.67,
    _left: 0.15,
    _late: 0.12,
    _wrong: 0.04,
    _slow: 0.015,
    _frozen: 0.005,
}
