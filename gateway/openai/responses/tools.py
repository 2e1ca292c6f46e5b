"""Tools and the choice among them, in the flat form of this API.

Functions are the only tools: those that another server would run by itself are
refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from gateway.openai.base import RequestModel
from gateway.openai.json_values import ToolSchemaText
from gateway.openai.parameters import Hint
from gateway.openai.responses.options import ascii_text
from gateway.openai.tools import MAX_TOOLS, ToolName
from headrace.v1 import chat_pb2

__all__ = ["AllowedFunctions", "Choice", "ChosenFunction", "ResponseTool", "ToolChoice", "ToolOffer"]


def _served(value: Any) -> Any:
    if isinstance(value, str) and value != "function":
        raise PydanticCustomError(
            "unsupported_value",
            "Unsupported value: this server has no tool of type '{kind}'; it takes tools of type 'function'.",
            {"kind": value[:64]},
        )
    return value


_Function = Annotated[Literal["function"], BeforeValidator(_served)]


class ResponseTool(RequestModel):
    """A function that the model may call; the caller runs it."""

    type: _Function
    name: ToolName
    description: str | None = None
    parameters: ToolSchemaText | None = Field(default=None, description="JSON Schema of the arguments.")
    strict: bool | None = Field(
        default=None, description="The arguments follow the schema; they do where tool_choice forces the call."
    )
    # All of them are sent to the model at once, and only the caller calls them.
    defer_loading: Hint
    allowed_callers: Hint

    def to_proto(self) -> chat_pb2.FunctionTool:
        """Return the function of the contract."""
        return chat_pb2.FunctionTool(
            name=self.name,
            description=self.description or "",
            parameters_json_schema=self.parameters or "",
            strict=bool(self.strict),
        )

    def document(self) -> str:
        """Return the tool as the response repeats it, as JSON text."""
        top = {"type": "function", "name": self.name, "description": self.description, "strict": bool(self.strict)}
        parameters = ascii_text(self.parameters) if self.parameters is not None else "null"
        return f'{json.dumps(top)[:-1]},"parameters":{parameters}}}'


class ChosenFunction(RequestModel):
    """One function: the one to call, or one of those that may be called."""

    type: _Function
    name: ToolName


class AllowedFunctions(RequestModel):
    """Some of the tools; the model sees no others."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenFunction], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


def _choice_kind(value: Any) -> str:
    if isinstance(value, dict):
        return "<allowed>" if value.get("type") == "allowed_tools" else "<function>"
    return "<mode>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[ChosenFunction, Tag("<function>")]
    | Annotated[AllowedFunctions, Tag("<allowed>")],
    Discriminator(_choice_kind),
]

Choice = str | ChosenFunction | AllowedFunctions | None

_MODES: Final = {
    "none": chat_pb2.TOOL_CHOICE_MODE_NONE,
    "auto": chat_pb2.TOOL_CHOICE_MODE_AUTO,
    "required": chat_pb2.TOOL_CHOICE_MODE_REQUIRED,
}


class ToolOffer:
    """The tools that the model sees, and which it has to call; `places` are their indices in the request."""

    def __init__(self, tools: Sequence[ResponseTool], choice: Choice) -> None:
        self._tools = tools
        self._choice = choice
        self.places: Sequence[int] = range(len(tools))
        if isinstance(choice, AllowedFunctions):
            allowed = {tool.name for tool in choice.tools}
            self.places = [at for at in self.places if tools[at].name in allowed]

    def add_to(self, chat: chat_pb2.ChatInput) -> None:
        """Put tools and choice into `chat`."""
        for at in self.places:
            chat.tools.add().function.CopyFrom(self._tools[at].to_proto())
        if isinstance(self._choice, ChosenFunction):
            chat.tool_choice.function_name = self._choice.name
        elif self._choice is not None:
            mode = self._choice.mode if isinstance(self._choice, AllowedFunctions) else self._choice
            chat.tool_choice.mode = _MODES[mode]
