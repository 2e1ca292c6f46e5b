"""From the events of a generation to output items: the one state machine behind streamed and whole responses.

One item is open at a time. A delta of another kind, or of the next tool call,
ends it; so does the end of the generation. What is said at each step is left
to the classes that write a stream or a whole response.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from gateway.openai.answers import GenerationReader
from gateway.openai.content import ContractError, check_first_piece
from gateway.openai.logprobs import token_text
from gateway.openai.responses.call import ResponsesCall
from gateway.openai.responses.document import ResponseHead
from gateway.openai.responses.item import Kind, OutputItem, Status
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen

__all__ = ["OutputReader"]


class OutputReader(GenerationReader):
    """Collects the items of a response; subclasses return what each step makes them say."""

    def __init__(self, call: ResponsesCall, created_s: int) -> None:
        super().__init__(call, created_s)
        self.items: list[OutputItem] = []
        self._echo = call.echo
        self._open: OutputItem | None = None
        self._calls: set[int] = set()  # indices of tool calls that have begun
        # Log-probs of tokens whose text is still to come, before anything was said.
        self._held: list[str] = []

    @property
    def head(self) -> ResponseHead:
        """What every document of the response says."""
        return ResponseHead(
            generation_id=self.generation_id, created_s=self.created_s, model=self.model, echo=self._echo
        )

    @property
    def incomplete_because(self) -> str | None:
        """Why the response is not complete; None if it is, or has not ended."""
        return "max_output_tokens" if self.finished.get(0) == "length" else None

    def _on_delta(self, delta: gen.ChoiceDelta) -> bytes:
        self._check_open(delta.index)
        frames: list[str] = []
        kind = delta.WhichOneof("content")
        if kind == "tool_call":
            self._add_call(delta.tool_call, frames)
        elif kind == "reasoning_text":
            if delta.reasoning_text:
                self._grow(self._enter("reasoning", frames), delta.reasoning_text, (), frames)
        else:
            self._add_text(delta, frames)
        return self._framed(frames)

    def _add_text(self, delta: gen.ChoiceDelta, frames: list[str]) -> None:
        logprobs = [token_text(token) for token in delta.logprobs] if self._wants_logprobs else []
        if not delta.text:
            if self._open is None or self._open.kind != "message":
                self._held += logprobs
            elif logprobs:
                self._grow(self._open, "", logprobs, frames)
            return
        item = self._enter("message", frames)
        self._grow(item, delta.text, [*self._held, *logprobs], frames)
        self._held.clear()

    def _add_call(self, piece: chat_pb2.ToolCallDelta, frames: list[str]) -> None:
        item = self._open
        if item is None or item.call_index != piece.index:
            if piece.index in self._calls:
                raise ContractError(f"tool call {piece.index} went on after another item had begun")
            check_first_piece(piece)
            self._calls.add(piece.index)
            item = self._begin("function_call", frames)
            item.call_index, item.call_id, item.name = piece.index, piece.id, piece.function_name
            frames += self._on_began(item)
        if piece.arguments_fragment:
            self._grow(item, piece.arguments_fragment, (), frames)

    def _enter(self, kind: Kind, frames: list[str]) -> OutputItem:
        """Return the open item if it is of this kind, else a new one."""
        if self._open is not None and self._open.kind == kind:
            return self._open
        item = self._begin(kind, frames)
        frames += self._on_began(item)
        return item

    def _begin(self, kind: Kind, frames: list[str]) -> OutputItem:
        self._end("completed", frames)
        self.has_output = True
        self._open = OutputItem(kind=kind, index=len(self.items), generation_id=self.generation_id)
        self.items.append(self._open)
        return self._open

    def _grow(self, item: OutputItem, text: str, logprobs: Sequence[str], frames: list[str]) -> None:
        item.pieces.append(text)
        item.logprobs += logprobs
        frames += self._on_grew(item, text, logprobs)

    def _end(self, status: Status, frames: list[str]) -> None:
        if self._open is not None:
            self._open.status = status
            frames += self._on_ended(self._open)
            self._open = None

    def _on_finished(self, index: int, finish_reason: str) -> bytes:  # noqa: ARG002 - there is one choice
        frames: list[str] = []
        if not self.items:
            # An answer of nothing is a message all the same, for callers that take the first one.
            item = self._enter("message", frames)
            if self._held:
                self._grow(item, "", self._held, frames)
        self._end("incomplete" if finish_reason == "length" else "completed", frames)
        return self._framed(frames)

    @abstractmethod
    def _framed(self, frames: Sequence[str]) -> bytes: ...

    @abstractmethod
    def _on_began(self, item: OutputItem) -> Sequence[str]: ...

    @abstractmethod
    def _on_grew(self, item: OutputItem, text: str, logprobs: Sequence[str]) -> Sequence[str]: ...

    @abstractmethod
    def _on_ended(self, item: OutputItem) -> Sequence[str]: ...
