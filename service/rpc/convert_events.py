"""Events to the wire: small pure functions. One message is built per token."""

from __future__ import annotations

import math
from typing import Final

from google.protobuf import duration_pb2

from headrace.v1 import chat_pb2, generation_pb2, usage_pb2
from service.core.events import (
    ChoiceFinished,
    Completed,
    Delta,
    Event,
    Queued,
    Started,
    Timing,
    TokenLogprob,
    ToolCallPiece,
    Usage,
)
from service.generation.live import LiveGeneration

__all__ = ["duration_to_proto", "event_to_proto", "started_of", "timing_to_proto", "usage_to_proto"]

# -inf is no JSON number; this is the value that OpenAI's own API uses for it.
_NEVER: Final = -9999.0


def started_of(live: LiveGeneration) -> generation_pb2.GenerationStarted:
    """Return what only the server knows of a generation's first event."""
    generation = live.generation
    started = generation_pb2.GenerationStarted(
        generation_id=generation.id,
        model=generation.model.id,
        fingerprint=generation.model.backend.info.fingerprint,
    )
    started.create_time.FromNanoseconds(round(live.created_at_s * 1e9))
    return started


def event_to_proto(
    event: Event, sequence: int, started: generation_pb2.GenerationStarted
) -> generation_pb2.GenerateResponse:
    """Return the wire form. `started` is that of `started_of`."""
    if type(event) is Delta:
        # Built once per token: filling in place costs half of nested constructors.
        message = generation_pb2.GenerateResponse()
        message.sequence = sequence
        delta = message.delta
        if event.call is not None:
            _fill_call(delta.tool_call, event.call)
        elif event.reasoning or event.is_mark:
            delta.reasoning_text = event.reasoning
        else:
            delta.text = event.text
        if event.choice:
            delta.index = event.choice
        if event.token_ids:
            delta.token_ids.extend(event.token_ids)
        if event.logprobs:
            delta.logprobs.extend(_logprob_to_proto(logprob) for logprob in event.logprobs)
        return message
    if isinstance(event, ChoiceFinished):
        return generation_pb2.GenerateResponse(sequence=sequence, choice_finished=_finish_to_proto(event))
    if isinstance(event, Completed):
        completed = generation_pb2.GenerationCompleted(
            usage=usage_to_proto(event.usage), timing=timing_to_proto(event.timing)
        )
        return generation_pb2.GenerateResponse(sequence=sequence, completed=completed)
    if isinstance(event, Queued):
        queued = generation_pb2.GenerationQueued(
            generation_id=started.generation_id,
            ahead_count=event.ahead,
            estimated_wait=duration_to_proto(event.estimated_wait_s),
        )
        return generation_pb2.GenerateResponse(sequence=sequence, queued=queued)
    assert isinstance(event, Started)
    message = generation_pb2.GenerateResponse(sequence=sequence, started=started)
    message.started.seed = event.seed
    if event.prompt_tokens is not None:
        message.started.prompt_token_count = event.prompt_tokens
    return message


def _fill_call(message: chat_pb2.ToolCallDelta, piece: ToolCallPiece) -> None:
    message.index = piece.number
    if piece.id:
        message.id = piece.id
        message.function_name = piece.name
    message.arguments_fragment = piece.arguments


def _finish_to_proto(event: ChoiceFinished) -> generation_pb2.ChoiceFinished:
    # The values of our enum are the numbers of the wire's; a test walks both.
    reason = generation_pb2.FinishReason.Name(event.reason.value)
    message = generation_pb2.ChoiceFinished(index=event.choice, reason=reason)
    if event.stop_sequence is not None:
        message.stop_sequence = event.stop_sequence
    elif event.stop_token_id is not None:
        message.stop_token_id = event.stop_token_id
    if event.output_tokens is not None:
        message.output_token_count = event.output_tokens
    return message


def _logprob_to_proto(logprob: TokenLogprob) -> generation_pb2.TokenLogprob:
    return generation_pb2.TokenLogprob(
        token_id=logprob.token_id,
        logprob=_finite(logprob.logprob),
        text=logprob.raw.decode(errors="replace"),
        raw_bytes=logprob.raw,
        top_logprobs=[
            generation_pb2.TopLogprob(
                token_id=top.token_id,
                logprob=_finite(top.logprob),
                text=top.raw.decode(errors="replace"),
                raw_bytes=top.raw,
            )
            for top in logprob.top
        ],
    )


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NEVER


def usage_to_proto(usage: Usage) -> usage_pb2.Usage:
    """Return the wire form of token counts; None stays unset."""
    return usage_pb2.Usage(
        prompt_token_count=usage.prompt_tokens,
        cached_prompt_token_count=usage.cached_prompt_tokens,
        output_token_count=usage.output_tokens,
        reasoning_token_count=usage.reasoning_tokens,
    )


def timing_to_proto(timing: Timing) -> usage_pb2.Timing:
    """Return the wire form of a timing report."""
    return usage_pb2.Timing(
        queue_duration=duration_to_proto(timing.queue_s),
        prefill_duration=duration_to_proto(timing.prefill_s),
        time_to_first_token=duration_to_proto(timing.ttft_s),
        decode_duration=duration_to_proto(timing.decode_s),
        total_duration=duration_to_proto(timing.total_s),
        output_tokens_per_second=timing.output_tokens_per_s,
    )


def duration_to_proto(seconds: float | None) -> duration_pb2.Duration | None:
    """Return seconds as a duration; None stays unset."""
    if seconds is None:
        return None
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
