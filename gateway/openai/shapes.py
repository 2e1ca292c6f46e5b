"""The two document shapes: what chat and legacy completions call things.

A shape gives pieces of JSON text for chunks, where the text of a delta is
spliced in between, and whole choices for answers. It holds no state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

from gateway.openai.logprobs import chat_item, completion_columns
from gateway.openai.requests import Endpoint
from headrace.v1 import generation_pb2 as gen

__all__ = ["Shape", "shape_of"]


class Shape(Protocol):
    """How one endpoint writes its documents."""

    id_prefix: str
    chunk_object: str
    answer_object: str
    # What follows the text of a delta, up to the value of `logprobs`.
    after_text: str

    def before_text(self, index: int) -> str:
        """Return the start of a choice in a chunk, up to the text."""

    def opening(self, index: int) -> str | None:
        """Return the choice of the first chunk, before any text; None if there is none."""

    def closing(self, index: int, finish_reason: str) -> str:
        """Return the choice of the chunk that ends a choice."""

    def logprobs(self, tokens: Sequence[gen.TokenLogprob], offset_chars: int) -> dict[str, Any]:
        """Return the value of `logprobs`; `offset_chars` is where in the text the first token starts."""

    def choice(
        self, index: int, text: str, tokens: Sequence[gen.TokenLogprob] | None, finish_reason: str
    ) -> dict[str, Any]:
        """Return one choice of a whole answer."""


class _ChatShape:
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    answer_object = "chat.completion"
    after_text = '},"logprobs":'

    def before_text(self, index: int) -> str:
        return f'{{"index":{index},"delta":{{"content":'

    def opening(self, index: int) -> str | None:
        delta = '{"role":"assistant","content":""}'
        return f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":null}}'

    def closing(self, index: int, finish_reason: str) -> str:
        return f'{{"index":{index},"delta":{{}},"logprobs":null,"finish_reason":{json.dumps(finish_reason)}}}'

    def logprobs(self, tokens: Sequence[gen.TokenLogprob], offset_chars: int) -> dict[str, Any]:  # noqa: ARG002
        return {"content": [chat_item(token) for token in tokens], "refusal": None}

    def choice(
        self, index: int, text: str, tokens: Sequence[gen.TokenLogprob] | None, finish_reason: str
    ) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None if tokens is None else self.logprobs(tokens, 0),
            "finish_reason": finish_reason,
        }


class _CompletionShape:
    id_prefix = "cmpl-"
    chunk_object = "text_completion"
    answer_object = "text_completion"
    after_text = ',"logprobs":'

    def before_text(self, index: int) -> str:
        return f'{{"index":{index},"text":'

    def opening(self, index: int) -> str | None:  # noqa: ARG002
        return None

    def closing(self, index: int, finish_reason: str) -> str:
        return f'{{"index":{index},"text":"","logprobs":null,"finish_reason":{json.dumps(finish_reason)}}}'

    def logprobs(self, tokens: Sequence[gen.TokenLogprob], offset_chars: int) -> dict[str, Any]:
        return completion_columns(tokens, offset_chars)

    def choice(
        self, index: int, text: str, tokens: Sequence[gen.TokenLogprob] | None, finish_reason: str
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": None if tokens is None else self.logprobs(tokens, 0),
            "finish_reason": finish_reason,
        }


_SHAPES: Final[dict[Endpoint, Shape]] = {Endpoint.CHAT: _ChatShape(), Endpoint.COMPLETION: _CompletionShape()}


def shape_of(endpoint: Endpoint) -> Shape:
    """Return the shape of an endpoint."""
    return _SHAPES[endpoint]
