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
    "Priority",
    "Prompt",
    "ReasoningEffort",
    "Role",
    "Sampling",
    "StopCriteria",
    "TokenIds",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolChoiceMode",
]


class Role(Enum):
    """Author of a message; the value is the name that chat templates use."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    DEVELOPER = "developer"


class ReasoningEffort(Enum):
    """How much to reason; the value is the word that chat templates use."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


class Priority(Enum):
    """Scheduling class."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call; `parameters` is a JSON Schema as text, empty for none."""

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool = False


class ToolChoiceMode(Enum):
    """Whether to call a tool."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """A mode, or the one function to call; `function` wins where it is set."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    function: str | None = None

    @property
    def is_forced(self) -> bool:
        """True if the answer has to be a call."""
        return self.function is not None or self.mode is ToolChoiceMode.REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an assistant made; `arguments` is the text as it was written, which should be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message; `content` is the joined text of its parts.

    `tool_calls` and `reasoning` are an assistant's; `tool_call_id` is the call
    that a message of role TOOL answers.
    """

    role: Role
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


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
    tools: tuple[Tool, ...] = ()
    # None: the model decides if there are tools.
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: ReasoningEffort | None = None


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
    queue_events: bool = False


class ConstraintKind(Enum):
    """What the output has to satisfy."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A constraint; `source` is empty for JSON_OBJECT, and a JSON array of texts for CHOICE."""

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
    priority: Priority = Priority.INTERACTIVE
    # Opaque; for logs and traces only.
    end_user: str = ""
