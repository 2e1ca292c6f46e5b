"""The body of a chat completion request and its translation to the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from google.protobuf.struct_pb2 import Struct
from pydantic import Discriminator, Field, JsonValue, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gateway.openai.fields import INT32_MAX, GenerationFields, Hint, RequestModel, Unserved, struct_from_json
from headrace.v1 import chat_pb2, sampling_pb2
from headrace.v1 import generation_pb2 as gen

__all__ = ["ChatMessage", "ChatRequest"]

# Bounds of the contract.
MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 1024
# Variables of a template are switches and small tables.
MAX_TEMPLATE_ARGS: Final = 64
MAX_TEMPLATE_ARGS_BYTES: Final = 16 * 1024

_ROLES: Final[Mapping[str, chat_pb2.Role]] = {
    "system": chat_pb2.ROLE_SYSTEM,
    "user": chat_pb2.ROLE_USER,
    "assistant": chat_pb2.ROLE_ASSISTANT,
    "developer": chat_pb2.ROLE_DEVELOPER,
}


class TextPart(RequestModel):
    """A part of a message; only text is served."""

    type: Literal["text"]
    text: str


def _content_kind(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<parts>" if isinstance(value, list) else None


_Content = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True), Tag("<parts>")],
    Discriminator(_content_kind),
]


class ChatMessage(RequestModel):
    """One message. Its content may be empty, and an assistant's may be absent."""

    role: Literal["system", "user", "assistant", "developer"]
    content: Annotated[_Content | None, Field(validate_default=True)] = None
    name: str | None = None
    tool_calls: Unserved
    function_call: Unserved
    audio: Unserved

    @field_validator("content")
    @classmethod
    def _required(cls, value: str | list[TextPart] | None, info: ValidationInfo) -> str | list[TextPart] | None:
        if value is None and info.data.get("role") not in {None, "assistant"}:
            raise PydanticCustomError("missing", "required")
        return value

    def to_proto(self) -> chat_pb2.ChatMessage:
        """Return the message with its texts in order."""
        texts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content or ()]
        return chat_pb2.ChatMessage(
            role=_ROLES[self.role], content=[chat_pb2.ContentPart(text=text) for text in texts], name=self.name or ""
        )


class JsonSchemaFormat(RequestModel):
    """A JSON Schema that the answer has to satisfy."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    schema_: Annotated[dict[str, JsonValue], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """What the answer has to look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[JsonSchemaFormat | None, Field(validate_default=True)] = None

    @field_validator("json_schema")
    @classmethod
    def _with_schema(cls, value: JsonSchemaFormat | None, info: ValidationInfo) -> JsonSchemaFormat | None:
        if value is None and info.data.get("type") == "json_schema":
            raise PydanticCustomError("missing", "required")
        return value

    def to_proto(self) -> sampling_pb2.OutputConstraint | None:
        """Return the constraint; None for free text."""
        if self.type == "json_object":
            return sampling_pb2.OutputConstraint(json_object=sampling_pb2.JsonObjectConstraint())
        if self.type == "json_schema" and self.json_schema is not None:
            return sampling_pb2.OutputConstraint(json_schema=json.dumps(self.json_schema.schema_))
        return None


def _least_size(value: Any, enough: int) -> int:
    """Return a lower bound of the bytes of `value` as JSON; stops counting above `enough`."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 4
    size = 2
    if isinstance(value, list | dict):
        if isinstance(value, dict):
            size += sum(map(len, value))
        for item in value.values() if isinstance(value, dict) else value:
            size += 1 + _least_size(item, enough)
            if size > enough:
                break
    return size - 1


class ChatRequest(GenerationFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        default=None, description="Most tokens to generate per choice. With max_tokens as well, the smaller counts."
    )
    logprobs: bool | None = Field(default=None, description="Log probabilities of the generated tokens.")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        default=None, description="Alternatives per token; needs logprobs."
    )
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = Field(
        default=None, description="Extension. Further variables for the chat template."
    )
    parallel_tool_calls: Hint
    prediction: Hint
    prompt_cache_key: Hint
    reasoning_effort: Hint
    safety_identifier: Hint
    verbosity: Hint
    tools: Unserved
    tool_choice: Unserved
    functions: Unserved
    function_call: Unserved
    modalities: Unserved
    audio: Unserved
    web_search_options: Unserved

    @field_validator("top_logprobs")
    @classmethod
    def _only_with_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and "logprobs" in info.data and not info.data["logprobs"]:
            raise PydanticCustomError(
                "invalid_parameter", "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
            )
        return value

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _small(cls, value: Any) -> Any:
        if isinstance(value, dict) and (
            len(value) > MAX_TEMPLATE_ARGS
            # To write numbers of thousands of digits takes seconds: not before they are known to be few.
            or _least_size(value, MAX_TEMPLATE_ARGS_BYTES) > MAX_TEMPLATE_ARGS_BYTES
            or len(json.dumps(value, ensure_ascii=False).encode()) > MAX_TEMPLATE_ARGS_BYTES
        ):
            raise PydanticCustomError(
                "invalid_value",
                "Invalid 'chat_template_kwargs': expected at most {members} members and {size} bytes of JSON.",
                {"members": MAX_TEMPLATE_ARGS, "size": MAX_TEMPLATE_ARGS_BYTES},
            )
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def _representable(cls, value: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        if value is not None:
            try:
                struct_from_json(value)
            except ValueError as error:
                raise PydanticCustomError(
                    "invalid_value", "Invalid 'chat_template_kwargs': {problem}", {"problem": str(error)}
                ) from error
        return value

    def output_limit(self) -> tuple[int, str] | None:
        """Return the smaller of the two limits and its name."""
        limits = [(self.max_completion_tokens, "max_completion_tokens"), (self.max_tokens, "max_tokens")]
        return min(((limit, name) for limit, name in limits if limit is not None), default=None)

    def to_proto(self) -> gen.GenerateRequest:
        """Return the request of the contract."""
        template_args: Struct | None = None
        if self.chat_template_kwargs:
            template_args = struct_from_json(self.chat_template_kwargs)
        return gen.GenerateRequest(
            model=self.model,
            chat=chat_pb2.ChatInput(
                messages=[message.to_proto() for message in self.messages], template_args=template_args
            ),
            sampling=self.sampling_to_proto(),
            stop=self.stop_to_proto(),
            output=gen.OutputOptions(logprobs=bool(self.logprobs), top_logprobs=self.top_logprobs),
            constraint=None if self.response_format is None else self.response_format.to_proto(),
            choice_count=self.n,
        )
