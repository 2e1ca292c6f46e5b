"""What a finished generation cost, in one line. Pure."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from headrace import GenerationStream

__all__ = ["duration_s", "milliseconds", "summary_line"]


def duration_s(duration: Duration) -> float:
    """Return a protobuf duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def milliseconds(seconds: float | None) -> str:
    """Return "12 ms", "0.4 ms", or "-" for an unknown time."""
    if seconds is None:
        return "-"
    value = seconds * 1000
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def summary_line(stream: GenerationStream) -> str:
    """Return usage, finish reason and timing of a completed stream; what is unknown is left out."""
    parts = []
    usage, timing = stream.usage, stream.timing
    if usage is not None and usage.HasField("prompt_token_count"):
        parts.append(f"{usage.prompt_token_count} prompt tokens")
    if usage is not None and usage.HasField("output_token_count"):
        parts.append(f"{usage.output_token_count} output tokens")
    reasons = ", ".join(reason.lower() for reason in stream.finish_reasons.values())
    if reasons:
        parts.append(f"finish: {reasons}")
    if stream.time_to_first_delta_s is not None:
        parts.append(f"first text after {milliseconds(stream.time_to_first_delta_s)}")
    if timing is not None:
        queue, prefill = duration_s(timing.queue_duration), duration_s(timing.prefill_duration)
        parts.append(f"queue {milliseconds(queue)}, prefill {milliseconds(prefill)}")
        if timing.output_tokens_per_second:
            parts.append(f"{timing.output_tokens_per_second:.1f} tokens/s")
    return "; ".join(parts)
