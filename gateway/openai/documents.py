"""The shapes of answers, for the OpenAPI document and for whoever checks answers against it.

The gateway does not build its answers from these: `answers` and `chunks`
write JSON directly. A test holds the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ChatCompletion",
    "ChatCompletionChunk",
    "Completion",
    "CompletionChunk",
    "ErrorDocument",
    "Model",
    "ModelList",
    "NativeFinishReason",
]

FinishReason = Literal["stop", "length", "tool_calls"]
# What finish_reason has no word for.
NativeFinishReason = Literal["context_length", "time_limit"]
_NATIVE = (
    "Extension. Only where it says more than finish_reason: the context window is full, or Time-Limit-Ms was over."
)
ServiceTier = Literal["default", "flex", "priority"]


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class ErrorBody(_Document):
    """What went wrong."""

    message: str = Field(description="For people: names every problem and what the caller can do.")
    type: str = Field(description="Kind of failure, for example invalid_request_error or server_error.")
    param: str | None = Field(description="The JSON member at fault; the first of several.")
    code: str | None = Field(description="Stable name of the failure, for programs.")


class ErrorDocument(_Document):
    """Every error: the body of a 4xx or 5xx, and the last event of a stream that fails on its way."""

    error: ErrorBody


class CachedTokens(_Document):
    """Of the prompt tokens."""

    cached_tokens: int = Field(description="Served from the engine's prefix cache.")


class ReasoningTokens(_Document):
    """Of the completion tokens."""

    reasoning_tokens: int = Field(description="Reasoning, which is told apart from the answer.")


class Usage(_Document):
    """Token counts over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | None = None
    completion_tokens_details: ReasoningTokens | None = None


class Timing(_Document):
    """Extension: where the time went, milliseconds on the service's clock; null where a point was not reached."""

    queue_ms: float | None
    prefill_ms: float | None
    time_to_first_token_ms: float | None
    decode_ms: float | None
    total_ms: float | None
    output_tokens_per_second: float


class TopLogprob(_Document):
    """An alternative token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(_Document):
    """A generated token."""

    token: str
    logprob: float | None = Field(description="-9999 stands for never; null if the engine does not say.")
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Document):
    """Log probabilities of a chat choice."""

    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(_Document):
    """Log probabilities of a completion choice: four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None]]
    text_offset: list[int]


class CalledFunction(_Document):
    """The function to call."""

    name: str
    arguments: str = Field(description="JSON text, unless the model made a mistake.")


class ToolCall(_Document):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(_Document):
    """The answer of a chat choice."""

    role: Literal["assistant"]
    content: str | None = Field(description="Null if there are tool calls and no text.")
    refusal: None
    annotations: list[Any] = Field(max_length=0)
    reasoning_content: str | None = Field(default=None, description="Extension. Reasoning, if there was some.")
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] | None = None


class ChatChoice(_Document):
    """One choice of a chat completion."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    native_finish_reason: NativeFinishReason | None = Field(default=None, description=_NATIVE)


class ChatCompletion(_Document):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: ServiceTier | None = Field(default=None, description="Only if one was asked for.")
    choices: list[ChatChoice]
    usage: Usage | None = Field(description="Null if the engine does not count.")
    timing: Timing | None = None


class FunctionDelta(_Document):
    """What a chunk adds to a call."""

    name: str | None = None
    arguments: str


class ToolCallDelta(_Document):
    """A piece of a call; id, type and name come with the first one."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(_Document):
    """What a chunk adds to the message; empty in the last one of a choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCallDelta], Field(min_length=1, max_length=1)] | None = None


class ChatChunkChoice(_Document):
    """One choice of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    native_finish_reason: NativeFinishReason | None = Field(default=None, description=_NATIVE)


class ChatCompletionChunk(_Document):
    """One event of a chat stream; `data: [DONE]` follows the last one."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str | None = None
    service_tier: ServiceTier | None = None
    choices: list[ChatChunkChoice] = Field(description="Empty in the usage chunk.")
    usage: Usage | None = Field(
        default=None, description="Only with stream_options.include_usage; null but in the last."
    )
    timing: Timing | None = None


class CompletionChoice(_Document):
    """One choice of a completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    native_finish_reason: NativeFinishReason | None = Field(default=None, description=_NATIVE)


class Completion(_Document):
    """A whole completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: ServiceTier | None = Field(default=None, description="Only if one was asked for.")
    choices: list[CompletionChoice]
    usage: Usage | None
    timing: Timing | None = None


class CompletionChunkChoice(_Document):
    """One choice of a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    native_finish_reason: NativeFinishReason | None = Field(default=None, description=_NATIVE)


class CompletionChunk(_Document):
    """One event of a completion stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None = None
    service_tier: ServiceTier | None = None
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
    timing: Timing | None = None


class Model(_Document):
    """One model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(_Document):
    """The models."""

    object: Literal["list"]
    data: list[Model]
