"""From input items to the messages of the contract, and back from a message to the item it came from.

The API has an item for each thing the model said; chat templates know one
assistant turn with its reasoning, its text and its calls. Items of one turn
become one message, so that a template sees a call next to the text before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.openai.messages import Target
from gateway.openai.responses.items import (
    Content,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputMessage,
    ReasoningItem,
)
from headrace.v1 import chat_pb2

__all__ = ["Conversation"]

_ROLES: Final[Mapping[str, chat_pb2.Role]] = {
    "system": chat_pb2.ROLE_SYSTEM,
    "user": chat_pb2.ROLE_USER,
    "assistant": chat_pb2.ROLE_ASSISTANT,
    "developer": chat_pb2.ROLE_DEVELOPER,
}
_MESSAGE: Final = re.compile(r"(?:chat\.)?messages\[(\d+)\](.*)", re.DOTALL)
_CALL: Final = re.compile(r"\.tool_calls\[(\d+)\](.*)", re.DOTALL)
_CALL_MEMBERS: Final[Mapping[str, str]] = {
    ".id": ".call_id",
    ".function_name": ".name",
    ".arguments_json": ".arguments",
}


@dataclass(slots=True)
class _Origin:
    """Where the parts of one message stand in the request."""

    item: str  # the item that began the message
    content: str = ""  # the member that holds the texts
    reasoning: str = ""
    calls: list[str] = field(default_factory=list)

    def name(self, rest: str) -> str:
        call = _CALL.fullmatch(rest)
        if call is not None and int(call[1]) < len(self.calls):
            return self.calls[int(call[1])] + _CALL_MEMBERS.get(call[2], "")
        if rest.startswith(".content") and self.content:
            return self.content
        if rest == ".reasoning_text" and self.reasoning:
            return self.reasoning
        if rest == ".tool_call_id":
            return f"{self.item}.call_id"
        return self.item


class Conversation:
    """Appends the messages of a request to `target`, and remembers where each came from."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._origins: list[_Origin] = []
        # The last message, while it is an assistant's and nobody else spoke since.
        self._open: chat_pb2.ChatMessage | None = None
        self._thoughts: list[str] = []  # of the open turn

    def take(self, instructions: str | None, given: str | Sequence[InputItem]) -> None:
        """Append the conversation: instructions first, then the items in their order."""
        if instructions:
            self._add(chat_pb2.ROLE_SYSTEM, instructions, _Origin("instructions", "instructions"))
        if isinstance(given, str):
            self._add(chat_pb2.ROLE_USER, given, _Origin("input", "input"))
            return
        for at, item in enumerate(given):
            self._take(item, f"input[{at}]")
        self._close()

    def json_name(self, path: str) -> str | None:
        """Return the path in the request of a contract path below `chat.messages`; None for any other."""
        found = _MESSAGE.fullmatch(path)
        if found is None or int(found[1]) >= len(self._origins):
            return None
        return self._origins[int(found[1])].name(found[2])

    def _take(self, item: InputItem, where: str) -> None:
        if isinstance(item, InputMessage):
            if item.role == "assistant":
                turn = self._unsaid_turn(where)
                _add_texts(turn, item.content)
                self._origins[-1].content = self._origins[-1].content or f"{where}.content"
            else:
                self._add(_ROLES[item.role], item.content, _Origin(where, f"{where}.content"))
        elif isinstance(item, FunctionCall):
            turn = self._turn(where)
            turn.tool_calls.add(id=item.call_id, function_name=item.name, arguments_json=item.arguments)
            self._origins[-1].calls.append(where)
        elif isinstance(item, FunctionCallOutput):
            message = self._add(chat_pb2.ROLE_TOOL, item.output, _Origin(where, f"{where}.output"))
            message.tool_call_id = item.call_id
        elif isinstance(item, ReasoningItem) and (text := item.text):
            self._unsaid_turn(where)
            self._thoughts.append(text)
            self._origins[-1].reasoning = self._origins[-1].reasoning or where

    def _add(self, role: chat_pb2.Role, content: Content, origin: _Origin) -> chat_pb2.ChatMessage:
        self._close()
        # Filled in place: a message that is built first is copied with all its text.
        message = self._target.add()
        message.role = role
        _add_texts(message, content)
        self._origins.append(origin)
        self._open = message if role == chat_pb2.ROLE_ASSISTANT else None
        return message

    def _close(self) -> None:
        if self._open is not None and self._thoughts:
            self._open.reasoning_text = "".join(self._thoughts)
            self._thoughts = []
        self._open = None

    def _turn(self, where: str) -> chat_pb2.ChatMessage:
        """Return the assistant's open turn, a new one if there is none."""
        if self._open is None:
            return self._add(chat_pb2.ROLE_ASSISTANT, (), _Origin(where))
        return self._open

    def _unsaid_turn(self, where: str) -> chat_pb2.ChatMessage:
        """Return the open turn, a new one if that has its text already; between calls text belongs to them."""
        turn = self._open
        if turn is not None and turn.content and not turn.tool_calls:
            self._close()
        return self._turn(where)


def _add_texts(message: chat_pb2.ChatMessage, content: Content) -> None:
    if isinstance(content, str):
        message.content.add().text = content
        return
    for part in content:
        message.content.add().text = part.text
