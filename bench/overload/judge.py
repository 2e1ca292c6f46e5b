"""The figures of one recording, and which of them are as promised. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from bench.calls import COMPLETED, QUEUE_FULL, QUEUE_TIMEOUT, Priority, Wire
from bench.lines import Line, at_most, figure, holds, quantiles
from bench.memory import trend
from bench.overload.plan import BATCH_QUEUE_S, CAPACITY_PER_S, QUEUE_S, TENANTS, Phase
from bench.overload.run import Answered, Recording

__all__ = ["TTFT_FACTOR", "judge", "unloaded_ttft_ms"]

WIRES: Final[tuple[Wire, Wire]] = ("grpc", "http")
NAMES: Final = {"grpc": "gRPC", "http": "HTTP"}

TTFT_FACTOR: Final = 1.5
REJECT_MS: Final = 50.0
HEALTH_MS: Final = 100.0
BATCH_WINDOW_S: Final = 5.0
# Beyond the noise of two allocators: of 16 slots and 64 waiting requests nothing else may grow.
RSS_GROWTH_KIB: Final = 1024.0


def unloaded_ttft_ms(recording: Recording, wire: Wire) -> float:
    """Return the median time to first token of interactive calls in the first phase."""
    calm = _of(recording.answered, phase="unloaded", wire=wire, priority="interactive")
    return quantiles(_ttft_ms(calm)).p50


def judge(recording: Recording) -> list[Line]:
    """Return all figures, the promised ones first."""
    return [
        *_first_tokens(recording),
        *_refusals(recording),
        _batch(recording),
        *_memory(recording),
        *_health(recording),
        *_ends(recording),
        *_setting(recording),
    ]


def _first_tokens(recording: Recording) -> Iterable[Line]:
    for wire in WIRES:
        median_ms = unloaded_ttft_ms(recording, wire)
        yield figure(f"TTFT unloaded, {NAMES[wire]}, median", f"{median_ms:.1f} ms")
        full = _of(recording.answered, phase="overload", wire=wire, priority="interactive")
        found = quantiles(_ttft_ms(full))
        yield at_most(
            f"TTFT of accepted interactive, {NAMES[wire]}, the largest",
            found.max,
            TTFT_FACTOR * median_ms + QUEUE_S * 1000,
            "ms",
            more=f"p50 {found.p50:,.0f}, p95 {found.p95:,.0f}, p99 {found.p99:,.0f}; {found.count} calls",
        )
    for wire in WIRES:
        after = _of(recording.answered, phase="recovered", wire=wire, priority="interactive")
        found = quantiles(_ttft_ms(after))
        yield figure(f"TTFT recovered, {NAMES[wire]}, median", f"{found.p50:.1f} ms")


def _refusals(recording: Recording) -> Iterable[Line]:
    for wire in WIRES:
        full = _of(recording.answered, outcome=QUEUE_FULL, wire=wire)
        yield _refusal(f"Refused for want of room, {NAMES[wire]}, p99", [one.answer.total_s for one in full])
    for wire in WIRES:
        late = _of(recording.answered, outcome=QUEUE_TIMEOUT, wire=wire)
        late_s = [one.answer.total_s - _bound_s(one) for one in late]
        yield _refusal(f"Refused after the bound, {NAMES[wire]}, p99 late", late_s)


def _refusal(what: str, samples_s: list[float]) -> Line:
    found = quantiles([sample_s * 1000 for sample_s in samples_s])
    if not found.count:
        return figure(what, "none seen")
    more = f"p50 {found.p50:.1f}, largest {found.max:.1f}; {found.count} calls"
    return at_most(what, found.p99, REJECT_MS, "ms", more=more)


def _bound_s(one: Answered) -> float:
    return BATCH_QUEUE_S if one.arrival.call.priority == "batch" else QUEUE_S


def _batch(recording: Recording) -> Line:
    full = _phase(recording, "overload")
    done = _of(recording.answered, phase="overload", priority="batch", outcome=COMPLETED)
    ends_s = [one.sent_s + one.answer.total_s for one in done]
    windows = max(1, int((full.end_s - full.begin_s) // BATCH_WINDOW_S))
    counts = [0] * windows
    for end_s in ends_s:
        number = int((end_s - full.begin_s) // BATCH_WINDOW_S)
        if 0 <= number < windows:
            counts[number] += 1
    rate = sum(counts) / (windows * BATCH_WINDOW_S)
    return holds(
        f"Batch completed in the worst {BATCH_WINDOW_S:.0f} s of the overload",
        f"{min(counts)} ({rate:.1f} per second over all)",
        "more than 0",
        is_kept=min(counts) > 0,
    )


def _memory(recording: Recording) -> Iterable[Line]:
    full = _phase(recording, "overload")
    middle_s = (full.begin_s + full.end_s) / 2
    late = [one for one in recording.rss if middle_s <= one.at_s <= full.end_s]
    for name, levels in (
        ("service", [one.service_kib for one in late]),
        ("gateway", [one.gateway_kib for one in late]),
    ):
        line = trend([(one.at_s, level) for one, level in zip(late, levels, strict=True)])
        growth_kib = line.slope * (full.end_s - middle_s) / 60
        yield at_most(
            f"RSS of the {name}, growth in the second half of the overload",
            growth_kib,
            RSS_GROWTH_KIB,
            "KiB",
            more=f"{levels[0] / 1024:.1f} to {levels[-1] / 1024:.1f} MiB",
        )


def _health(recording: Recording) -> Iterable[Line]:
    full = _phase(recording, "overload")
    for wire, name in (("grpc", "grpc.health.v1"), ("http", "/readyz")):
        asked = [one for one in recording.probes if one.kind == wire and full.begin_s <= one.at_s <= full.end_s]
        found = quantiles([one.took_s * 1000 for one in asked])
        more = f"p50 {found.p50:.1f}, largest {found.max:.1f}; {found.count} probes"
        yield at_most(f"Health during the overload, {name}, p99", found.p99, HEALTH_MS, "ms", more=more)
    bad = sum(not one.is_good for one in recording.probes)
    yield holds("Health answers other than that it serves", str(bad), "0", is_kept=bad == 0)


def _ends(recording: Recording) -> Iterable[Line]:
    outcomes = Counter(one.answer.outcome for one in recording.answered)
    odd = {name: count for name, count in outcomes.items() if name not in {COMPLETED, QUEUE_FULL, QUEUE_TIMEOUT}}
    lost = recording.planned - len(recording.answered)
    yield holds(
        "Calls that ended otherwise, or not at all",
        f"{sum(odd.values()) + lost}" + (f" ({_counts(odd)})" if odd else ""),
        "0",
        is_kept=not odd and not lost,
    )
    _, load = recording.loads[-1]
    left = f"{load.running} slots, {load.waiting + load.waiting_batch} waiting, {load.active} generations"
    yield holds("Left when all callers have their answer", left, "nothing", is_kept=load.is_none)
    for priority in ("interactive", "batch"):
        full = _of(recording.answered, phase="overload", priority=priority)
        counts = Counter(one.answer.outcome for one in full)
        yield figure(f"Outcomes of the overload, {priority}", _counts(counts))
    done = Counter(
        one.arrival.call.tenant
        for one in _of(recording.answered, phase="overload", priority="interactive", outcome=COMPLETED)
    )
    shares = ", ".join(f"{name} {done[name]} (asked for {share:.0%})" for name, share in TENANTS.items())
    yield figure("Interactive calls completed, by tenant", shares)


def _setting(recording: Recording) -> Iterable[Line]:
    full = _phase(recording, "overload")
    calls = sum(one.arrival.phase == full.name for one in recording.answered)
    per_s = calls / (full.end_s - full.begin_s)
    yield figure("Load", f"{per_s:.0f} calls per second on a capacity of {CAPACITY_PER_S:.1f}")
    lag = quantiles([lag_s * 1000 for lag_s in recording.lags_s])
    shares = ", ".join(f"{name} {share:.2f}" for name, share in recording.cpu_share.items())
    yield figure("Cores in use", shares)
    yield figure("Callers' own lateness", f"p50 {lag.p50:.1f}, p99 {lag.p99:.1f}, largest {lag.max:.1f} ms")


def _of(
    answered: Iterable[Answered],
    *,
    phase: str | None = None,
    wire: Wire | None = None,
    priority: Priority | None = None,
    outcome: str | None = None,
) -> list[Answered]:
    return [
        one
        for one in answered
        if (phase is None or one.arrival.phase == phase)
        and (wire is None or one.arrival.call.wire == wire)
        and (priority is None or one.arrival.call.priority == priority)
        and (outcome is None or one.answer.outcome == outcome)
    ]


def _ttft_ms(answered: Iterable[Answered]) -> list[float]:
    return [one.answer.ttft_s * 1000 for one in answered if one.answer.ttft_s is not None]


def _phase(recording: Recording, name: str) -> Phase:
    return next(phase for phase in recording.plan if phase.name == name)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1])) or "none"
