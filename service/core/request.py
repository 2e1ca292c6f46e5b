"""What a caller asks for, as plain values.

Built from the wire by `service.rpc.convert`, checked by `service.core.validate`.
Unset stays None: the model's defaults are applied later, so that 0 and unset
differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = [
    "Chat",
    "ChatMessage",
    "Constraint",
    "ConstraintKind",
    "GenerationRequest",
    "Input",
    "OutputOptions",
    "Prompt",
    "Role",
    "Sampling",
    "StopCriteria",
    "TokenIds",
]


class Role(Enum):
    """Author of a message; the value is the name that chat templates use."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    DEVELOPER = "developer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message; `content` is the joined text of its parts."""

    role: Role
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Raw text; the engine adds its special tokens."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIds:
    """Token ids, used as they are."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation for the model's chat template."""

    messages: tuple[ChatMessage, ...]
    # JSON-like values straight from google.protobuf.Struct.
    template_args: Mapping[str, Any] = field(default_factory=dict)


Input = Prompt | TokenIds | Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling controls; None is unset. Ranges: `service.core.validate`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_output_tokens: int | None = None
    min_output_tokens: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCriteria:
    """When to stop besides end of sequence."""

    sequences: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    include_in_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What the stream carries besides text. `top_logprobs` is 0 to 20."""

    token_ids: bool = False
    logprobs: bool = False
    top_logprobs: int | None = None


class ConstraintKind(Enum):
    """What the output has to satisfy."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A constraint; `source` is empty for JSON_OBJECT."""

    kind: ConstraintKind
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One generation request, as the caller sent it."""

    model: str
    input: Input
    sampling: Sampling = Sampling()
    stop: StopCriteria = StopCriteria()
    output: OutputOptions = OutputOptions()
    constraint: Constraint | None = None
    choice_count: int = 1
    # Seconds from receipt; None is no soft limit.
    time_limit_s: float | None = None
