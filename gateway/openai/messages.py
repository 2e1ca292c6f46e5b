"""The messages of a chat completion request: their schema, and their way into the contract.

A message is read by its role, so that each has the members that it may have and
no check is left to Python: a hundred messages are read in a fraction of a
millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from pydantic import Discriminator, Field, Tag

from gateway.openai.base import RequestModel
from gateway.openai.parameters import Unserved
from headrace.v1 import chat_pb2

__all__ = ["Message", "Messages", "add_messages"]

# Bounds of the contract.
MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 1024
MAX_TOOL_CALLS: Final = 128
MAX_CALL_ID_CHARS: Final = 256
MAX_NAME_CHARS: Final = 64

# What a request's messages are appended to.
Target = RepeatedCompositeFieldContainer[chat_pb2.ChatMessage]


class TextPart(RequestModel):
    """A part of a message; only text is served."""

    type: Literal["text"]
    text: str


class RefusalPart(RequestModel):
    """A part of an earlier answer with which the model refused."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """Return the text of the refusal."""
        return self.refusal


def _content_kind(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<parts>" if isinstance(value, list) else None


def _part_kind(value: Any) -> str:
    return "<refusal>" if isinstance(value, dict) and value.get("type") == "refusal" else "<text>"


_Content = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True), Tag("<parts>")],
    Discriminator(_content_kind),
]
_AnswerPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[RefusalPart, Tag("<refusal>")], Discriminator(_part_kind)
]
_AnswerContent = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[_AnswerPart], Field(max_length=MAX_PARTS, fail_fast=True), Tag("<parts>")],
    Discriminator(_content_kind),
]
_CallId = Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID_CHARS)]


class InstructionMessage(RequestModel):
    """Instructions."""

    role: Literal["system", "developer"]
    content: _Content
    name: str | None = None


class UserMessage(RequestModel):
    """What the person said."""

    role: Literal["user"]
    content: _Content
    name: str | None = None


class EarlierFunction(RequestModel):
    """The function of an earlier call, and its arguments as the model wrote them."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    arguments: str


class EarlierCall(RequestModel):
    """An earlier call."""

    id: _CallId
    type: Literal["function"]
    function: EarlierFunction


class AssistantMessage(RequestModel):
    """An earlier answer of the model. Its content may be empty or absent."""

    role: Literal["assistant"]
    content: _AnswerContent | None = None
    refusal: str | None = None
    name: str | None = None
    reasoning_content: str | None = Field(default=None, description="Extension. Reasoning, for templates that use it.")
    reasoning: str | None = Field(default=None, description="Extension. Another name of reasoning_content.")
    tool_calls: Annotated[list[EarlierCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None
    function_call: Unserved
    audio: Unserved


class ToolMessage(RequestModel):
    """The result of a tool call."""

    role: Literal["tool"]
    content: _Content
    tool_call_id: _CallId
    name: str | None = None


_ROLES: Final[Mapping[str, chat_pb2.Role]] = {
    "system": chat_pb2.ROLE_SYSTEM,
    "user": chat_pb2.ROLE_USER,
    "assistant": chat_pb2.ROLE_ASSISTANT,
    "developer": chat_pb2.ROLE_DEVELOPER,
    "tool": chat_pb2.ROLE_TOOL,
}

Message = InstructionMessage | UserMessage | AssistantMessage | ToolMessage
Messages = Annotated[
    list[Annotated[Message, Field(discriminator="role")]],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
]


def add_messages(messages: list[Message], target: Target) -> None:
    """Append `messages` to those of a request, their texts in order."""
    add = target.add
    for message in messages:
        # Filled in place: a message that is built first is copied with all its text.
        added = add()
        added.role = _ROLES[message.role]
        content = message.content
        if isinstance(content, str):
            added.content.add().text = content
        elif content is not None:
            for part in content:
                added.content.add().text = part.text
        if message.name is not None:
            added.name = message.name
        if isinstance(message, AssistantMessage):
            _add_turn(message, added)
        elif isinstance(message, ToolMessage):
            added.tool_call_id = message.tool_call_id


def _add_turn(message: AssistantMessage, added: chat_pb2.ChatMessage) -> None:
    if message.refusal is not None:
        added.content.add().text = message.refusal
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if reasoning is not None:
        added.reasoning_text = reasoning
    for call in message.tool_calls or ():
        added.tool_calls.add(id=call.id, function_name=call.function.name, arguments_json=call.function.arguments)
