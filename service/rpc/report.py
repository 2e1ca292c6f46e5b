"""What is told of one generation: its state on the wire, and at its end span attributes, metrics and the log line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from headrace.v1 import error_reason_pb2, generation_pb2
from runtime import semconv
from runtime.slo import Objectives, keep_reason
from service.core.account import Closing, closing_unrun
from service.core.errors import Reason
from service.core.request import Priority
from service.generation.live import EndedGeneration, GenerationState, LiveGeneration
from service.rpc.call import CallRecord
from service.rpc.convert_events import timing_to_proto, usage_to_proto
from service.rpc.request_log import log_generation
from service.rpc.told import span_attributes, trailers_of
from service.telemetry.instruments import Recorded, record_cancel, record_end, record_generation

__all__ = ["closing_of", "closing_of_none", "ended_generation", "report", "state_to_proto"]

_PRIORITIES = {
    Priority.INTERACTIVE: generation_pb2.PRIORITY_INTERACTIVE,
    Priority.BATCH: generation_pb2.PRIORITY_BATCH,
}
_STATES = {
    "completed": GenerationState.COMPLETED,
    "cancelled": GenerationState.CANCELLED,
    "client_cancelled": GenerationState.CANCELLED,
}
# Outcomes that end a generation before its time, and what they count as where nobody noted a cause.
_CAUSES = {
    "client_cancelled": "client",
    "cancelled": "cancel_call",
    "deadline_exceeded": "deadline",
    "drained": "drain",
    "consumer_too_slow": "slow_reader",
}


def ended_generation(live: LiveGeneration, call: CallRecord) -> EndedGeneration:
    """Return what is remembered of a generation whose call has ended."""
    generation, now_s = live.generation, time.monotonic()
    return EndedGeneration(
        state=_STATES.get(call.outcome, GenerationState.FAILED),
        model=generation.model.id,
        tenant=live.tenant,
        priority=generation.request.priority,
        created_at_s=live.created_at_s,
        last_sequence=call.last_sequence,
        usage=replace(generation.usage, output_tokens=generation.output_tokens_so_far),
        timing=generation.clock.timing(now_s, generation.output_tokens_so_far, generation.request.choice_count),
        reason=_reason(call),
        ended_at_s=now_s,
    )


def closing_of(live: LiveGeneration, call: CallRecord) -> Closing:
    """Return what its account is closed with; for a generation whose call has ended."""
    generation = live.generation
    tokens, reason = generation.output_tokens_so_far, _reason(call)
    return Closing(
        usage=replace(generation.usage, output_tokens=tokens),
        timing=generation.clock.timing(time.monotonic(), tokens, generation.request.choice_count),
        outcome=call.outcome,
        reason=None if reason is None else reason.name,
        finish_reasons=tuple(generation.finish_reasons),
        ended_at_s=time.time(),
    )


def closing_of_none(call: CallRecord, created_at_s: float) -> Closing:
    """Return what an account is closed with whose generation could not begin."""
    reason = _reason(call)
    return closing_unrun(created_at_s, call.outcome, None if reason is None else reason.name)


def state_to_proto(
    generation_id: str, found: LiveGeneration | EndedGeneration, now_s: float
) -> generation_pb2.GetGenerationResponse:
    """Return the wire form of where a generation is."""
    ahead = failure = None
    if isinstance(found, LiveGeneration):
        generation = found.generation
        model, priority, sequence = generation.model.id, generation.request.priority, found.outbox.taken
        usage = replace(generation.usage, output_tokens=generation.output_tokens_so_far)
        timing = generation.clock.timing(now_s, usage.output_tokens, generation.request.choice_count)
        if found.state is GenerationState.QUEUED and generation.ticket is not None:
            ahead = generation.ticket.ahead
    else:
        model, priority, sequence = found.model, found.priority, found.last_sequence
        usage, timing = found.usage, found.timing
        if found.state is GenerationState.FAILED and found.reason is not None:
            failure = error_reason_pb2.ErrorReason.Name(found.reason.value)
    message = generation_pb2.GetGenerationResponse(
        state=generation_pb2.GenerationState.Name(found.state.value),
        last_sequence=sequence,
        usage=usage_to_proto(usage),
        model=model,
        priority=_PRIORITIES[priority],
        failure_reason=failure,
        timing=timing_to_proto(timing),
        ahead_count=ahead,
        generation_id=generation_id,
    )
    message.create_time.FromNanoseconds(round(found.created_at_s * 1e9))
    return message


def report(call: CallRecord, live: LiveGeneration, objectives: Objectives) -> None:
    """Record one generation, whatever its end was."""
    generation = live.generation
    clock, info, model = generation.clock, generation.model.backend.info, generation.model.id
    tokens, choices, priority = (
        generation.output_tokens_so_far,
        generation.request.choice_count,
        generation.request.priority,
    )
    reason = _reason(call)
    told_reason = None if reason is None else reason.name
    if reason is Reason.TOKEN_GAP_TIMEOUT or live.stopped_in in {"decode", "hold_back"}:
        clock.on_silence(time.monotonic())  # what it was waiting for then
    timing = clock.timing(time.monotonic(), tokens, choices)
    tpot_s, lag_s = clock.tpot_s(tokens, choices), live.reader_lag_s
    met: Mapping[str, bool] = {}
    if priority is Priority.INTERACTIVE:
        # Tokens that came slowly because they were taken slowly say nothing of the engine.
        is_held_up = lag_s is not None and timing.decode_s is not None and lag_s > timing.decode_s / 2
        met = objectives.judge(
            call.outcome,
            reason=told_reason,
            ttft_s=timing.ttft_s,
            tpot_s=None if is_held_up else tpot_s,
            total_s=timing.total_s,
        )
    keep = keep_reason(
        met,
        failed=call.error_type is not None,
        max_gap_s=0.0 if timing.ttft_s is None else clock.max_gap_s,
        stall_s=objectives.stall_s,
    )
    # As in the last event, where there was one: what came behind it is the way to the reader.
    told = timing if generation.completed is None else generation.completed.timing
    call.trailers = trailers_of(told, is_admitted=clock.admitted_s is not None, keep=keep)
    if call.span.is_recording():
        span_attributes(call.span, generation.id, timing, clock, lag_s, met, keep)
    stopped_in = _note_cancel(call, live)
    call.is_logged = True
    log_generation(
        generation,
        timing,
        request_id=call.request_id,
        identity=call.identity,
        status=call.status,
        outcome=call.outcome,
        reason=told_reason,
        stopped_in=stopped_in,
        reader_lag_s=lag_s,
        span_context=call.span.get_span_context(),
    )
    generation.trace.end(
        ttft_s=timing.ttft_s,
        usage=replace(generation.usage, output_tokens=tokens),
        finish_reasons=generation.finish_reasons,
        error_type=call.error_type,
        detail=call.error.detail or call.error.reason.name if call.error else None,
    )
    record_end(model, priority, call.outcome, told_reason, met)
    if clock.admitted_s is not None:
        record_generation(
            Recorded(
                operation=generation.trace.operation,
                provider=info.provider,
                model=model,
                priority=priority,
                outcome=call.outcome,
                error_type=call.error_type,
                timing=timing,
                max_gap_s=clock.max_gap_s,
                reader_lag_s=lag_s,
                prompt_tokens=generation.usage.prompt_tokens,
                more_output_tokens=(tokens or 0) - live.counted_tokens,
                tpot_s=tpot_s,
            ),
            call.context,
        )


def _reason(call: CallRecord) -> Reason | None:
    """Return what the caller was told; of what nobody foresaw, INTERNAL."""
    if call.error is not None:
        return call.error.reason
    return Reason.INTERNAL if call.outcome == "internal_error" else None


def _note_cancel(call: CallRecord, live: LiveGeneration) -> str | None:
    """Count a generation that was ended before its time; return the phase in which that was."""
    if call.outcome == "completed":
        return None  # also where a cancel came too late to change that
    cause = _CAUSES.get(call.outcome)
    if live.stopped_by is not None and (cause is None or cause == "client"):
        cause = live.stopped_by.value
    if cause is None:
        return None
    # The engine had ended, and its reader had not.
    phase = live.stopped_in or ("completed" if live.has_ended else "prefill")
    record_cancel(live.generation.model.id, cause=cause, phase=phase, stop_s=live.stop_s)
    call.span.set_attribute(semconv.CANCEL_CAUSE, cause)
    call.span.set_attribute(semconv.CANCEL_PHASE, phase)
    return phase
