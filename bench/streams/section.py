"""The streams section of the bench."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bench.calls import Wire
from bench.lines import Line, at_most, figure, holds
from bench.options import Options
from bench.sockets import raise_file_limit
from bench.streams.cases import cases
from bench.streams.run import Seen, measure_case

__all__ = ["measure"]

FROZEN_KIB: Final = 64.0
# Connections between gateway and service, and whatever a runtime opens once.
FILES: Final = 16


def measure(options: Options) -> list[Line]:
    """Return the figures of all cases. About ten minutes: most of it is waiting for servers to lose patience."""
    limit = raise_file_limit()
    lines: list[Line] = []
    idle: dict[Wire, Seen] = {}
    connection_kib = 0.0
    for case in cases(is_quick=options.is_quick, file_limit=limit):
        seen = measure_case(case)
        shared = idle.setdefault(case.wire, seen)  # idle ones are first
        if case.has_connection and not case.is_frozen:
            connection_kib = kib_per_stream(seen)["service"] - kib_per_stream(shared)["service"]
        lines += judge(seen, shared, connection_kib if case.has_connection else 0.0)
    return lines


def kib_per_stream(seen: Seen) -> dict[str, float]:
    """Return what a stream costs each process that it passes."""
    streams, before, height = seen.case.streams, seen.before, seen.height
    service = (height.service_kib - before.service_kib) / streams
    gateway = (height.gateway_kib - before.gateway_kib) / streams
    return {"service": service} if seen.case.wire == "grpc" else {"service": service, "gateway": gateway}


def judge(seen: Seen, idle: Seen, connection_kib: float = 0.0) -> Iterable[Line]:
    """Return the figures of one case; `idle` is the one in which nothing happens.

    connection_kib: what the service keeps for a connection, where each stream has its own; it is no part of the stream.
    """
    case, before, height, after = seen.case, seen.before, seen.height, seen.after
    yield figure(f"{case.streams:,} streams: {case.name}", f"begun in {seen.opened_s:.1f} s")
    per_stream, nothing = kib_per_stream(seen), kib_per_stream(idle)
    for name, kib in per_stream.items():
        what, own_kib = f"  RSS per stream, {name}", kib - connection_kib
        more = f"{own_kib - nothing[name]:.1f} more than an idle one"
        if connection_kib:
            yield figure("  RSS per stream and connection, service", f"{kib:.1f} KiB")
            yield figure("  of which the connection", f"{connection_kib:.1f} KiB")
        yield (
            at_most(what, own_kib, FROZEN_KIB, "KiB", more=more)
            if case.is_frozen
            else figure(what, f"{own_kib:.1f} KiB")
        )
    if len(per_stream) > 1:
        yield figure("  RSS per stream, both", f"{sum(per_stream.values()):.1f} KiB")
    is_whole = seen.running == case.streams
    when = "when 95 % of that was there" if case.is_frozen else "at most"
    yield holds(f"  slots in use {when}", f"{seen.running:,}", f"{case.streams:,}", is_kept=is_whole)
    if case.is_frozen:
        freed = "not freed" if seen.freed_s is None else f"after {seen.freed_s:.1f} s"
        limit = f"patience of {case.timeout_s:.0f} s, and what follows"
        yield holds(
            "  all freed, no reader having left, from the first tokens on",
            freed,
            limit,
            is_kept=seen.freed_s is not None,
        )
    closed = "never" if seen.closed_s is None else f"after {seen.closed_s:.1f} s"
    yield holds("  all slots free, readers gone", closed, "within a minute", is_kept=seen.closed_s is not None)
    files = [now - then for now, then in zip(seen.files_after, seen.files_before, strict=True)]
    yield holds(
        "  open files more than before, service and gateway",
        f"{files[0]} and {files[1]}",
        f"at most {FILES}",
        is_kept=max(files) <= FILES,
    )
    yield figure(
        "  RSS before, at its height and afterwards, service",
        f"{before.service_kib / 1024:.1f}, {height.service_kib / 1024:.1f}, {after.service_kib / 1024:.1f} MiB",
    )
    if case.wire == "http":
        yield figure(
            "  the same, gateway",
            f"{before.gateway_kib / 1024:.1f}, {height.gateway_kib / 1024:.1f}, {after.gateway_kib / 1024:.1f} MiB",
        )
