"""The two document shapes: what chat and legacy completions call things.

A shape gives pieces of JSON text: for chunks, where the text of a delta is
spliced in between, and for whole choices. It holds no state.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from typing import Any, Final, Protocol

from gateway.openai.content import ChoiceContent, ContractError
from gateway.openai.logprobs import ChatLogprobs, CompletionLogprobs, LogprobsWriter
from gateway.openai.requests import Endpoint
from headrace.v1 import chat_pb2

__all__ = ["Shape", "shape_of"]


class Shape(Protocol):
    """How one endpoint writes its documents."""

    id_prefix: str
    chunk_object: str
    answer_object: str
    # What follows the text of a delta, up to the value of `logprobs`, and what follows reasoning.
    after_text: str
    # Whether tokens without text and bytes at the end, such as the end of sequence, have no log-probs.
    drops_silent_end: bool

    def before_text(self, index: int) -> str:
        """Return the start of a choice in a chunk, up to the text."""

    def before_reasoning(self, index: int) -> str:
        """Return the start of a choice in a chunk, up to the text of its reasoning."""

    def tool_call(self, index: int, piece: chat_pb2.ToolCallDelta, arguments: str, *, is_first: bool) -> str:
        """Return the start of a choice with a piece of a tool call, up to the value of `logprobs`."""

    def holds_logprobs_of(self, kind: str | None) -> bool:
        """Return whether the text that `logprobs` tells of is that of this kind of content."""

    def opening(self, index: int, *, by_text: bool) -> str | None:
        """Return the choice of the first chunk, before any text; None if there is none.

        `by_text` says that text is the first that is said.
        """

    def without_text(self, index: int) -> str:
        """Return the start of a choice in a chunk that says nothing, up to the value of `logprobs`."""

    def empty_text(self, index: int) -> str | None:
        """Return the choice of a chunk that says that the text is empty; None where it is so unless text comes."""

    def closing(self, index: int, finish_reason: str, native: str | None) -> str:
        """Return the choice of the chunk that ends a choice; `native` says what `finish_reason` does not."""

    def logprobs(self, offset_chars: int) -> LogprobsWriter:
        """Return what writes the value of `logprobs` for tokens from `offset_chars` of the text on."""

    def choice(self, index: int, content: ChoiceContent, finish_reason: str, native: str | None) -> str:
        """Return one choice of a whole answer; `native` says what `finish_reason` does not."""


class _ChatShape:
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    answer_object = "chat.completion"
    drops_silent_end = False
    after_text = '},"logprobs":'

    def before_text(self, index: int) -> str:
        return f'{{"index":{index},"delta":{{"content":'

    def before_reasoning(self, index: int) -> str:
        return f'{{"index":{index},"delta":{{"reasoning_content":'

    def tool_call(self, index: int, piece: chat_pb2.ToolCallDelta, arguments: str, *, is_first: bool) -> str:
        head = name = ""
        if is_first:
            head = f'"id":{encode_basestring_ascii(piece.id)},"type":"function",'
            name = f'"name":{encode_basestring_ascii(piece.function_name)},'
        function = f'{{{name}"arguments":{encode_basestring_ascii(arguments)}}}'
        call = f'{{"index":{piece.index},{head}"function":{function}}}'
        return f'{{"index":{index},"delta":{{"tool_calls":[{call}]}},"logprobs":'

    def holds_logprobs_of(self, kind: str | None) -> bool:
        return kind in _TEXT

    def opening(self, index: int, *, by_text: bool) -> str | None:
        content = '""' if by_text else "null"
        delta = f'{{"role":"assistant","content":{content},"refusal":null}}'
        return f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":null}}'

    def without_text(self, index: int) -> str:
        return f'{{"index":{index},"delta":{{}},"logprobs":'

    def empty_text(self, index: int) -> str | None:
        return f'{{"index":{index},"delta":{{"content":""}},"logprobs":null,"finish_reason":null}}'

    def closing(self, index: int, finish_reason: str, native: str | None) -> str:
        return f'{{"index":{index},"delta":{{}},"logprobs":null,{_ending(finish_reason, native)}}}'

    def logprobs(self, offset_chars: int) -> LogprobsWriter:
        return ChatLogprobs(offset_chars)

    def choice(self, index: int, content: ChoiceContent, finish_reason: str, native: str | None) -> str:
        text = content.text
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if content.calls and not text else text,
            "refusal": None,
            "annotations": [],
        }
        if reasoning := content.reasoning:
            message["reasoning_content"] = reasoning
        if content.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for _, call in sorted(content.calls.items())
            ]
        said = json.dumps(message, separators=(",", ":"))
        return f'{{"index":{index},"message":{said},"logprobs":{_logprobs(content)},{_ending(finish_reason, native)}}}'


class _CompletionShape:
    id_prefix = "cmpl-"
    chunk_object = "text_completion"
    answer_object = "text_completion"
    drops_silent_end = True
    after_text = ',"logprobs":'

    def before_text(self, index: int) -> str:
        return f'{{"index":{index},"text":'

    def before_reasoning(self, index: int) -> str:
        return self.before_text(index)

    def tool_call(self, index: int, piece: chat_pb2.ToolCallDelta, arguments: str, **_: bool) -> str:  # noqa: ARG002
        raise ContractError(_NO_CALLS)

    def holds_logprobs_of(self, kind: str | None) -> bool:  # noqa: ARG002 - reasoning is shown as text
        return True

    def opening(self, index: int, *, by_text: bool) -> str | None:  # noqa: ARG002
        return None

    def without_text(self, index: int) -> str:
        return f'{self.before_text(index)}""{self.after_text}'

    def empty_text(self, index: int) -> str | None:  # noqa: ARG002
        return None

    def closing(self, index: int, finish_reason: str, native: str | None) -> str:
        return f'{{"index":{index},"text":"","logprobs":null,{_ending(finish_reason, native)}}}'

    def logprobs(self, offset_chars: int) -> LogprobsWriter:
        return CompletionLogprobs(offset_chars)

    def choice(self, index: int, content: ChoiceContent, finish_reason: str, native: str | None) -> str:
        if content.calls:
            raise ContractError(_NO_CALLS)
        # The legacy shape has no place for reasoning; it comes before the answer.
        text = encode_basestring_ascii(content.reasoning + content.text)
        return f'{{"index":{index},"text":{text},"logprobs":{_logprobs(content)},{_ending(finish_reason, native)}}}'


# Kinds of a delta's content that are text; a delta may carry nothing but log-probs.
_TEXT: Final = frozenset({"text", None})
_NO_CALLS: Final = "a text completion cannot hold a tool call"


def _ending(finish_reason: str, native: str | None) -> str:
    told = f'"finish_reason":{json.dumps(finish_reason)}'
    return told if native is None else f'{told},"native_finish_reason":{json.dumps(native)}'


def _logprobs(content: ChoiceContent) -> str:
    return "null" if content.logprobs is None else content.logprobs.text()


_SHAPES: Final[dict[Endpoint, Shape]] = {Endpoint.CHAT: _ChatShape(), Endpoint.COMPLETION: _CompletionShape()}


def shape_of(endpoint: Endpoint) -> Shape:
    """Return the shape of an endpoint."""
    return _SHAPES[endpoint]
