"""Requests and models: wire messages to values and back, in small pure functions."""

from __future__ import annotations

import json
from itertools import islice
from typing import Final

from google.protobuf import duration_pb2, timestamp_pb2

from headrace.v1 import generation_pb2, model_pb2, sampling_pb2
from service.backends.base import Feature, Health
from service.catalog.model import Model
from service.core.errors import Violation
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
from service.retention.policy import Policy, content_digest
from service.rpc.convert_chat import chat_from_proto

__all__ = ["model_to_proto", "policy_from_proto", "request_from_proto"]

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


def policy_from_proto(message: generation_pb2.GenerateRequest) -> Policy | None:
    """Return how the generation is retained; None if it is not."""
    if not message.idempotency_key and not message.HasField("retention"):
        return None
    retention = message.retention
    digest = b""
    if message.idempotency_key:
        content = generation_pb2.GenerateRequest()
        content.CopyFrom(message)
        content.ClearField("idempotency_key")
        content.ClearField("retention")
        content.ClearField("time_limit")  # a repetition has less time left
        digest = content_digest(content.SerializeToString(deterministic=True))
    return Policy(
        key=message.idempotency_key,
        digest=digest,
        retain_s=retention.retain_for.ToNanoseconds() / 1e9 if retention.HasField("retain_for") else None,
        continues=retention.continue_on_disconnect,
        annotation=retention.annotation,
    )


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
            queue_events=message.output.queue_events,
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
