"""Token counts and times of a generation, as members of a document and as a header."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from headrace.v1 import usage_pb2
from runtime.server_timing import server_timing_value

__all__ = ["server_timing", "timing_document", "usage_document"]

# Metric names of `Server-Timing` and the durations behind them.
_METRICS: Final = (
    ("queue", "queue_duration"),
    ("prefill", "prefill_duration"),
    ("ttft", "time_to_first_token"),
    ("decode", "decode_duration"),
    ("total", "total_duration"),
)


def usage_document(usage: usage_pb2.Usage | None) -> dict[str, Any] | None:
    """Return the `usage` member; None if a count is unknown, because zeros would be false."""
    if usage is None or not (usage.HasField("prompt_token_count") and usage.HasField("output_token_count")):
        return None
    document: dict[str, Any] = {
        "prompt_tokens": usage.prompt_token_count,
        "completion_tokens": usage.output_token_count,
        "total_tokens": usage.prompt_token_count + usage.output_token_count,
    }
    if usage.HasField("cached_prompt_token_count"):
        document["prompt_tokens_details"] = {"cached_tokens": usage.cached_prompt_token_count}
    if usage.HasField("reasoning_token_count"):
        document["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_token_count}
    return document


def timing_document(timing: usage_pb2.Timing) -> dict[str, float | None]:
    """Return the vendor member `timing`: milliseconds on the service's clock, null where a point was not reached."""
    return {
        "queue_ms": _milliseconds(timing, "queue_duration"),
        "prefill_ms": _milliseconds(timing, "prefill_duration"),
        "time_to_first_token_ms": _milliseconds(timing, "time_to_first_token"),
        "decode_ms": _milliseconds(timing, "decode_duration"),
        "total_ms": _milliseconds(timing, "total_duration"),
        "output_tokens_per_second": round(timing.output_tokens_per_second, 3),
    }


def server_timing(timing: usage_pb2.Timing) -> str:
    """Return the value of `Server-Timing`: `dur` in milliseconds; points that were not reached are left out."""
    return server_timing_value((name, _milliseconds(timing, field)) for name, field in _METRICS)


def _milliseconds(timing: usage_pb2.Timing, field: str) -> float | None:
    if not timing.HasField(field):
        return None
    duration: Duration = getattr(timing, field)
    return round(duration.seconds * 1e3 + duration.nanos / 1e6, 3)
