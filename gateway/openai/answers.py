"""From the events of a generation to OpenAI documents: the state machine and the whole answer.

`started (delta | choice_finished)* completed` is checked here once, for
streams and whole answers alike, so that both say the same. What breaks the
order is a `ContractError`: a cut or garbled stream never looks like
success. Events that this version does not know are skipped.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from gateway import sse
from gateway.openai.content import ChoiceContent, ContractError
from gateway.openai.errors import ApiError, cancelled
from gateway.openai.requests import GenerationCall
from gateway.openai.shapes import shape_of
from gateway.openai.usage import timing_document, usage_document
from headrace.v1 import generation_pb2 as gen
from headrace.v1 import usage_pb2

__all__ = [
    "ContractError",
    "GenerationReader",
    "WholeAnswer",
    "finish_reasons",
    "native_finish_reasons",
    "timing_document",
    "usage_document",
]

# The API has one word for every way of running out of room.
finish_reasons: Final[Mapping[int, str]] = {
    gen.FINISH_REASON_STOP: "stop",
    gen.FINISH_REASON_LENGTH: "length",
    gen.FINISH_REASON_CONTEXT_LENGTH: "length",
    gen.FINISH_REASON_TOOL_CALLS: "tool_calls",
    gen.FINISH_REASON_TIME_LIMIT: "length",
    # Never told as one: it ends the answer as an error.
    gen.FINISH_REASON_CANCELLED: "cancelled",
}
# And a member of our own, named as a proxy of many models names it, for what that word does not say.
native_finish_reasons: Final[Mapping[int, str]] = {
    gen.FINISH_REASON_CONTEXT_LENGTH: "context_length",
    gen.FINISH_REASON_TIME_LIMIT: "time_limit",
}


class GenerationReader(ABC):
    """Reads the events of one generation in order.

    `created_s` is the Unix time shown if the service does not tell its own.
    Facts for logs and spans are filled in as they come.
    """

    def __init__(self, call: GenerationCall, created_s: int) -> None:
        self.shape = shape_of(call.endpoint)
        self.sequence = 0  # of the last event
        self.generation_id = ""
        self.model = call.request.model
        self.fingerprint = ""
        self.created_s = created_s
        self.has_started = False
        self.has_output = False  # some text, reasoning or tool call came
        self.is_complete = False
        self.finished: dict[int, str] = {}  # choice index -> finish_reason
        self.native_reasons: dict[int, str] = {}  # of those whose finish_reason does not say all
        self.is_cancelled = False  # somebody stopped it by its id
        self.usage: usage_pb2.Usage | None = None
        self.timing: usage_pb2.Timing | None = None
        self._service_tier = call.service_tier
        self._choices = call.choices
        self._is_retained = call.is_retained
        self._id = "id: "  # of an event of the stream, up to its number
        self._wants_logprobs = call.request.output.logprobs

    def feed(self, event: gen.GenerateResponse) -> bytes:
        """Take one event; return what is to be sent now, possibly nothing.

        ContractError if the event may not come here.
        """
        self.sequence = event.sequence
        kind = event.WhichOneof("event")
        if kind == "delta":
            return self._on_delta(event.delta)
        if kind == "started":
            return self._start(event.started)
        if kind == "choice_finished":
            return self._finish(event.choice_finished)
        if kind == "completed":
            return self._complete(event.completed)
        return b""

    def failure(self, error: ApiError) -> bytes:
        """Return the last event of a stream that has begun and ends with `error`."""
        return sse.event(error.document())

    def check_complete(self) -> None:
        """ContractError unless the generation was seen to its end, ApiError (499) if somebody stopped it there."""
        if not self.is_complete:
            raise ContractError("the stream ended before the generation was complete")
        if self.is_cancelled:
            raise cancelled()

    @abstractmethod
    def _on_delta(self, delta: gen.ChoiceDelta) -> bytes: ...

    @abstractmethod
    def _on_finished(self, index: int, finish_reason: str) -> bytes: ...

    @abstractmethod
    def _on_completed(self) -> bytes: ...

    def _start(self, started: gen.GenerationStarted) -> bytes:
        if self.has_started:
            raise ContractError("started came twice")
        self.has_started = True
        self.generation_id = started.generation_id
        if self._is_retained:
            self._id = f"id: {self.generation_id}:"
        self.model = started.model or self.model
        self.fingerprint = started.fingerprint
        if started.HasField("create_time"):
            self.created_s = started.create_time.seconds
        return b""

    def _finish(self, finished: gen.ChoiceFinished) -> bytes:
        self._check_open(finished.index)
        reason = finish_reasons.get(finished.reason)
        if reason is None:
            raise ContractError(f"finish reason {finished.reason} is unknown")
        self.finished[finished.index] = reason
        if finished.reason == gen.FINISH_REASON_CANCELLED:
            self.is_cancelled = True
            return b""
        if (native := native_finish_reasons.get(finished.reason)) is not None:
            self.native_reasons[finished.index] = native
        return self._on_finished(finished.index, reason)

    def _complete(self, completed: gen.GenerationCompleted) -> bytes:
        if self.is_complete or len(self.finished) != self._choices:
            raise ContractError("completed came before every choice had ended, or twice")
        self.is_complete = True
        self.usage = completed.usage
        self.timing = completed.timing if completed.HasField("timing") else None
        # What is said of a cancelled one waits for the call's status, as its end would.
        return b"" if self.is_cancelled else self._on_completed()

    def _check_open(self, index: int) -> None:
        if not self.has_started or index in self.finished or not 0 <= index < self._choices:
            raise ContractError(f"choice {index} is not open")


class WholeAnswer(GenerationReader):
    """Collects a generation into one document; `feed` returns nothing until then."""

    def __init__(self, call: GenerationCall, created_s: int) -> None:
        super().__init__(call, created_s)
        self._contents: dict[int, ChoiceContent] = {}

    def _on_delta(self, delta: gen.ChoiceDelta) -> bytes:
        self._check_open(delta.index)
        if self._content(delta.index).add(delta):
            self.has_output = True
        return b""

    def _on_finished(self, index: int, finish_reason: str) -> bytes:  # noqa: ARG002 - kept by the base class
        return b""

    def _on_completed(self) -> bytes:
        choices = [
            self.shape.choice(index, self._content(index), finish_reason, self.native_reasons.get(index))
            for index, finish_reason in sorted(self.finished.items())
        ]
        head: dict[str, Any] = {
            "id": self.shape.id_prefix + self.generation_id,
            "object": self.shape.answer_object,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint or None,
        }
        if self._service_tier is not None:
            head["service_tier"] = self._service_tier
        tail: dict[str, Any] = {"usage": usage_document(self.usage)}
        if self.timing is not None:
            tail["timing"] = timing_document(self.timing)
        before = json.dumps(head, separators=(",", ":"))[:-1]
        behind = json.dumps(tail, separators=(",", ":"))[1:]
        return f'{before},"choices":[{",".join(choices)}],{behind}'.encode("ascii")

    def _content(self, index: int) -> ChoiceContent:
        content = self._contents.get(index)
        if content is None:
            writer = self.shape.logprobs(0) if self._wants_logprobs else None
            content = self._contents[index] = ChoiceContent(writer, self.shape.holds_logprobs_of)
        return content
