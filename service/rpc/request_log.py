"""The one log line of a request. Never the prompt, the output, or a caller's credentials."""

from __future__ import annotations

import logging

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, format_trace_id

from service.core.events import Timing
from service.core.identity import Identity
from service.generation.run import Generation

__all__ = ["log_generation", "logged"]

logger = logging.getLogger("headrace.request")


def log_generation(
    generation: Generation,
    timing: Timing,
    *,
    request_id: str,
    identity: Identity,
    status: str,
    outcome: str,
    reason: str | None,
    stopped_in: str | None = None,
    reader_lag_s: float | None = None,
    span_context: SpanContext = INVALID_SPAN_CONTEXT,
) -> None:
    """Log what a generation took and gave. Times in milliseconds."""
    if not logger.isEnabledFor(logging.INFO):
        return
    logger.info(
        "generation %s",
        outcome,
        extra={
            "request_id": request_id,
            "generation_id": generation.id,
            "trace_id": format_trace_id(span_context.trace_id) if span_context.is_valid else None,
            "model": generation.model.id,
            **logged(identity),
            "priority": generation.request.priority.value,
            "end_user": generation.request.end_user or None,
            "status": status,
            "outcome": outcome,
            "reason": reason,
            # The phase in which it was ended before its time.
            "stopped_in": stopped_in,
            "finish_reasons": [finish.name.lower() for finish in generation.finish_reasons],
            "prompt_tokens": generation.usage.prompt_tokens,
            "cached_prompt_tokens": generation.usage.cached_prompt_tokens,
            "output_tokens": generation.output_tokens_so_far,
            "reasoning_tokens": generation.usage.reasoning_tokens,
            "ttft_ms": _ms(timing.ttft_s),
            # What never got a slot spent its time waiting or being checked, and all of it is total_ms.
            "queue_ms": None if generation.clock.admitted_s is None else _ms(timing.queue_s),
            "prefill_ms": _ms(timing.prefill_s),
            "decode_ms": _ms(timing.decode_s),
            "total_ms": _ms(timing.total_s),
            "max_gap_ms": None if timing.ttft_s is None else _ms(generation.clock.max_gap_s),
            "reader_lag_ms": _ms(reader_lag_s),
            "tokens_per_s": None if timing.ttft_s is None else round(timing.output_tokens_per_s, 1),
        },
    )


def logged(identity: Identity) -> dict[str, str | None]:
    """Return the fields that name a caller; empty ones where nobody has checked who it is."""
    if not identity.subject:
        return {"tenant": None, "subject": None}
    return {"tenant": identity.tenant, "subject": identity.subject}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
