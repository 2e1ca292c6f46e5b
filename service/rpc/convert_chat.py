"""A conversation from the wire to values, shared by every RPC that takes one."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import json_format

from headrace.v1 import chat_pb2
from service.core.errors import Violation
from service.core.request import (
    Chat,
    ChatMessage,
    ReasoningEffort,
    Role,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)
from service.core.validate_chat import MAX_MESSAGES, MAX_TOOL_CALLS, MAX_TOOLS

__all__ = ["chat_from_proto"]

MAX_PARTS: Final = 1024
MAX_TEMPLATE_ARGS_BYTES: Final = 16 * 1024

_ROLES: Final = {
    chat_pb2.ROLE_SYSTEM: Role.SYSTEM,
    chat_pb2.ROLE_USER: Role.USER,
    chat_pb2.ROLE_ASSISTANT: Role.ASSISTANT,
    chat_pb2.ROLE_TOOL: Role.TOOL,
    chat_pb2.ROLE_DEVELOPER: Role.DEVELOPER,
}
_EFFORTS: Final = {
    chat_pb2.REASONING_EFFORT_UNSPECIFIED: None,
    chat_pb2.REASONING_EFFORT_NONE: ReasoningEffort.NONE,
    chat_pb2.REASONING_EFFORT_MINIMAL: ReasoningEffort.MINIMAL,
    chat_pb2.REASONING_EFFORT_LOW: ReasoningEffort.LOW,
    chat_pb2.REASONING_EFFORT_MEDIUM: ReasoningEffort.MEDIUM,
    chat_pb2.REASONING_EFFORT_HIGH: ReasoningEffort.HIGH,
    chat_pb2.REASONING_EFFORT_XHIGH: ReasoningEffort.XHIGH,
    chat_pb2.REASONING_EFFORT_MAX: ReasoningEffort.MAX,
}
_MODES: Final = {
    chat_pb2.TOOL_CHOICE_MODE_UNSPECIFIED: ToolChoiceMode.AUTO,
    chat_pb2.TOOL_CHOICE_MODE_NONE: ToolChoiceMode.NONE,
    chat_pb2.TOOL_CHOICE_MODE_AUTO: ToolChoiceMode.AUTO,
    chat_pb2.TOOL_CHOICE_MODE_REQUIRED: ToolChoiceMode.REQUIRED,
}


def chat_from_proto(message: chat_pb2.ChatInput, where: str, found: list[Violation]) -> Chat:
    """Return the conversation; what is wrong with its shape is added to `found` under the field path `where`.

    Lists are cut just past their bounds: the check of the values names them, and
    no list, however long, holds up the loop.
    """
    effort = _EFFORTS.get(message.reasoning_effort)
    if message.reasoning_effort not in _EFFORTS:
        found.append(Violation(f"{where}.reasoning_effort", f"{message.reasoning_effort} is unknown"))
    return Chat(
        messages=tuple(
            _message(one, f"{where}.messages[{at}]", found)
            for at, one in enumerate(message.messages[: MAX_MESSAGES + 1])
        ),
        tools=tuple(_tool(one, f"{where}.tools[{at}]", found) for at, one in enumerate(message.tools[: MAX_TOOLS + 1])),
        tool_choice=_choice(message, f"{where}.tool_choice", found),
        parallel_tool_calls=message.parallel_tool_calls if message.HasField("parallel_tool_calls") else True,
        template_args=_template_args(message, f"{where}.template_args", found),
        reasoning_effort=effort,
    )


def _message(one: chat_pb2.ChatMessage, where: str, found: list[Violation]) -> ChatMessage:
    role = _ROLES.get(one.role)
    if role is None:
        found.append(Violation(f"{where}.role", "required: system, developer, user, assistant or tool"))
        role = Role.USER
    if len(one.content) > MAX_PARTS:
        found.append(Violation(f"{where}.content", f"at most {MAX_PARTS} parts"))
    parts = one.content[:MAX_PARTS]
    for at, part in enumerate(parts):
        if part.WhichOneof("part") is None:
            found.append(Violation(f"{where}.content[{at}]", "required: set text"))
            break  # there may be millions
    calls = (
        tuple(
            ToolCall(id=call.id, name=call.function_name, arguments=call.arguments_json)
            for call in one.tool_calls[: MAX_TOOL_CALLS + 1]
        )
        if one.tool_calls
        else ()
    )
    return ChatMessage(
        role=role,
        content="".join(part.text for part in parts),
        name=one.name or None,
        tool_calls=calls,
        tool_call_id=one.tool_call_id or None,
        reasoning=one.reasoning_text or None,
    )


def _tool(one: chat_pb2.Tool, where: str, found: list[Violation]) -> Tool:
    if one.WhichOneof("kind") is None:
        found.append(Violation(where, "required: set function"))
        return Tool(name="_")
    function = one.function
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters_json_schema,
        strict=function.strict,
    )


def _choice(message: chat_pb2.ChatInput, where: str, found: list[Violation]) -> ToolChoice | None:
    if not message.HasField("tool_choice"):
        return None
    match message.tool_choice.WhichOneof("choice"):
        case "mode":
            mode = _MODES.get(message.tool_choice.mode)
            if mode is None:
                found.append(Violation(f"{where}.mode", f"{message.tool_choice.mode} is unknown"))
                return None
            return ToolChoice(mode=mode)
        case "function_name":
            return ToolChoice(function=message.tool_choice.function_name)
        case _:
            found.append(Violation(where, "required: set mode or function_name"))
            return None


def _template_args(message: chat_pb2.ChatInput, where: str, found: list[Violation]) -> dict[str, Any]:
    if message.template_args.ByteSize() > MAX_TEMPLATE_ARGS_BYTES:
        found.append(Violation(where, f"at most {MAX_TEMPLATE_ARGS_BYTES} bytes"))
        return {}
    try:
        return json_format.MessageToDict(message.template_args)
    except (ValueError, json_format.SerializeToJsonError) as error:  # NaN and infinity
        found.append(Violation(where, f"is no JSON: {error}"))
        return {}
