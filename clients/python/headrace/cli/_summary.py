"""What a generation cost and where it is, in one line. Pure."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from headrace import GenerationStream
from headrace.cli._output import enum_word
from headrace.v1 import error_reason_pb2, usage_pb2
from headrace.v1 import generation_pb2 as pb

__all__ = ["duration_s", "milliseconds", "state_line", "summary_line", "waiting_line"]


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
    parts = _usage_parts(stream.usage) if stream.usage is not None else []
    reasons = ", ".join(reason.lower() for reason in stream.finish_reasons.values())
    if reasons:
        parts.append(f"finish: {reasons}")
    if stream.time_to_first_delta_s is not None:
        parts.append(f"first text after {milliseconds(stream.time_to_first_delta_s)}")
    if stream.timing is not None:
        parts += _timing_parts(stream.timing)
    return "; ".join(parts)


def state_line(found: pb.GetGenerationResponse) -> str:
    """Return where a generation is, and what is known of it; what is unknown is left out."""
    state = enum_word(pb.GenerationState, found.state, "GENERATION_STATE_")
    if found.failure_reason:
        state += f" ({enum_word(error_reason_pb2.ErrorReason, found.failure_reason, 'ERROR_REASON_')})"
    parts = [state]
    if found.HasField("ahead_count"):
        parts.append(f"{found.ahead_count} ahead")
    if found.model:
        parts.append(f"model {found.model}")
    if found.priority:
        parts.append(enum_word(pb.Priority, found.priority, "PRIORITY_"))
    parts += _usage_parts(found.usage)
    if found.last_sequence:
        parts.append(f"last event {found.last_sequence}")
    if found.HasField("timing"):
        parts += _timing_parts(found.timing)
    return "; ".join(parts)


def waiting_line(queued: pb.GenerationQueued) -> str:
    """Return a place in the waiting line: "waiting: 3 ahead, about 2 s"."""
    place = f"{queued.ahead_count} ahead" if queued.ahead_count else "next"
    if not queued.HasField("estimated_wait"):
        return f"waiting: {place}"
    wait_s = max(1, round(duration_s(queued.estimated_wait)))
    return f"waiting: {place}, about {wait_s} s" if wait_s < 120 else f"waiting: {place}, about {wait_s // 60} min"


def _usage_parts(usage: usage_pb2.Usage) -> list[str]:
    parts = []
    if usage.HasField("prompt_token_count"):
        parts.append(f"{usage.prompt_token_count} prompt tokens")
    if usage.HasField("output_token_count"):
        parts.append(f"{usage.output_token_count} output tokens")
    return parts


def _timing_parts(timing: usage_pb2.Timing) -> list[str]:
    parts = [f"queue {milliseconds(duration_s(timing.queue_duration))}"]
    if timing.HasField("prefill_duration"):  # there was a first token
        parts[0] += f", prefill {milliseconds(duration_s(timing.prefill_duration))}"
    if timing.output_tokens_per_second:
        parts.append(f"{timing.output_tokens_per_second:.1f} tokens/s")
    return parts
