"""The bounds of a conversation: messages, tools, tool calls and the choice among tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from service.core.errors import Violation
from service.core.request import Chat, ChatMessage, Role, Tool
from service.core.schema import schema_violations

__all__ = ["MAX_MESSAGES", "MAX_TOOLS", "MAX_TOOL_CALLS", "chat_violations"]

MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 128
MAX_TOOLS_BYTES: Final = 256 * 1024
MAX_TOOL_CALLS: Final = 128
MAX_ARGUMENTS_BYTES: Final = 1024 * 1024
MAX_CALL_ID_CHARS: Final = 256
# Half a million calls can be wrong in one request, and no error has room for so many.
_ENOUGH: Final = 1000
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# How a schema says that it takes objects and nothing else.
_OBJECT_TYPES: Final = ("object", ["object"])
_NAME_RULE: Final = "must be 1 to 64 of a-z, A-Z, 0-9, underscore, dash"


def chat_violations(chat: Chat) -> list[Violation]:
    """Return everything that is wrong with `chat` for any model."""
    found: list[Violation] = []
    if not chat.messages:
        found.append(Violation("chat.messages", "must not be empty"))
    elif len(chat.messages) > MAX_MESSAGES:
        found.append(Violation("chat.messages", f"at most {MAX_MESSAGES}"))
    found += islice(_messages(chat.messages[:MAX_MESSAGES]), _ENOUGH)
    return [*found, *_tools(chat.tools), *_choice(chat)]


def _messages(messages: tuple[ChatMessage, ...]) -> Iterator[Violation]:
    size = sum(len(call.arguments.encode()) for message in messages for call in message.tool_calls)
    if size > MAX_ARGUMENTS_BYTES:
        rule = f"the arguments of all tool calls have at most {MAX_ARGUMENTS_BYTES} bytes, got {size}"
        yield Violation("chat.messages", rule)
    for at, message in enumerate(messages):
        if message.tool_calls or message.tool_call_id is not None or message.role is Role.TOOL:
            yield from _tool_parts(f"chat.messages[{at}]", message)


def _tool_parts(where: str, message: ChatMessage) -> Iterator[Violation]:
    calls, call_id = message.tool_calls, message.tool_call_id
    if calls and message.role is not Role.ASSISTANT:
        yield Violation(f"{where}.tool_calls", "only an assistant's message has tool calls")
    if len(calls) > MAX_TOOL_CALLS:
        yield Violation(f"{where}.tool_calls", f"at most {MAX_TOOL_CALLS}")
    for at, call in enumerate(calls[:MAX_TOOL_CALLS]):
        if not 1 <= len(call.id) <= MAX_CALL_ID_CHARS:
            yield Violation(f"{where}.tool_calls[{at}].id", f"must be 1 to {MAX_CALL_ID_CHARS} characters")
        if not _NAME.fullmatch(call.name):
            yield Violation(f"{where}.tool_calls[{at}].function_name", _NAME_RULE)
    if message.role is Role.TOOL:
        if not 1 <= len(call_id or "") <= MAX_CALL_ID_CHARS:
            yield Violation(f"{where}.tool_call_id", f"required for role tool: 1 to {MAX_CALL_ID_CHARS} characters")
    elif call_id is not None:
        yield Violation(f"{where}.tool_call_id", "only a message of role tool has one")


def _tools(tools: tuple[Tool, ...]) -> Iterator[Violation]:
    if len(tools) > MAX_TOOLS:
        yield Violation("chat.tools", f"at most {MAX_TOOLS}")
    size = sum(len(tool.name) + len(tool.description.encode()) + len(tool.parameters.encode()) for tool in tools)
    if size > MAX_TOOLS_BYTES:
        yield Violation("chat.tools", f"at most {MAX_TOOLS_BYTES} bytes in all, got {size}")
        return
    seen: set[str] = set()
    for at, tool in enumerate(tools[:MAX_TOOLS]):
        where = f"chat.tools[{at}].function"
        if not _NAME.fullmatch(tool.name):
            yield Violation(f"{where}.name", _NAME_RULE)
        elif tool.name in seen:
            yield Violation(f"{where}.name", f"{tool.name!r} is the name of another tool already")
        seen.add(tool.name)
        if tool.parameters:
            yield from _parameters(f"{where}.parameters_json_schema", tool.parameters)


def _parameters(where: str, source: str) -> Iterator[Violation]:
    found = schema_violations(where, source)
    if found:
        yield from found
        return
    schema = json.loads(source)
    if not isinstance(schema, dict):
        yield Violation(where, "must be a JSON object")
    elif "type" in schema and schema["type"] not in _OBJECT_TYPES:
        yield Violation(where, 'must be of type "object": arguments are one')


def _choice(chat: Chat) -> Iterator[Violation]:
    choice = chat.tool_choice
    if choice is None or not choice.is_forced:
        return
    if not chat.tools:
        yield Violation("chat.tool_choice", "needs tools to choose from")
    elif choice.function is not None and all(tool.name != choice.function for tool in chat.tools):
        yield Violation("chat.tool_choice", f"there is no tool named {choice.function[:64]!r}")
