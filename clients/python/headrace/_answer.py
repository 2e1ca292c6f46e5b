"""The whole of a generation, for whoever does not want it piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.v1 import chat_pb2, usage_pb2
from headrace.v1 import generation_pb2 as pb

__all__ = ["Answer", "Choice", "Collector", "ToolCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model asks for. `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice. `finish_reason` is STOP, LENGTH ...; `stop_sequence` is what matched, if a stop string ended it."""

    index: int
    text: str
    finish_reason: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[pb.TokenLogprob, ...] = ()
    stop_sequence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A generation that has ended. Counts that the server does not know are unset in `usage`."""

    generation_id: str | None
    request_id: str | None
    model: str
    choices: tuple[Choice, ...]
    usage: usage_pb2.Usage | None
    timing: usage_pb2.Timing | None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text if self.choices else ""

    @property
    def finish_reason(self) -> str:
        """Why the first choice ended."""
        return self.choices[0].finish_reason if self.choices else ""


@dataclass(slots=True)
class _Parts:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, chat_pb2.ToolCallDelta] = field(default_factory=dict)
    arguments: dict[int, list[str]] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprob] = field(default_factory=list)


class Collector:
    """Takes deltas, and gives what they make by choice."""

    def __init__(self) -> None:
        self._parts: dict[int, _Parts] = {}

    def add(self, delta: pb.ChoiceDelta) -> None:
        """Take one delta."""
        parts = self._parts.setdefault(delta.index, _Parts())
        parts.text.append(delta.text)
        parts.reasoning.append(delta.reasoning_text)
        parts.token_ids += delta.token_ids
        parts.logprobs += delta.logprobs
        if delta.HasField("tool_call"):
            call = delta.tool_call
            parts.calls.setdefault(call.index, call)
            parts.arguments.setdefault(call.index, []).append(call.arguments_fragment)

    def choices(self, finished: Mapping[int, pb.ChoiceFinished], reasons: Mapping[int, str]) -> tuple[Choice, ...]:
        """Return the choices, by their ends."""
        return tuple(self._choice(index, finished.get(index), reasons) for index in sorted({*self._parts, *finished}))

    def _choice(self, index: int, end: pb.ChoiceFinished | None, reasons: Mapping[int, str]) -> Choice:
        parts = self._parts.get(index) or _Parts()
        return Choice(
            index=index,
            text="".join(parts.text),
            finish_reason=reasons.get(index, ""),
            reasoning="".join(parts.reasoning),
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.function_name, arguments="".join(parts.arguments[number]))
                for number, call in sorted(parts.calls.items())
            ),
            token_ids=tuple(parts.token_ids),
            logprobs=tuple(parts.logprobs),
            stop_sequence=end.stop_sequence if end is not None and end.HasField("stop_sequence") else None,
        )
