"""Fits a request to a model: capabilities, limits, defaults, the engine's own request."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping

from service.backends.base import NEUTRAL, EngineRequest, Feature
from service.catalog.model import Model
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.request import Chat, ConstraintKind, GenerationRequest, Input, Prompt, Role, Sampling, TokenIds
from service.generation.calls import call_violations, constraint_of, marks_in_output
from service.generation.prompt import missing_for_input, prompt_of, unsupported

__all__ = ["engine_requests", "fit", "used_features"]

_INT63 = 2**63
# A text of n bytes has at most n tokens in any byte-level vocabulary; special
# tokens at the ends are covered by this much.
_SPECIAL_TOKENS_MARGIN = 8

_OPTIONAL_SAMPLING: Mapping[str, Feature] = {
    "temperature": Feature.TEMPERATURE,
    "top_p": Feature.TOP_P,
    "top_k": Feature.TOP_K,
    "min_p": Feature.MIN_P,
    "frequency_penalty": Feature.FREQUENCY_PENALTY,
    "presence_penalty": Feature.PRESENCE_PENALTY,
    "repetition_penalty": Feature.REPETITION_PENALTY,
    "seed": Feature.SEED,
    "min_output_tokens": Feature.MIN_OUTPUT_TOKENS,
}
_CONSTRAINTS: Mapping[ConstraintKind, Feature] = {
    ConstraintKind.JSON_OBJECT: Feature.JSON_OBJECT,
    ConstraintKind.JSON_SCHEMA: Feature.JSON_SCHEMA,
    ConstraintKind.REGEX: Feature.REGEX,
    ConstraintKind.GRAMMAR: Feature.GRAMMAR,
    ConstraintKind.CHOICE: Feature.CHOICE,
}


def used_features(request: GenerationRequest) -> Iterator[tuple[str, Feature]]:
    """Yield the request fields that need a capability, with the capability."""
    if isinstance(request.input, TokenIds):
        yield "tokens", Feature.TOKEN_INPUT
    for name, feature in _OPTIONAL_SAMPLING.items():
        value = getattr(request.sampling, name)
        if value is not None and value != NEUTRAL.get(feature):
            yield f"sampling.{name}", feature
    if request.sampling.logit_bias:
        yield "sampling.logit_bias", Feature.LOGIT_BIAS
    if request.sampling.bad_words:
        yield "sampling.bad_words", Feature.BAD_WORDS
    if request.sampling.ignore_eos:
        yield "sampling.ignore_eos", Feature.IGNORE_EOS
    if request.stop.token_ids:
        yield "stop.token_ids", Feature.TOKEN_IDS
    if request.output.token_ids:
        yield "output.token_ids", Feature.TOKEN_IDS
    if request.output.logprobs:
        yield "output.logprobs", Feature.LOGPROBS
    if request.output.top_logprobs:
        yield "output.top_logprobs", Feature.TOP_LOGPROBS
    if request.constraint is not None:
        yield f"constraint.{request.constraint.kind.value}", _CONSTRAINTS[request.constraint.kind]
    if (
        isinstance(request.input, Chat)
        and request.input.tool_choice is not None
        and request.input.tool_choice.is_forced
    ):
        yield "chat.tool_choice", Feature.JSON_SCHEMA


async def fit(request: GenerationRequest, model: Model, deadline: Deadline, request_id: str) -> list[EngineRequest]:
    """Return one engine request per choice.

    Raises CAPABILITY_UNSUPPORTED, INVALID_FIELD (limits of the model, a chat
    that its template refuses), CONTEXT_LENGTH_EXCEEDED, or BACKEND_UNAVAILABLE if
    the engine's tokenizer does not answer.
    """
    _check_capabilities(request, model)
    _check_limits(request, model)
    _check_size(request.input, model)
    prompt, add_special = await prompt_of(request.input, model)
    sampling = _complete(request.sampling, model)
    sampling = await _fit_context(request, model, prompt, sampling, add_special=add_special)
    return engine_requests(request, model, prompt, sampling, deadline, request_id, add_special=add_special)


def engine_requests(
    request: GenerationRequest,
    model: Model,
    prompt: str | tuple[int, ...],
    sampling: Sampling,
    deadline: Deadline,
    request_id: str,
    *,
    add_special: bool,
) -> list[EngineRequest]:
    """Return one engine request per choice; choice i runs with seed + i and an id of its own."""
    assert sampling.seed is not None
    constraint = constraint_of(request)
    stop = request.stop.sequences
    if isinstance(request.input, Chat) and model.template is not None:
        stop += tuple(s for s in model.template.stop_sequences if s not in stop)
    stop += tuple(s for s in model.stop_sequences if s not in stop)
    return [
        EngineRequest(
            request_id=f"{request_id}-{choice}",
            prompt=prompt,
            sampling=dataclasses.replace(sampling, seed=_wrap_int64(sampling.seed + choice)),
            deadline=deadline,
            add_special_tokens=add_special,
            stop_sequences=stop,
            stop_token_ids=request.stop.token_ids,
            constraint=constraint,
            logprobs=(request.output.top_logprobs or 0) if request.output.logprobs else None,
            token_ids=request.output.token_ids or bool(request.stop.token_ids),
            marks=marks_in_output(request, model),
        )
        for choice in range(request.choice_count)
    ]


def _check_capabilities(request: GenerationRequest, model: Model) -> None:
    features = model.backend.info.features
    missing = [field for field, feature in used_features(request) if feature not in features]
    missing += missing_for_input(request.input, model)
    if missing:
        raise unsupported(missing, model)


def _check_limits(request: GenerationRequest, model: Model) -> None:
    found = call_violations(request)
    most_choices = min(model.max_choices, model.slots.running_limit)
    if request.choice_count > most_choices:
        found.append(Violation("choice_count", f"at most {most_choices} for this model, got {request.choice_count}"))
    wanted = request.sampling.max_output_tokens
    if wanted is not None and wanted > model.max_output_tokens:
        found.append(
            Violation("sampling.max_output_tokens", f"at most {model.max_output_tokens} for this model, got {wanted}")
        )
    vocab = model.backend.info.vocab_size
    if vocab:
        found += _outside_vocabulary(request, vocab)
    if found:
        raise invalid(found)


def _outside_vocabulary(request: GenerationRequest, vocab: int) -> list[Violation]:
    rule = f"must be below the vocabulary size {vocab}"
    found = [
        Violation(f"sampling.logit_bias[{token_id}]", f"the token id {rule}")
        for token_id in request.sampling.logit_bias
        if token_id >= vocab
    ]
    found += [
        Violation(f"stop.token_ids[{at}]", f"{rule}, got {token_id}")
        for at, token_id in enumerate(request.stop.token_ids)
        if token_id >= vocab
    ]
    if isinstance(request.input, TokenIds):
        at = next((at for at, token_id in enumerate(request.input.ids) if token_id >= vocab), None)
        if at is not None:
            found.append(Violation(f"tokens.ids[{at}]", f"{rule}, got {request.input.ids[at]}"))
    return found


def _check_size(asked: Input, model: Model) -> None:
    """Refuse texts that are too long for the window whatever is in them, before anything reads them."""
    match asked:
        case Prompt(text=text):
            size = len(text.encode())
        case Chat(messages=messages):
            # Templates trim, and leave out what an assistant thought and said before.
            size = sum(len(one.content.strip().encode()) for one in messages if one.role is not Role.ASSISTANT)
        case TokenIds():
            return
    _check_fewest(size, model)


def _check_fewest(size_bytes: int, model: Model) -> None:
    context, fewest = model.max_context_tokens, model.fewest_tokens(size_bytes)
    if context is not None and fewest > context:
        raise ServiceError(
            Reason.CONTEXT_LENGTH_EXCEEDED,
            f"The model's context is {context} tokens; the prompt has at least {fewest}.",
            metadata={"maxContextTokens": str(context)},
        )


def _complete(sampling: Sampling, model: Model) -> Sampling:
    """Return `sampling` with the model's defaults and a seed."""
    defaults = model.default_sampling
    unset = {
        field.name: getattr(defaults, field.name)
        for field in dataclasses.fields(Sampling)
        if getattr(sampling, field.name) is None and getattr(defaults, field.name) is not None
    }
    if sampling.seed is None and "seed" not in unset:
        unset["seed"] = secrets.randbits(31)
    if sampling.max_output_tokens is None and "max_output_tokens" not in unset:
        unset["max_output_tokens"] = model.default_max_output_tokens
    return dataclasses.replace(sampling, **unset)


