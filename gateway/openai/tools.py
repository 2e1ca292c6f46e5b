"""Tools of a chat completion request and the choice among them.

Functions are the only tools. What contradicts itself is told here, before the
service is asked, and all of it at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from gateway.openai.base import RequestModel
from gateway.openai.json_values import ToolSchemaText
from gateway.openai.parameters import NO_CODE, Unserved
from headrace.v1 import chat_pb2

__all__ = ["FunctionTool", "ToolFields"]

# Bounds of the contract.
MAX_TOOLS: Final = 128

ToolName = Annotated[str, Field(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]


class FunctionDefinition(RequestModel):
    """A function that the model may call; the caller runs it."""

    name: ToolName
    description: str | None = None
    parameters: ToolSchemaText | None = Field(default=None, description="JSON Schema of the arguments.")
    strict: bool | None = Field(
        default=None, description="The arguments follow the schema; they do where tool_choice forces the call."
    )


class FunctionTool(RequestModel):
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(RequestModel):
    """One of the functions in `tools`."""

    name: str


class FunctionChoice(RequestModel):
    """The one function to call."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(RequestModel):
    """Some of the tools, and whether one of them has to be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedToolsChoice(RequestModel):
    """Restricts the tools to some of them."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class _OtherChoice(RequestModel):
    type: Literal["function", "allowed_tools"]


def _choice_kind(value: Any) -> str:
    if not isinstance(value, dict):
        return "<mode>" if isinstance(value, str) else "<other>"
    kind = value.get("type")
    return f"<{kind}>" if kind in ("function", "allowed_tools") else "<other>"


_ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[FunctionChoice, Tag("<function>")]
    | Annotated[AllowedToolsChoice, Tag("<allowed_tools>")]
    | Annotated[SkipJsonSchema[_OtherChoice], Tag("<other>")],
    Discriminator(_choice_kind),
]
_MODES: Final[Mapping[str, chat_pb2.ToolChoiceMode]] = {
    "none": chat_pb2.TOOL_CHOICE_MODE_NONE,
    "auto": chat_pb2.TOOL_CHOICE_MODE_AUTO,
    "required": chat_pb2.TOOL_CHOICE_MODE_REQUIRED,
}


class ToolFields(RequestModel):
    """Members that offer tools."""

    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Annotated[_ToolChoice | None, Field(description="auto if there are tools.")] = None
    parallel_tool_calls: bool | None = Field(
        default=None, description="False ends the answer with its first call; true if absent."
    )
    functions: Unserved
    function_call: Unserved

    @field_validator("tools")
    @classmethod
    def _names_differ(cls, tools: list[FunctionTool] | None) -> list[FunctionTool] | None:
        seen: set[str] = set()
        for at, tool in enumerate(tools or ()):
            name = tool.function.name
            if name in seen:
                where = f"tools[{at}].function.name"
                raise PydanticCustomError(
                    "invalid_value",
                    "Invalid '{param}': '{name}' is the name of another tool already.",
                    {"param": where, "name": name},
                )
            seen.add(name)
        return tools

    @field_validator("tool_choice")
    @classmethod
    def _among_the_tools(cls, choice: Any, info: ValidationInfo) -> Any:
        if choice in (None, "none", "auto") or "tools" not in info.data:
            return choice
        tools: list[FunctionTool] = info.data["tools"] or []
        if not tools:
            raise PydanticCustomError(
                NO_CODE, "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
            )
        known = {tool.function.name for tool in tools}
        for where, name in _named(choice):
            if name not in known:
                raise PydanticCustomError(
                    "invalid_value",
                    "Invalid value for '{param}': '{name}' is not among the names in 'tools'.",
                    {"param": where, "name": name[:64]},
                )
        return choice

    def add_tools(self, chat: chat_pb2.ChatInput) -> None:
        """Put the tools and the choice into `chat`; those that must not be called are left out."""
        offered = self._offered()
        if not offered:
            return
        for _, tool in offered:
            function = tool.function
            chat.tools.add().function.MergeFrom(
                chat_pb2.FunctionTool(
                    name=function.name,
                    description=function.description or "",
                    parameters_json_schema=function.parameters or "",
                    strict=bool(function.strict),
                )
            )
        if self.parallel_tool_calls is not None:
            chat.parallel_tool_calls = self.parallel_tool_calls
        match self.tool_choice:
            case str() as mode:
                chat.tool_choice.mode = _MODES[mode]
            case FunctionChoice(function=function_choice):
                chat.tool_choice.function_name = function_choice.name
            case AllowedToolsChoice(allowed_tools=allowed):
                chat.tool_choice.mode = _MODES[allowed.mode]

    def tool_names(self) -> dict[str, str]:
        """Return how this request spells the contract's paths of its tools, where their numbers differ."""
        moved = [(at, place) for at, (place, _) in enumerate(self._offered()) if at != place]
        return {f"chat.tools[{at}]": f"tools[{place}]" for at, place in moved}

    def _offered(self) -> Sequence[tuple[int, FunctionTool]]:
        """Return the tools that the model may see, with their places in the request."""
        tools = list(enumerate(self.tools or ()))
        if not isinstance(self.tool_choice, AllowedToolsChoice):
            return tools
        allowed = {choice.function.name for choice in self.tool_choice.allowed_tools.tools}
        return [(place, tool) for place, tool in tools if tool.function.name in allowed]


def _named(choice: Any) -> Iterable[tuple[str, str]]:
    if isinstance(choice, FunctionChoice):
        yield "tool_choice.function.name", choice.function.name
    elif isinstance(choice, AllowedToolsChoice):
        for at, tool in enumerate(choice.allowed_tools.tools):
            yield f"tool_choice.allowed_tools.tools[{at}].function.name", tool.function.name
