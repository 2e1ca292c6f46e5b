"""From arguments to the requests of TokenizeService."""

from __future__ import annotations

from collections.abc import Sequence

from headrace._chat import ChatTurn, chat_messages
from headrace.v1 import chat_pb2, tokenize_pb2

__all__ = ["Conversation", "tokenize_request"]

Conversation = Sequence[ChatTurn] | chat_pb2.ChatInput


def tokenize_request(
    model: str, text: str | None, chat: Conversation | None, *, skip_special_tokens: bool, include_pieces: bool
) -> tokenize_pb2.TokenizeRequest:
    """Return the message. Raises TypeError unless exactly one of text and chat is given."""
    if (text is None) == (chat is None):
        raise TypeError(f"exactly one of text and chat is needed, got {'none' if text is None else 'both'}")
    request = tokenize_pb2.TokenizeRequest(
        model=model, text=text, skip_special_tokens=skip_special_tokens, include_pieces=include_pieces
    )
    if isinstance(chat, chat_pb2.ChatInput):
        request.chat.CopyFrom(chat)
    elif chat is not None:
        request.chat.SetInParent()
        request.chat.messages.extend(chat_messages(chat))
    return request
