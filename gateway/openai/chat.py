"""The body of a chat completion request and its translation to the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gateway.openai.constraints import FormatFields
from gateway.openai.fields import INT32_MAX, GenerationFields, Hint, Unserved
from gateway.openai.messages import Messages, add_messages
from gateway.openai.parameters import NO_CODE
from gateway.openai.template_args import TemplateFields
from gateway.openai.tools import ToolFields
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen

__all__ = ["ChatRequest", "reasoning_efforts"]

MAX_SAFETY_IDENTIFIER_CHARS: Final = 64
# More than there are.
MAX_MODALITIES: Final = 16

reasoning_efforts: Final[Mapping[str, chat_pb2.ReasoningEffort]] = {
    "none": chat_pb2.REASONING_EFFORT_NONE,
    "minimal": chat_pb2.REASONING_EFFORT_MINIMAL,
    "low": chat_pb2.REASONING_EFFORT_LOW,
    "medium": chat_pb2.REASONING_EFFORT_MEDIUM,
    "high": chat_pb2.REASONING_EFFORT_HIGH,
    "xhigh": chat_pb2.REASONING_EFFORT_XHIGH,
    "max": chat_pb2.REASONING_EFFORT_MAX,
}


class ChatRequest(ToolFields, TemplateFields, FormatFields, GenerationFields):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        default=None, description="Most tokens to generate per choice. With max_tokens as well, the smaller counts."
    )
    logprobs: bool | None = Field(default=None, description="Log probabilities of the generated tokens.")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        default=None, description="Alternatives per token; needs logprobs."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="For chat templates that know it."
    )
    modalities: Annotated[list[Literal["text"]], Field(max_length=MAX_MODALITIES, fail_fast=True)] | None = None
    safety_identifier: Annotated[str, Field(max_length=MAX_SAFETY_IDENTIFIER_CHARS)] | None = Field(
        default=None, description="The end user, for traces and logs; counts more than user."
    )
    prediction: Hint
    prompt_cache_key: Hint
    prompt_cache_options: Hint
    prompt_cache_retention: Hint
    verbosity: Hint
    audio: Unserved
    moderation: Unserved
    web_search_options: Unserved
    add_generation_prompt: Unserved
    chat_template: Unserved
    continue_final_message: Unserved
    documents: Unserved
    include_reasoning: Unserved

    @field_validator("top_logprobs")
    @classmethod
    def _only_with_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and "logprobs" in info.data and not info.data["logprobs"]:
            raise PydanticCustomError(
                NO_CODE, "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
            )
        return value

    def output_limit(self) -> tuple[int, str] | None:
        """Return the smaller of the two limits and its name."""
        limits = [(self.max_completion_tokens, "max_completion_tokens"), (self.max_tokens, "max_tokens")]
        return min(((limit, name) for limit, name in limits if limit is not None), default=None)

    def end_user(self) -> tuple[str, str] | None:
        """Return who the end user is and the name under which the caller said so."""
        return super().end_user() if self.safety_identifier is None else (self.safety_identifier, "safety_identifier")

    def names(self) -> dict[str, str]:
        """Return how this request spells those paths of the contract that can be spelled in several ways."""
        return {**super().names(), **self.tool_names()}

    def to_proto(self) -> gen.GenerateRequest:
        """Return the request of the contract."""
        end_user = self.end_user()
        request = gen.GenerateRequest(
            model=self.model,
            sampling=self.sampling_to_proto(),
            stop=self.stop_to_proto(),
            output=gen.OutputOptions(logprobs=bool(self.logprobs), top_logprobs=self.top_logprobs),
            constraint=self.constraint_to_proto(),
            choice_count=self.n,
            priority=self.priority(),
            end_user=None if end_user is None else end_user[0],
        )
        chat = request.chat
        add_messages(self.messages, chat.messages)
        self.add_tools(chat)
        if self.reasoning_effort is not None:
            chat.reasoning_effort = reasoning_efforts[self.reasoning_effort]
        self.add_template_args(chat)
        return request
