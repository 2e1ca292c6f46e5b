"""What one choice has said so far, put together from its deltas.

It knows the contract's deltas and the rules of tool calls; not the shapes of
documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.openai.logprobs import LogprobsWriter
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen

__all__ = ["ChoiceContent", "ContractError", "ToolCallContent", "check_first_piece"]


class ContractError(Exception):
    """The service sent what the contract does not allow."""


@dataclass(slots=True, kw_only=True)
class ToolCallContent:
    """One tool call; its arguments in the order they came."""

    id: str
    name: str
    fragments: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """Return the text of the arguments."""
        return "".join(self.fragments)


class ChoiceContent:
    """Collects the deltas of one choice.

    `logprobs` is None if nobody asked for them; it takes those of the kinds of
    content that `holds_logprobs_of` names.
    """

    def __init__(self, logprobs: LogprobsWriter | None, holds_logprobs_of: Callable[[str | None], bool]) -> None:
        self.logprobs = logprobs
        self._holds_logprobs_of = holds_logprobs_of
        self.calls: dict[int, ToolCallContent] = {}
        self._texts: list[str] = []
        self._reasoning: list[str] = []

    @property
    def text(self) -> str:
        """Return the text of the answer."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """Return the text of the reasoning."""
        return "".join(self._reasoning)

    def add(self, delta: gen.ChoiceDelta) -> bool:
        """Take the next delta; return whether it says something. ContractError for a tool call without a beginning."""
        if self.logprobs is not None and self._holds_logprobs_of(delta.WhichOneof("content")):
            for token in delta.logprobs:
                self.logprobs.add(token)
        text = delta.text
        if text:
            self._texts.append(text)
            return True
        if delta.WhichOneof("content") == "tool_call":
            self._add_call(delta.tool_call)
            return True
        text = delta.reasoning_text
        if text:
            self._reasoning.append(text)
        return bool(text)

    def _add_call(self, piece: chat_pb2.ToolCallDelta) -> None:
        call = self.calls.get(piece.index)
        if call is None:
            check_first_piece(piece)
            call = self.calls[piece.index] = ToolCallContent(id=piece.id, name=piece.function_name)
        call.fragments.append(piece.arguments_fragment)


def check_first_piece(piece: chat_pb2.ToolCallDelta) -> None:
    """ContractError unless `piece` can begin a tool call."""
    if not piece.id or not piece.function_name:
        raise ContractError(f"tool call {piece.index} began without an id or a name")
