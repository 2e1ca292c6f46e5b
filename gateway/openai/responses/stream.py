"""The events of a streamed response, each named and numbered.

`sequence_number` counts the events of the response from 0 without gaps; the id
of a server-sent event is the position in the generation, as in every stream of
this server. The hot path: what surrounds the text of a delta is the same for
every delta of an item and is written once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from gateway import sse
from gateway.openai.chunks import MAX_LOGPROBS_CHARS, MAX_TEXT_CHARS
from gateway.openai.errors import CANCELLED_BY_CALL, ApiError
from gateway.openai.responses.call import ResponsesCall
from gateway.openai.responses.document import failure_document
from gateway.openai.responses.item import Kind, OutputItem, documents
from gateway.openai.responses.output import OutputReader
from headrace.v1 import generation_pb2 as gen

__all__ = ["ResponseStream"]

# The name of what a growing item sends, and of its end.
_DELTAS: Final[dict[Kind, str]] = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


class ResponseStream(OutputReader):
    """Turns the events of a generation into server-sent events; `feed` returns whole events only."""

    def __init__(self, call: ResponsesCall, created_s: int) -> None:
        super().__init__(call, created_s)
        self._number = 0  # of the next event
        # Of the open item: an event up to its text, and from there up to the number.
        self._text_head: str | None = None
        self._reasoning_head: str | None = None
        self._middle = ""

    def failure(self, error: ApiError) -> bytes:
        """Return the last events of a stream that failed: the error, and the response as far as it came.

        The error stands in the event as the API describes it, and again below
        `error`, which is where the official SDKs look for it and raise.
        """
        if self.is_complete and not self.is_cancelled:
            # The end of the response waited for the call's status, and is not sent.
            self._number -= 1
        body = json.loads(error.document())["error"]
        flat = {name: body[name] for name in ("code", "message", "param")}
        frames = [self._event("error", _members({**flat, "error": body}))]
        if self.has_started:
            if self._open is not None:
                self._open.status = "incomplete"
            # For a cancel the API has a status and no event.
            document = self.head.document(
                "cancelled" if error.reason == CANCELLED_BY_CALL else "failed",
                documents(self.items),
                error=failure_document(error),
            )
            frames.append(self._event("response.failed", f'"response":{document}'))
        # Without an id: they stand for no event of the generation.
        return "".join(frames).encode("ascii")

    def _start(self, started: gen.GenerationStarted) -> bytes:
        super()._start(started)
        response = f'"response":{self.head.document("in_progress")}'
        names = ("response.created", "response.in_progress")
        return self._framed([self._event(name, response) for name in names])

    def _on_delta(self, delta: gen.ChoiceDelta) -> bytes:
        text = delta.text
        head = self._text_head
        if not text:
            text = delta.reasoning_text
            head = self._reasoning_head
        item = self._open
        if head is None or item is None or not text or len(text) > MAX_TEXT_CHARS or delta.index:
            return super()._on_delta(delta)
        item.pieces.append(text)
        number = self._number
        self._number = number + 1
        return (
            f"{self._id}{self.sequence}\n{head}{encode_basestring_ascii(text)}{self._middle}{number}}}{sse.EVENT_END}"
        ).encode("ascii")

    def _on_began(self, item: OutputItem) -> Sequence[str]:
        self._write_head(item)
        added = self._event("response.output_item.added", f'"output_index":{item.index},"item":{item.document()}')
        if item.kind == "function_call":
            return (added,)
        return added, self._event("response.content_part.added", f'{_place(item)},"part":{item.part()}')

    def _on_grew(self, item: OutputItem, text: str, logprobs: Sequence[str]) -> Sequence[str]:
        pieces = [text[at : at + MAX_TEXT_CHARS] for at in range(0, len(text), MAX_TEXT_CHARS)]
        return [self._delta(item, piece or "", group or ()) for piece, group in zip_longest(pieces, _groups(logprobs))]

    def _on_ended(self, item: OutputItem) -> Sequence[str]:
        self._text_head = self._reasoning_head = None
        name = f"{_DELTAS[item.kind]}.done"
        text = encode_basestring_ascii(item.text)
        frames = []
        if item.kind == "function_call":
            body = f'{_place(item)},"name":{json.dumps(item.name)},"arguments":{text}'
            frames.append(self._event(name, body))
        else:
            logprobs = f',"logprobs":[{",".join(item.logprobs)}]' if item.kind == "message" else ""
            frames.append(self._event(name, f'{_place(item)},"text":{text}{logprobs}'))
            frames.append(self._event("response.content_part.done", f'{_place(item)},"part":{item.part()}'))
        done = f'"output_index":{item.index},"item":{item.document()}'
        frames.append(self._event("response.output_item.done", done))
        return frames

    def _on_completed(self) -> bytes:
        because = self.incomplete_because
        document = self.head.document(
            "completed" if because is None else "incomplete",
            documents(self.items),
            incomplete_because=because,
            native_finish_reason=self.native_reasons.get(0),
            usage=self.usage,
            timing=self.timing,
        )
        name = "response.completed" if because is None else "response.incomplete"
        return self._framed([self._event(name, f'"response":{document}')])

    def _write_head(self, item: OutputItem) -> None:
        head = f'{_opening(f"{_DELTAS[item.kind]}.delta")},{_place(item)},"delta":'
        if item.kind == "reasoning":
            self._reasoning_head, self._middle = head, ',"sequence_number":'
        elif item.kind == "message" and not self._wants_logprobs:
            self._text_head, self._middle = head, ',"logprobs":[],"sequence_number":'

    def _delta(self, item: OutputItem, text: str, logprobs: Sequence[str]) -> str:
        rest = f',"logprobs":[{",".join(logprobs)}]' if item.kind == "message" else ""
        body = f'{_place(item)},"delta":{encode_basestring_ascii(text)}{rest}'
        return self._event(f"{_DELTAS[item.kind]}.delta", body)

    def _event(self, name: str, body: str) -> str:
        number = self._number
        self._number = number + 1
        return f'{_opening(name)},{body},"sequence_number":{number}}}{sse.EVENT_END}'

    def _framed(self, frames: Sequence[str]) -> bytes:
        parts = [f"{self._id}{self.sequence}.{part}\n{frame}" for part, frame in enumerate(frames[:-1], 1)]
        parts += [f"{self._id}{self.sequence}\n{frame}" for frame in frames[-1:]]
        return "".join(parts).encode("ascii")


def _opening(name: str) -> str:
    return f'event: {name}\n{sse.EVENT_START}{{"type":"{name}"'


def _place(item: OutputItem) -> str:
    content = "" if item.kind == "function_call" else ',"content_index":0'
    return f'"item_id":{json.dumps(item.id)},"output_index":{item.index}{content}'


def _members(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))[1:-1]


def _groups(logprobs: Sequence[str]) -> list[list[str]]:
    """Return the log-probs of one delta, cut where an event would grow too long."""
    groups: list[list[str]] = []
    size = MAX_LOGPROBS_CHARS + 1
    for text in logprobs:
        if size > MAX_LOGPROBS_CHARS:
            groups.append([])
            size = 0
        groups[-1].append(text)
        size += len(text)
    return groups
