"""Wire messages to values and back: small pure functions, both directions side by side."""

from __future__ import annotations

import json
import math
from itertools import islice
from typing import Final

from google.protobuf import duration_pb2, timestamp_pb2

from headrace.v1 import chat_pb2, generation_pb2, model_pb2, sampling_pb2, usage_pb2
from service.backends.base import Feature, Health
from service.catalog.model import Model
from service.core.errors import Violation
from service.core.events import (
    ChoiceFinished,
    Completed,
    Delta,
    Event,
    Started,
    Timing,
    TokenLogprob,
    ToolCallPiece,
    Usage,
)
from service.core.request import (
    Constraint,
    ConstraintKind,
    GenerationRequest,
    Input,
    OutputOptions,
    Priority,
    Prompt,
    Sampling,
    StopCriteria,
    TokenIds,
)
from service.core.validate import (
    MAX_BAD_WORDS,
    MAX_CHOICE_TEXTS,
    MAX_LOGIT_BIAS,
    MAX_STOP_SEQUENCES,
    MAX_STOP_TOKENS,
    MAX_TOKEN_IDS,
)
from service.rpc.convert_chat import chat_from_proto

__all__ = ["event_to_proto", "model_to_proto", "request_from_proto"]

_STATES: Final = {
    Health.LOADING: model_pb2.MODEL_STATE_LOADING,
    Health.READY: model_pb2.MODEL_STATE_READY,
    Health.UNAVAILABLE: model_pb2.MODEL_STATE_UNAVAILABLE,
}
_PRIORITIES: Final = {
    generation_pb2.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    generation_pb2.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    generation_pb2.PRIORITY_BATCH: Priority.BATCH,
}
_SCALARS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "max_output_tokens",
    "min_output_tokens",
)
# -inf is no JSON number; this is the value that OpenAI's own API uses for it.
_NEVER: Final = -9999.0


def request_from_proto(message: generation_pb2.GenerateRequest) -> tuple[GenerationRequest, list[Violation]]:
    """Return the request and what is wrong with its shape.

    A part that is wrong is replaced by a harmless one, so that the bounds of
    all the others can still be checked and every violation named at once.
    """
    found: list[Violation] = []
    request = GenerationRequest(
        model=message.model,
        input=_input_from_proto(message, found),
        sampling=_sampling_from_proto(message.sampling),
        stop=StopCriteria(
            sequences=tuple(message.stop.sequences[: MAX_STOP_SEQUENCES + 1]),
            token_ids=tuple(message.stop.token_ids[: MAX_STOP_TOKENS + 1]),
            include_in_output=message.stop.include_in_output,
        ),
        output=OutputOptions(
            token_ids=message.output.token_ids,
            logprobs=message.output.logprobs,
            top_logprobs=message.output.top_logprobs if message.output.HasField("top_logprobs") else None,
        ),
        constraint=_constraint_from_proto(message, found),
        choice_count=message.choice_count if message.HasField("choice_count") else 1,
        time_limit_s=_seconds(message.time_limit) if message.HasField("time_limit") else None,
        priority=_priority_from_proto(message, found),
        end_user=message.end_user,
    )
    return request, found


def _priority_from_proto(message: generation_pb2.GenerateRequest, found: list[Violation]) -> Priority:
    priority = _PRIORITIES.get(message.priority)
    if priority is None:
        found.append(Violation("priority", f"{message.priority} is unknown"))
        return Priority.INTERACTIVE
    return priority


def _input_from_proto(message: generation_pb2.GenerateRequest, found: list[Violation]) -> Input:
    match message.WhichOneof("input"):
        case "prompt":
            return Prompt(text=message.prompt)
        case "tokens":
            return TokenIds(ids=tuple(message.tokens.ids[: MAX_TOKEN_IDS + 1]))
        case "chat":
            return chat_from_proto(message.chat, "chat", found)
        case _:
            found.append(Violation("input", "required: set one of prompt, tokens, chat"))
            return TokenIds(ids=(0,))


def _sampling_from_proto(message: sampling_pb2.SamplingParams) -> Sampling:
    return Sampling(
        **{name: getattr(message, name) for name in _SCALARS if message.HasField(name)},
        logit_bias=dict(islice(message.logit_bias.items(), MAX_LOGIT_BIAS + 1)),
        ignore_eos=message.ignore_eos,
        bad_words=tuple(message.bad_words[: MAX_BAD_WORDS + 1]),
    )


