"""A conversation in the shapes that chat templates expect: the variables `messages` and `tools`.

The shapes are Hugging Face's. Everything that a caller wrote is disarmed here, so
that nothing else has to think of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from service.core.request import Chat, ChatMessage, Role, Tool, ToolCall
from service.templates.controls import ControlTexts

__all__ = ["Conversation"]

# Deeper arguments go as text; schemas are bounded to as much (`service.core.schema`).
MAX_DEPTH: Final = 64
# Some templates refuse every call whose id is not of the form that their model's vendor gives.
_WANTS_SHORT_IDS: Final = re.compile(r"length\s*(?:==|!=)\s*9\b")
_SHORT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
# What a template writes around calls and results. Not taken for control texts in messages, where callers
# may well write them by themselves; but a result must not end its own frame.
_TOOL_TAGS: Final = re.compile(r"</?[a-z_]*tools?(?:_[a-z_]+)?>")


@dataclass(frozen=True, slots=True)
class Conversation:
    """How one template wants to be told a conversation.

    `has_text_arguments`: arguments of calls as JSON text, not as a mapping.
    """

    controls: ControlTexts
    tool_controls: ControlTexts
    knows_developer: bool
    has_short_ids: bool
    has_text_arguments: bool = False

    @classmethod
    def of(cls, source: str, known: Iterable[str]) -> Conversation:
        """Return what the `source` of a template tells by itself; `known` are control texts of the engine."""
        known = tuple(known)
        return cls(
            controls=ControlTexts.of(source, known),
            tool_controls=ControlTexts.of(source, (*known, *_TOOL_TAGS.findall(source))),
            knows_developer="developer" in source,
            has_short_ids=_WANTS_SHORT_IDS.search(source) is not None,
        )

    def messages(self, chat: Chat) -> list[dict[str, Any]]:
        """Return the messages; one of role "tool" has the name of the function it answers for, if that is known."""
        names: dict[str, str] = {}
        told = []
        for message in chat.messages:
            for call in message.tool_calls:
                names[call.id] = call.name
            told.append(self._message(message, names))
        return told

    def tools(self, chat: Chat) -> list[dict[str, Any]] | None:
        """Return the tools, or None without any: templates ask `tools is none`."""
        return [self._tool(tool) for tool in chat.tools] or None

    def _message(self, message: ChatMessage, names: dict[str, str]) -> dict[str, Any]:
        role = message.role
        if role is Role.DEVELOPER and not self.knows_developer:
            role = Role.SYSTEM
        controls = self.tool_controls if role is Role.TOOL else self.controls
        told: dict[str, Any] = {"role": role.value, "content": controls.disarm(message.content)}
        name = message.name
        if message.tool_call_id is not None:
            told["tool_call_id"] = self._id(message.tool_call_id)
            if name is None:
                name = names.get(message.tool_call_id)
        if name is not None:
            told["name"] = controls.disarm(name)
        if message.reasoning is not None:
            told["reasoning_content"] = self.controls.disarm(message.reasoning)
        if message.tool_calls:
            told["tool_calls"] = [self._call(call) for call in message.tool_calls]
        return told

    def _call(self, call: ToolCall) -> dict[str, Any]:
        return {
            "id": self._id(call.id),
            "type": "function",
            "function": {"name": self.tool_controls.disarm(call.name), "arguments": self._arguments(call.arguments)},
        }

    def _arguments(self, text: str) -> Any:
        if not self.has_text_arguments:
            try:
                arguments = json.loads(text)
                if isinstance(arguments, dict):
                    return self._disarmed(arguments)
            except (ValueError, RecursionError):
                pass
        return self.tool_controls.disarm(text)

    def _tool(self, tool: Tool) -> dict[str, Any]:
        # Templates go through the properties without asking whether there are any.
        parameters = json.loads(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {
                "name": self.tool_controls.disarm(tool.name),
                "description": self.tool_controls.disarm(tool.description),
                "parameters": self._disarmed(parameters),
            },
        }

    def _id(self, call_id: str) -> str:
        if self.has_short_ids and not _SHORT_ID.fullmatch(call_id):
            return hashlib.sha256(call_id.encode()).hexdigest()[:9]
        return self.tool_controls.disarm(call_id)

    def _disarmed(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self.tool_controls.disarm(value)
        if depth > MAX_DEPTH:
            raise RecursionError
        if isinstance(value, dict):
            disarm = self.tool_controls.disarm
            return {disarm(key): self._disarmed(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self._disarmed(item, depth + 1) for item in value]
        return value
