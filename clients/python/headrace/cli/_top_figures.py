"""What `headrace top` knows: names of metrics, and how their values become the figures of a model. Pure.

The names are those of docs/observability.md; a test holds them to the service's own table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.cli._rates import Counts, Histogram, Key

__all__ = [
    "ACTIVE",
    "CLASSES",
    "HTTP_ACTIVE",
    "LATENCIES",
    "LEDGER_LOST",
    "LIMITS_SHARED",
    "ClassLoad",
    "Ends",
    "Figures",
    "GatewayFigures",
    "Load",
    "ends_of",
    "figures_of",
    "gateway_figures_of",
    "loads_of",
]

CLASSES: Final = ("interactive", "batch")
# Histograms in seconds, by what they are called here.
LATENCIES: Final = {
    "ttft": "gen_ai_server_time_to_first_token_seconds",
    "queue": "headrace_server_queue_duration_seconds",
    "prefill": "headrace_server_prefill_duration_seconds",
    "tpot": "gen_ai_server_time_per_output_token_seconds",
    "max_gap": "headrace_server_stream_max_gap_seconds",
    "reader_lag": "headrace_server_reader_lag_seconds",
}
ACTIVE: Final = "headrace_server_requests_active"
HTTP_ACTIVE: Final = "http_server_active_requests"
LEDGER_LOST: Final = "headrace_server_ledger_lost_total"
LIMITS_SHARED: Final = "headrace_server_limits_shared"
_READY: Final = "headrace_server_model_ready"
_RUNNING: Final = "headrace_server_slots_used"
_SLOTS: Final = "headrace_server_slots_limit"
_WAITING: Final = "headrace_server_queue_size"
_OLDEST: Final = "headrace_server_queue_age_seconds"
_ENDS: Final = "headrace_server_generations_total"
_CANCELLED: Final = "headrace_server_cancelled_total"
_OUTPUT: Final = "headrace_server_output_tokens_total"
_INPUT: Final = "headrace_server_input_tokens_total"
_WASTED: Final = "headrace_server_wasted_tokens_total"
_SLO: Final = "headrace_slo_evaluations_total"
_HTTP: Final = "http_server_request_duration_seconds"
_FIRST_CHUNK: Final = "gen_ai_client_operation_time_to_first_chunk_seconds"
_LEFT: Final = "headrace_gateway_disconnects_total"

_MODEL: Final = "gen_ai_request_model"
_CLASS: Final = "headrace_priority"
_PROBES: Final = frozenset({"/healthz", "/readyz"})
_NAMES: Final = {metric: name for name, metric in LATENCIES.items()}


@dataclass(slots=True)
class ClassLoad:
    """What one class of a model does now: slots in use and those it may use, requests that wait, the oldest's age."""

    running: int = 0
    slots: int = 0
    waiting: int = 0
    oldest_wait_s: float = 0.0