def _sampling_to_proto(sampling: Sampling) -> sampling_pb2.SamplingParams:
    values = {name: getattr(sampling, name) for name in _SCALARS if getattr(sampling, name) is not None}
    return sampling_pb2.SamplingParams(
        **values, logit_bias=sampling.logit_bias, ignore_eos=sampling.ignore_eos, bad_words=sampling.bad_words
    )


def _constraint_from_proto(message: generation_pb2.GenerateRequest, found: list[Violation]) -> Constraint | None:
    if not message.HasField("constraint"):
        return None
    match message.constraint.WhichOneof("kind"):
        case "json_object":
            return Constraint(kind=ConstraintKind.JSON_OBJECT)
        case "json_schema":
            return Constraint(kind=ConstraintKind.JSON_SCHEMA, source=message.constraint.json_schema)
        case "regex":
            return Constraint(kind=ConstraintKind.REGEX, source=message.constraint.regex)
        case "grammar":
            return Constraint(kind=ConstraintKind.GRAMMAR, source=message.constraint.grammar)
        case "choice":
            texts = list(message.constraint.choice.choices[: MAX_CHOICE_TEXTS + 1])
            return Constraint(kind=ConstraintKind.CHOICE, source=json.dumps(texts, ensure_ascii=False))
        case _:
            kinds = "json_object, json_schema, regex, grammar, choice"
            found.append(Violation("constraint", f"required: set one of {kinds}"))
            return None


def event_to_proto(
    event: Event, sequence: int, started: generation_pb2.GenerationStarted
) -> generation_pb2.GenerateResponse:
    """Return the wire form. `started` holds what only the server knows of the first event."""
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
            usage=_usage_to_proto(event.usage), timing=_timing_to_proto(event.timing)
        )
        return generation_pb2.GenerateResponse(sequence=sequence, completed=completed)
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


def _usage_to_proto(usage: Usage) -> usage_pb2.Usage:
    return usage_pb2.Usage(
        prompt_token_count=usage.prompt_tokens,
        cached_prompt_token_count=usage.cached_prompt_tokens,
        output_token_count=usage.output_tokens,
        reasoning_token_count=usage.reasoning_tokens,
    )


def _timing_to_proto(timing: Timing) -> usage_pb2.Timing:
    return usage_pb2.Timing(
        queue_duration=_duration(timing.queue_s),
        prefill_duration=_duration(timing.prefill_s),
        time_to_first_token=_duration(timing.ttft_s),
        decode_duration=_duration(timing.decode_s),
        total_duration=_duration(timing.total_s),
        output_tokens_per_second=timing.output_tokens_per_s,
    )


def _duration(seconds: float | None) -> duration_pb2.Duration | None:
    if seconds is None:
        return None
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _seconds(duration: duration_pb2.Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def model_to_proto(model: Model, *, is_draining: bool) -> model_pb2.Model:
    """Return the wire form of a served model."""
    state = model_pb2.MODEL_STATE_DRAINING if is_draining else _STATES[model.health]
    info = model.backend.info
    capabilities = [model_pb2.MODEL_CAPABILITY_PROMPT]
    if model.template is not None:
        capabilities.append(model_pb2.MODEL_CAPABILITY_CHAT)
    if model.can_call_tools:
        capabilities.append(model_pb2.MODEL_CAPABILITY_TOOLS)
    if model.reasoning_format is not None:
        capabilities.append(model_pb2.MODEL_CAPABILITY_REASONING)
    if Feature.TOKEN_INPUT in info.features:
        capabilities.append(model_pb2.MODEL_CAPABILITY_TOKENS)
    if model.can_constrain:
        capabilities.append(model_pb2.MODEL_CAPABILITY_CONSTRAINT)
    if Feature.LOGPROBS in info.features:
        capabilities.append(model_pb2.MODEL_CAPABILITY_LOGPROBS)
    if model.open_tokenizer is not None:
        capabilities.append(model_pb2.MODEL_CAPABILITY_TOKENIZE)
    created = timestamp_pb2.Timestamp()
    created.FromNanoseconds(round(model.created_at_s * 1e9))
    return model_pb2.Model(
        id=model.id,
        aliases=model.aliases,
        owned_by=model.owned_by,
        create_time=created,
        state=state,
        max_context_tokens=model.max_context_tokens or 0,
        max_output_tokens=model.max_output_tokens,
        capabilities=sorted(capabilities),
        vocab_size=info.vocab_size or 0,
        default_sampling=_sampling_to_proto(model.default_sampling),
    )
