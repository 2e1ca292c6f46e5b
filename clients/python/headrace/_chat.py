"""From what a caller writes of a conversation to messages, roles and choices of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.v1 import chat_pb2

__all__ = ["ChatTurn", "chat_messages", "reasoning_effort", "tool_choice"]

ChatTurn = tuple[str, str] | Mapping[str, str] | chat_pb2.ChatMessage


def chat_messages(turns: Iterable[ChatTurn]) -> list[chat_pb2.ChatMessage]:
    """Return the messages of a conversation. Raises TypeError for a turn that is none."""
    return [turn if isinstance(turn, chat_pb2.ChatMessage) else _chat_message(turn) for turn in turns]


def _chat_message(turn: tuple[str, str] | Mapping[str, str]) -> chat_pb2.ChatMessage:
    if isinstance(turn, Mapping):
        unknown = sorted(turn.keys() - {"role", "content", "name"})
        if unknown or "role" not in turn or "content" not in turn:
            raise TypeError("a chat message has role and content, and may have name")
        role, text, name = turn["role"], turn["content"], turn.get("name", "")
    else:
        role, text = turn
        name = ""
    try:
        return chat_pb2.ChatMessage(role=f"ROLE_{role.upper()}", content=[chat_pb2.ContentPart(text=text)], name=name)
    except ValueError:
        raise TypeError(f"unknown role {role!r}: use system, developer, user, assistant or tool") from None


def tool_choice(choice: str | chat_pb2.ToolChoice) -> chat_pb2.ToolChoice:
    """Return the choice that a mode's name stands for. Raises TypeError for a name that is none."""
    if isinstance(choice, chat_pb2.ToolChoice):
        return choice
    if choice not in {"none", "auto", "required"}:
        raise TypeError(f"unknown tool_choice {choice!r}: use none, auto, required or a ToolChoice with function_name")
    return chat_pb2.ToolChoice(mode=f"TOOL_CHOICE_MODE_{choice.upper()}")


def reasoning_effort(name: str) -> str:
    """Return the contract's word for an effort. Raises TypeError for a name that is none."""
    word = f"REASONING_EFFORT_{name.upper()}"
    if word not in chat_pb2.ReasoningEffort.keys():  # noqa: SIM118 - an enum of protobuf is no mapping
        raise TypeError(f"unknown reasoning_effort {name!r}: use none, minimal, low, medium, high, xhigh or max")
    return word