@dataclass(slots=True)
class Load:
    """What a model does now, on all replicas that answer; ready on so many of so many."""

    ready: int = 0
    replicas: int = 0
    provider: str = ""
    classes: dict[str, ClassLoad] = field(default_factory=lambda: {name: ClassLoad() for name in CLASSES})

    @property
    def running(self) -> int:
        """Slots in use."""
        return sum(load.running for load in self.classes.values())

    @property
    def slots(self) -> int:
        """All slots: those of batch are among those of interactive."""
        return max(load.slots for load in self.classes.values())

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return sum(load.waiting for load in self.classes.values())

    @property
    def oldest_wait_s(self) -> float:
        """How long the one has waited that waits longest; 0 where nobody waits."""
        return max(load.oldest_wait_s for load in self.classes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Generations by how they ended; of those that failed and were refused, why."""

    completed: float = 0.0
    cancelled: float = 0.0
    failed: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """All of them."""
        return self.completed + self.cancelled + sum(self.failed.values()) + sum(self.refused.values())


@dataclass(slots=True)
class Figures:
    """What a model did in some time. Counts may be fractions, where a time was cut.

    `outcomes` are by outcome and reason, `cancelled` by cause and phase, `met` how
    many met an objective and how many were held against it, `latency` by class and by
    the name of `LATENCIES`.
    """

    outcomes: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    cancelled: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    met: dict[str, tuple[float, float]] = field(default_factory=dict)
    output_tokens: float = 0.0
    input_tokens: float = 0.0
    wasted_tokens: float = 0.0
    latency: dict[str, dict[str, Histogram]] = field(default_factory=dict)

    def histogram(self, priority: str, name: str) -> Histogram:
        """Return a histogram of a class; an empty one where there is none."""
        return self.latency.get(priority, {}).get(name) or Histogram()


@dataclass(slots=True)
class GatewayFigures:
    """What gateways did in some time: answers by status without those to probes, and clients who left, by when."""

    statuses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    left: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    first_chunk: Histogram = field(default_factory=Histogram)


class _Buckets:
    """Collects the samples of histograms, of any owner."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, ...], dict[tuple[tuple[str, str], ...], tuple[dict[float, float], list[float]]]]
        self._parts = defaultdict(dict)

    def add(self, owner: tuple[str, ...], kind: str, key: Key, count: float) -> None:
        labels = tuple(item for item in key[1] if item[0] != "le")
        counts, sums = self._parts[owner].setdefault(labels, ({}, []))
        if kind == "bucket":
            counts[float(dict(key[1]).get("le", "nan"))] = count
        elif kind == "sum":
            sums.append(count)

    def histograms(self) -> Iterable[tuple[tuple[str, ...], Histogram]]:
        for owner, parts in self._parts.items():
            yield owner, Histogram.merged((counts, math.fsum(sums)) for counts, sums in parts.values())


def figures_of(counts: Counts) -> dict[str, Figures]:
    """Return the figures of each model of which there is a count."""
    found: dict[str, Figures] = defaultdict(Figures)
    met: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    buckets = _Buckets()
    for key, count in counts.items():
        name, labels = key[0], dict(key[1])
        model = labels.get(_MODEL)
        if model is None:
            continue
        metric, _, kind = name.rpartition("_")
        if (latency := _NAMES.get(metric)) is not None:
            buckets.add((model, labels.get(_CLASS, ""), latency), kind, key, count)
        elif name == _ENDS:
            outcome = labels.get("headrace_stream_outcome", ""), labels.get("headrace_error_reason", "")
            found[model].outcomes[outcome] += count
        elif name == _CANCELLED:
            how = labels.get("headrace_cancel_cause", ""), labels.get("headrace_cancel_phase", "")
            found[model].cancelled[how] += count
        elif name == _OUTPUT:
            found[model].output_tokens += count
        elif name == _INPUT:
            found[model].input_tokens += count
        elif name == _WASTED:
            found[model].wasted_tokens += count
        elif name == _SLO:
            pair = met[model, labels.get("headrace_slo_name", "")]
            pair[0] += count if labels.get("headrace_slo_met") == "true" else 0.0
            pair[1] += count
    for (model, objective), (good, of) in met.items():
        found[model].met[objective] = good, of
    for (model, priority, latency), histogram in buckets.histograms():
        found[model].latency.setdefault(priority, {})[latency] = histogram
    return dict(found)


def ends_of(figures: Figures) -> Ends:
    """Return the ends of a model's generations in four kinds; what has no reason is called by its outcome."""
    completed = cancelled = 0.0
    failed: dict[str, float] = defaultdict(float)
    refused: dict[str, float] = defaultdict(float)
    for (outcome, reason), count in figures.outcomes.items():
        if outcome == "completed":
            completed += count
        elif outcome in {"cancelled", "client_cancelled"}:
            cancelled += count
        elif outcome == "rejected":
            refused[reason or outcome] += count
        else:
            failed[reason or outcome] += count
    return Ends(completed=completed, cancelled=cancelled, failed=_some(failed), refused=_some(refused))


def _some(counts: Mapping[str, float]) -> dict[str, float]:
    """Return those that are there, the most first."""
    return dict(sorted(((name, n) for name, n in counts.items() if n > 0), key=lambda item: (-item[1], item[0])))


def loads_of(pages: Iterable[Mapping[Key, float]]) -> dict[str, Load]:
    """Return what each model does now, summed over the gauges of several replicas."""
    found: dict[str, Load] = defaultdict(Load)
    for gauges in pages:
        for (name, pairs), value in gauges.items():
            labels = dict(pairs)
            model = labels.get(_MODEL)
            if model is None:
                continue
            if name == _READY:
                load = found[model]
                load.ready += value > 0
                load.replicas += 1
                load.provider = load.provider or labels.get("gen_ai_provider_name", "")
            elif name in {_RUNNING, _SLOTS, _WAITING, _OLDEST}:
                of_class = found[model].classes.setdefault(labels.get(_CLASS, ""), ClassLoad())
                if name == _RUNNING:
                    of_class.running += round(value)
                elif name == _SLOTS:
                    of_class.slots += round(value)
                elif name == _WAITING:
                    of_class.waiting += round(value)
                else:
                    of_class.oldest_wait_s = max(of_class.oldest_wait_s, value)
    return dict(found)


def gateway_figures_of(counts: Counts) -> GatewayFigures | None:
    """Return the figures of gateways; None where no page is of one."""
    found, buckets, is_there = GatewayFigures(), _Buckets(), False
    for key, count in counts.items():
        name, labels = key[0], dict(key[1])
        if name == f"{_HTTP}_count":
            is_there = True
            if labels.get("http_route") not in _PROBES:
                found.statuses[labels.get("http_response_status_code", "")] += count
        elif name.startswith(_FIRST_CHUNK):
            buckets.add((), name.rpartition("_")[2], key, count)
        elif name == _LEFT:
            found.left[labels.get("headrace_disconnect_phase", "")] += count
    for _owner, histogram in buckets.histograms():
        found.first_chunk = histogram
    return found if is_there else None