async def _fit_context(
    request: GenerationRequest,
    model: Model,
    prompt: str | tuple[int, ...],
    sampling: Sampling,
    *,
    add_special: bool,
) -> Sampling:
    """Check prompt + output against the context window; shrink a default that does not fit."""
    context = model.max_context_tokens
    assert sampling.max_output_tokens is not None
    if context is None:
        return sampling
    # Only a text that could be too long is worth a round trip to the tokenizer.
    tokens: int | None
    if isinstance(prompt, tuple):
        tokens = len(prompt)
    elif (size := len(prompt.encode())) + _SPECIAL_TOKENS_MARGIN + sampling.max_output_tokens <= context:
        return sampling
    else:
        _check_fewest(size, model)
        tokens = await model.count_tokens(prompt, add_special_tokens=add_special)
    if tokens is None:
        return sampling  # it does not count: it will say
    asked = request.sampling.max_output_tokens
    if tokens >= context or (asked is not None and tokens + asked > context):
        metadata = {"promptTokens": str(tokens), "maxContextTokens": str(context)}
        message = f"The model's context is {context} tokens; the prompt has {tokens}"
        if asked is not None and tokens < context:
            metadata["requestedOutputTokens"] = str(asked)
            message += f" and {asked} were asked for"
        raise ServiceError(Reason.CONTEXT_LENGTH_EXCEEDED, message + ".", metadata=metadata)
    if asked is None:
        return dataclasses.replace(sampling, max_output_tokens=min(sampling.max_output_tokens, context - tokens))
    return sampling


def _wrap_int64(value: int) -> int:
    return (value + _INT63) % (2 * _INT63) - _INT63
