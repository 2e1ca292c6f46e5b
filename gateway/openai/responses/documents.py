"""The shapes of responses and of the events of their streams, for the OpenAPI document and for tests.

The gateway does not build its answers from these: `document`, `item` and
`stream` write JSON directly. A test holds the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from gateway.openai.documents import ErrorBody, NativeFinishReason, ServiceTier, Timing, TokenLogprob

__all__ = ["ResponseObject", "ResponseStreamEvent"]


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class OutputText(_Document):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] = Field(max_length=0)
    logprobs: list[TokenLogprob] = Field(description="Empty unless they were asked for.")


class ReasoningText(_Document):
    """The text of reasoning."""

    type: Literal["reasoning_text"]
    text: str


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputMessage(_Document):
    """What the model said."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(_Document):
    """What the model thought, for models whose reasoning is told apart."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any] = Field(max_length=0)
    content: list[ReasoningText]


class OutputFunctionCall(_Document):
    """A call that the model asks for."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str = Field(description="Names the call in the function_call_output that answers it.")
    name: str
    arguments: str = Field(description="JSON text, unless the model made a mistake.")


ResponseItem = Annotated[OutputMessage | OutputReasoning | OutputFunctionCall, Field(discriminator="type")]


class InputTokensDetails(_Document):
    """Of the input tokens; 0 also where the engine does not say."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(_Document):
    """Of the output tokens; 0 also where the engine does not say."""

    reasoning_tokens: int


class ResponseUsage(_Document):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(_Document):
    """Why a response ended early."""

    reason: Literal["max_output_tokens"]


class ResponseFailure(_Document):
    """What went wrong in a stream that had begun."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class ResponseObject(_Document):
    """A response: a whole answer, and what the first and the last event of a stream carry."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"] = Field(
        description="Cancelled: somebody stopped it by its id; its stream ends as a failure."
    )
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ResponseItem]
    native_finish_reason: NativeFinishReason | None = Field(
        default=None, description="Extension. Only where it says more than incomplete_details."
    )
    usage: ResponseUsage | None = Field(description="Null while it runs, and if the engine does not count.")
    timing: Timing | None = None
    background: bool = Field(description="It runs without the connection that asked for it.")
    store: Literal[False] = Field(description="Nothing is stored here; what is kept goes away after minutes.")
    previous_response_id: None
    # Of the request.
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: ServiceTier
    temperature: float | None = Field(description="Null where the model's default counts.")
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    user: str | None


class _Event(_Document):
    sequence_number: int = Field(description="From 0, without gaps.")


class _ItemEvent(_Event):
    item_id: str
    output_index: int


class _ContentEvent(_ItemEvent):
    content_index: int


class ResponseLifecycleEvent(_Event):
    """The response as a whole: as it begins and as it ends."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseObject


class OutputItemEvent(_Event):
    """An item begins or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: ResponseItem


class ContentPartEvent(_ContentEvent):
    """The content of an item begins or ends."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Annotated[OutputText | ReasoningText, Field(discriminator="type")]


class OutputTextDelta(_ContentEvent):
    """A piece of the text."""

    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class OutputTextDone(_ContentEvent):
    """The whole text."""

    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ReasoningTextDelta(_ContentEvent):
    """A piece of the reasoning."""

    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningTextDone(_ContentEvent):
    """The whole reasoning."""

    type: Literal["response.reasoning_text.done"]
    text: str


class ArgumentsDelta(_ItemEvent):
    """A piece of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_ItemEvent):
    """The whole arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class ResponseErrorEvent(_Event):
    """What went wrong; response.failed follows it if the response had begun."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None
    error: ErrorBody = Field(description="The same again, where the official SDKs look for it.")


class ResponseStreamEvent(
    RootModel[
        Annotated[
            ResponseLifecycleEvent
            | OutputItemEvent
            | ContentPartEvent
            | OutputTextDelta
            | OutputTextDone
            | ReasoningTextDelta
            | ReasoningTextDone
            | ArgumentsDelta
            | ArgumentsDone
            | ResponseErrorEvent,
            Field(discriminator="type"),
        ]
    ]
):
    """One event of a streamed response."""
