"""The bounds of a request, in one table, and the check that names every violation.

What depends on the model (vocabulary, limits, capabilities) is checked by
`service.generation.fit`; everything here holds for any model. The bounds stand
in the comments of the proto files as well; a test compares the two by sending
values on both sides of each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Final

from service.core.errors import Violation
from service.core.request import Chat, ConstraintKind, GenerationRequest, Prompt, Sampling, TokenIds
from service.core.schema import schema_violations
from service.core.validate_chat import chat_violations

__all__ = ["violations"]

MAX_TOKEN_IDS: Final = 2**20
MAX_STOP_SEQUENCES: Final = 16
MAX_STOP_BYTES: Final = 256
MAX_STOP_TOKENS: Final = 16
MAX_BAD_WORDS: Final = 16
MAX_LOGIT_BIAS: Final = 1024
MAX_TOP_LOGPROBS: Final = 20
MAX_CONSTRAINT_BYTES: Final = 256 * 1024
MAX_CHOICE_TEXTS: Final = 1024
MAX_CHOICE_BYTES: Final = 4096
MAX_END_USER_BYTES: Final = 512

Bound = tuple[str, Callable[[float], bool]]

_SAMPLING: Final[dict[str, Bound]] = {
    "temperature": ("must be from 0 to 2", lambda v: 0 <= v <= 2),
    "top_p": ("must be above 0 and at most 1", lambda v: 0 < v <= 1),
    "top_k": ("must be at least 0", lambda v: v >= 0),
    "min_p": ("must be from 0 to 1", lambda v: 0 <= v <= 1),
    "frequency_penalty": ("must be from -2 to 2", lambda v: -2 <= v <= 2),
    "presence_penalty": ("must be from -2 to 2", lambda v: -2 <= v <= 2),
    "repetition_penalty": ("must be above 0", lambda v: v > 0),
    "max_output_tokens": ("must be at least 1", lambda v: v >= 1),
    "min_output_tokens": ("must be at least 0", lambda v: v >= 0),
}


def violations(request: GenerationRequest) -> list[Violation]:
    """Return everything that is wrong with `request` for any model."""
    found: list[Violation] = []
    if not request.model:
        found.append(Violation("model", "required"))
    found += _input(request)
    found += _sampling(request.sampling)
    found += _stop(request)
    found += _output(request)
    found += _constraint(request)
    if request.sampling.ignore_eos and request.constraint is not None:
        found.append(Violation("sampling.ignore_eos", "cannot be combined with a constraint, which has an end"))
    if request.choice_count < 1:
        found.append(Violation("choice_count", f"must be at least 1, got {request.choice_count}"))
    if request.time_limit_s is not None and request.time_limit_s <= 0:
        found.append(Violation("time_limit", f"must be above 0, got {request.time_limit_s:g} s"))
    if len(request.end_user.encode()) > MAX_END_USER_BYTES:
        found.append(Violation("end_user", f"at most {MAX_END_USER_BYTES} bytes"))
    return found


def _input(request: GenerationRequest) -> list[Violation]:
    match request.input:
        case Prompt(text=""):
            return [Violation("prompt", "must not be empty")]
        case TokenIds(ids=()):
            return [Violation("tokens.ids", "must not be empty")]
        case TokenIds(ids=ids) if len(ids) > MAX_TOKEN_IDS:
            return [Violation("tokens.ids", f"at most {MAX_TOKEN_IDS}")]
        case TokenIds(ids=ids) if min(ids) < 0:
            at = next(i for i, value in enumerate(ids) if value < 0)
            return [Violation(f"tokens.ids[{at}]", f"must be at least 0, got {ids[at]}")]
        case Chat() as chat:
            return chat_violations(chat)
        case _:
            return []


def _sampling(sampling: Sampling) -> list[Violation]:
    found = []
    for name, (rule, holds) in _SAMPLING.items():
        value = getattr(sampling, name)
        # NaN fails every comparison and infinity some: both are named as they are.
        if value is not None and not (math.isfinite(value) and holds(value)):
            found.append(Violation(f"sampling.{name}", f"{rule}, got {value:g}"))
    low, high = sampling.min_output_tokens, sampling.max_output_tokens
    if low is not None and high is not None and high >= 1 and low > high:
        found.append(Violation("sampling.min_output_tokens", f"must be at most max_output_tokens ({high}), got {low}"))
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        found.append(Violation("sampling.logit_bias", f"at most {MAX_LOGIT_BIAS} entries"))
    else:
        for token_id, bias in sampling.logit_bias.items():
            where = f"sampling.logit_bias[{token_id}]"
            if token_id < 0:
                found.append(Violation(where, "the token id must be at least 0"))
            if not -100 <= bias <= 100:
                found.append(Violation(where, f"must be from -100 to 100, got {bias:g}"))
    return found + _texts("sampling.bad_words", sampling.bad_words, MAX_BAD_WORDS)


def _stop(request: GenerationRequest) -> list[Violation]:
    token_ids = request.stop.token_ids
    found = _texts("stop.sequences", request.stop.sequences, MAX_STOP_SEQUENCES)
    if len(token_ids) > MAX_STOP_TOKENS:
        found.append(Violation("stop.token_ids", f"at most {MAX_STOP_TOKENS}"))
    found += [
        Violation(f"stop.token_ids[{at}]", f"must be at least 0, got {token_id}")
        for at, token_id in enumerate(token_ids[:MAX_STOP_TOKENS])
        if token_id < 0
    ]
    return found


def _texts(field: str, texts: Sequence[str], most: int) -> list[Violation]:
    """Return what is wrong with a list of short texts."""
    found = [Violation(field, f"at most {most}")] if len(texts) > most else []
    for at, text in enumerate(texts[:most]):
        size = len(text.encode())
        if not 1 <= size <= MAX_STOP_BYTES:
            found.append(Violation(f"{field}[{at}]", f"must be 1 to {MAX_STOP_BYTES} bytes, got {size}"))
    return found


def _output(request: GenerationRequest) -> list[Violation]:
    top = request.output.top_logprobs
    if top is None:
        return []
    found = []
    if not request.output.logprobs:
        found.append(Violation("output.top_logprobs", "needs output.logprobs"))
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        found.append(Violation("output.top_logprobs", f"must be from 0 to {MAX_TOP_LOGPROBS}, got {top}"))
    return found


def _constraint(request: GenerationRequest) -> list[Violation]:
    constraint = request.constraint
    if constraint is None or constraint.kind is ConstraintKind.JSON_OBJECT:
        return []
    where = f"constraint.{constraint.kind.value}"
    # A blank is an expression as good as any.
    source = constraint.source if constraint.kind is ConstraintKind.REGEX else constraint.source.strip()
    if not source:
        return [Violation(where, "must not be empty")]
    if len(constraint.source.encode()) > MAX_CONSTRAINT_BYTES:
        return [Violation(where, f"must be at most {MAX_CONSTRAINT_BYTES} bytes")]
    if constraint.kind is ConstraintKind.JSON_SCHEMA:
        return schema_violations(where, constraint.source)
    if constraint.kind is ConstraintKind.CHOICE:
        return _choice(json.loads(constraint.source))
    return []


def _choice(texts: list[str]) -> list[Violation]:
    where = "constraint.choice.choices"
    if not texts:
        return [Violation(where, "must not be empty")]
    if len(texts) > MAX_CHOICE_TEXTS:
        return [Violation(where, f"at most {MAX_CHOICE_TEXTS}")]
    found = [
        Violation(f"{where}[{at}]", f"must be 1 to {MAX_CHOICE_BYTES} bytes, got {len(text.encode())}")
        for at, text in enumerate(texts)
        if not 1 <= len(text.encode()) <= MAX_CHOICE_BYTES
    ]
    if len(set(texts)) < len(texts):
        found.append(Violation(where, "must all be different"))
    return found
