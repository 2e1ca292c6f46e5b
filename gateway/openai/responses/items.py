"""The items of a request's `input`: their schema. What they mean as a conversation is in `turns`.

Items are told apart by `type`, which a message may leave out. Items of tools
that this server does not have, and references to stored items, are refused by
name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from gateway.openai.base import RequestModel

__all__ = ["Content", "FunctionCall", "FunctionCallOutput", "Input", "InputItem", "InputMessage", "ReasoningItem"]

# Bounds of the contract: an item is at most one message.
MAX_ITEMS: Final = 4096
MAX_PARTS: Final = 1024
MAX_CALL_ID_CHARS: Final = 256
MAX_NAME_CHARS: Final = 64


class InputText(RequestModel):
    """A text, of whichever author."""

    type: Literal["input_text", "output_text"]
    text: str


class Refusal(RequestModel):
    """What the model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """Return the words of the refusal."""
        return self.refusal


def _part_kind(value: Any) -> str:
    return "<refusal>" if isinstance(value, dict) and value.get("type") == "refusal" else "<part>"


_Part = Annotated[Annotated[InputText, Tag("<part>")] | Annotated[Refusal, Tag("<refusal>")], Discriminator(_part_kind)]


def _content_kind(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<parts>" if isinstance(value, list) else None


_Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[_Part], Field(max_length=MAX_PARTS, fail_fast=True), Tag("<parts>")],
    Discriminator(_content_kind),
]


# Texts in their order, of a message or of what a call returned.
Content = str | Sequence[InputText | Refusal]


class InputMessage(RequestModel):
    """A message of any author, in the short form or with parts; an earlier answer is sent back as it came."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


_CallId = Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID_CHARS)]


class FunctionCall(RequestModel):
    """A call that the model made in an earlier turn."""

    type: Literal["function_call"]
    call_id: _CallId
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    arguments: Annotated[str, Field(description="JSON text, as the model wrote it.")]


class FunctionCallOutput(RequestModel):
    """What a call returned."""

    type: Literal["function_call_output"]
    call_id: _CallId
    output: _Content


class ReasoningPart(RequestModel):
    """A piece of reasoning or of its summary."""

    text: str


class ReasoningItem(RequestModel):
    """Reasoning of an earlier turn, for templates that use it. A summary stands in where the text is missing."""

    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    content: Annotated[list[ReasoningPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    encrypted_content: str | None = None

    @field_validator("encrypted_content")
    @classmethod
    def _readable(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value and not info.data.get("content") and not info.data.get("summary"):
            raise PydanticCustomError(
                "unsupported_value",
                "Unsupported value: reasoning that another server encrypted cannot be read by this one.",
            )
        return value

    @property
    def text(self) -> str:
        """Return the reasoning, possibly empty."""
        return "".join(part.text for part in self.content or self.summary or ())


class OtherItem(RequestModel):
    """Stands for every item that is not served: always refused."""

    type: str

    @field_validator("type")
    @classmethod
    def _refuse(cls, value: str) -> str:
        if value == "item_reference":
            raise PydanticCustomError(
                "unsupported_value",
                "Unsupported value: this server stores nothing that an 'item_reference' could name. "
                "Send the item itself.",
            )
        expected = "'message', 'function_call', 'function_call_output' or 'reasoning'"
        raise PydanticKnownError("literal_error", {"expected": expected})


_TAGS: Final = {
    None: "<message>",
    "message": "<message>",
    "function_call": "<call>",
    "function_call_output": "<output>",
    "reasoning": "<reasoning>",
}


def _item_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else ""
    return _TAGS.get(kind, "<other>") if kind is None or isinstance(kind, str) else "<other>"


InputItem = InputMessage | FunctionCall | FunctionCallOutput | ReasoningItem | OtherItem
_Item = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[FunctionCall, Tag("<call>")]
    | Annotated[FunctionCallOutput, Tag("<output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[SkipJsonSchema[OtherItem], Tag("<other>")],
    Discriminator(_item_kind),
]
Input = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[_Item], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True), Tag("<parts>")],
    Discriminator(_content_kind),
]
