"""Where the time of a generation went, as its span and its trailers tell it: the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.trace import Span

from runtime import semconv
from runtime.server_timing import server_timing_value
from runtime.slo import ALL, KEEP_TRAILER, TIMING_TRAILER, TTFT
from service.core.events import Timing
from service.core.timing import StreamClock

__all__ = ["span_attributes", "trailers_of"]


def trailers_of(timing: Timing, *, is_admitted: bool, keep: str | None) -> Sequence[tuple[str, str]]:
    """Return the trailing metadata of a generation."""
    parts = (
        ("queue", timing.queue_s if is_admitted else None),
        ("prefill", timing.prefill_s),
        ("ttft", timing.ttft_s),
        ("decode", timing.decode_s),
        ("total", timing.total_s),
    )
    told = server_timing_value((name, None if seconds is None else 1000 * seconds) for name, seconds in parts)
    return ((TIMING_TRAILER, told),) if keep is None else ((TIMING_TRAILER, told), (KEEP_TRAILER, keep))


def span_attributes(
    span: Span,
    generation_id: str,
    timing: Timing,
    clock: StreamClock,
    lag_s: float | None,
    met: Mapping[str, bool],
    keep: str | None,
) -> None:
    """Set on the span what is known of where the time went."""
    told: dict[str, float | bool | str | None] = {
        semconv.GENERATION_ID: generation_id,
        semconv.TTFT_S: timing.ttft_s,
        semconv.PREFILL_S: timing.prefill_s,
        semconv.DECODE_S: timing.decode_s,
        semconv.MAX_GAP_S: None if timing.ttft_s is None else clock.max_gap_s,
        semconv.QUEUE_S: None if clock.admitted_s is None else timing.queue_s,
        semconv.READER_LAG_S: lag_s,
        semconv.SLO_TTFT_MET: met.get(TTFT),
        semconv.SLO_MET: met.get(ALL),
        semconv.KEEP: keep,
    }
    span.set_attributes({key: value for key, value in told.items() if value is not None})
