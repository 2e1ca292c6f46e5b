"""From the events of a generation to the chunks of a stream.

The hot path of the gateway. What surrounds the text is the same for every
delta of a choice and is written once; per token only the text is encoded.

The id of a server-sent event is the `sequence` of the event it was made from.
Where one makes several, the last has that id and those before it
`<sequence>.<part>`, so that an id says what was seen completely.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from gateway import sse
from gateway.openai.answers import GenerationReader
from gateway.openai.content import check_first_piece
from gateway.openai.logprobs import is_silent
from gateway.openai.requests import GenerationCall
from gateway.openai.usage import timing_document, usage_document
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen

__all__ = ["ChunkStream"]

# Common clients give up on lines above 64 KiB. An escaped character takes at
# most 12 bytes, so the text of one chunk stays below 30 KB.
MAX_TEXT_CHARS: Final = 2500
# Of log-probs, until the next chunk is begun: a token adds a few KB at most.
MAX_LOGPROBS_CHARS: Final = 16_000


class ChunkStream(GenerationReader):
    """Turns events into server-sent events; `feed` returns whole events only."""

    def __init__(self, call: GenerationCall, created_s: int) -> None:
        super().__init__(call, created_s)
        self._include_usage = call.include_usage
        self._usage_null = ',"usage":null' if call.include_usage else ""
        self._top = ""  # a chunk up to its choices
        # Of open choices, a chunk up to the text of its reasoning; and up to its text, once there was some.
        self._reasoning_heads: dict[int, str] = {}
        self._heads: dict[int, str] = {}
        self._tail = ""  # a chunk from its text on, without log-probs
        self._calls: set[tuple[int, int]] = set()  # choice and index of tool calls that have begun
        self._silent: dict[int, list[gen.TokenLogprob]] = {}  # of choices whose last tokens may not be told
        self._offsets: dict[int, int] = {}  # characters told in log-probs so far

    def _start(self, started: gen.GenerationStarted) -> bytes:
        super()._start(started)
        top: dict[str, Any] = {
            "id": self.shape.id_prefix + self.generation_id,
            "object": self.shape.chunk_object,
            "created": self.created_s,
            "model": self.model,
        }
        if self.fingerprint:
            top["system_fingerprint"] = self.fingerprint
        if self._service_tier is not None:
            top["service_tier"] = self._service_tier
        self._top = sse.EVENT_START + json.dumps(top, separators=(",", ":"))[:-1] + ',"choices":['
        self._tail = self._after_text("null")
        return b""

    def _on_delta(self, delta: gen.ChoiceDelta) -> bytes:
        text = delta.text
        heads = self._heads
        if not text:
            text = delta.reasoning_text
            heads = self._reasoning_heads
        head = heads.get(delta.index)
        if head is None or self._wants_logprobs or not text or len(text) > MAX_TEXT_CHARS:
            return self._slow_delta(delta)
        return f"{self._id}{self.sequence}\n{head}{encode_basestring_ascii(text)}{self._tail}".encode("ascii")

    def _slow_delta(self, delta: gen.ChoiceDelta) -> bytes:
        index = delta.index
        if index not in self._reasoning_heads:
            self._check_open(index)
        kind = delta.WhichOneof("content")
        logprobs: Sequence[gen.TokenLogprob] = ()
        if self._wants_logprobs and self.shape.holds_logprobs_of(kind):
            logprobs = delta.logprobs
        if logprobs and self.shape.drops_silent_end:
            logprobs = self._without_silent_end(index, logprobs)
        is_call = kind == "tool_call"
        text = delta.text or delta.reasoning_text
        if not is_call and not text and not logprobs:
            return b""
        frames = self._open(index, by_text=bool(delta.text))
        self.has_output = True
        groups = self._logprob_groups(index, logprobs) if logprobs else iter(())
        if is_call:
            pieces, begin = self._call_pieces(index, delta.tool_call)
        else:
            head = self._head(index) if delta.text else self._reasoning_heads[index]
            pieces = _pieces(text)

            def begin(piece: str) -> str:
                return f"{head}{encode_basestring_ascii(piece)}{self.shape.after_text}"

        for piece, group in zip_longest(pieces, groups):
            start = self._top + self.shape.without_text(index) if piece is None else begin(piece)
            frames.append(start + self._behind(group or "null"))
        return self._numbered(frames)

    def _call_pieces(self, index: int, piece: chat_pb2.ToolCallDelta) -> tuple[list[str], Callable[[str], str]]:
        """Return the parts of the arguments, and what writes a chunk with one of them up to its log-probs."""
        key = (index, piece.index)
        pieces = _pieces(piece.arguments_fragment)
        if key not in self._calls:
            check_first_piece(piece)
            pieces = pieces or [""]

        def begin(arguments: str) -> str:
            is_first = key not in self._calls
            self._calls.add(key)
            return self._top + self.shape.tool_call(index, piece, arguments, is_first=is_first)

        return pieces, begin

    def _on_finished(self, index: int, finish_reason: str) -> bytes:
        frames = self._open(index, by_text=True)
        is_silent = self._heads.pop(index, None) is None and not any(choice == index for choice, _ in self._calls)
        if is_silent and not frames and (empty := self.shape.empty_text(index)) is not None:
            frames.append(self._chunk(empty))
        del self._reasoning_heads[index]
        frames.append(self._chunk(self.shape.closing(index, finish_reason, self.native_reasons.get(index))))
        return self._numbered(frames)

    def _on_completed(self) -> bytes:
        done = sse.DONE.decode()
        if not self._include_usage:
            return self._numbered([done]) if self._is_retained else sse.DONE
        document: dict[str, Any] = {"usage": usage_document(self.usage)}
        if self.timing is not None:
            document["timing"] = timing_document(self.timing)
        rest = json.dumps(document, separators=(",", ":"))[1:]
        usage = f"{self._top}],{rest}{sse.EVENT_END}"
        # With an id of its own, so that who comes back knows that there is no more.
        return self._numbered([usage, done]) if self._is_retained else self._numbered([usage]) + sse.DONE

    def _open(self, index: int, *, by_text: bool) -> list[str]:
        """Return the chunk that opens a choice, once; else nothing."""
        if index in self._reasoning_heads:
            return []
        self._reasoning_heads[index] = self._top + self.shape.before_reasoning(index)
        opening = self.shape.opening(index, by_text=by_text)
        return [] if opening is None else [self._chunk(opening)]

    def _head(self, index: int) -> str:
        head = self._heads.get(index)
        if head is None:
            head = self._heads[index] = self._top + self.shape.before_text(index)
        return head

    def _chunk(self, choice: str) -> str:
        return f"{self._top}{choice}]{self._usage_null}}}{sse.EVENT_END}"

    def _after_text(self, logprobs: str) -> str:
        return self.shape.after_text + self._behind(logprobs)

    def _behind(self, logprobs: str) -> str:
        return f'{logprobs},"finish_reason":null}}]{self._usage_null}}}{sse.EVENT_END}'

    def _numbered(self, frames: Sequence[str]) -> bytes:
        parts = [f"{self._id}{self.sequence}.{part}\n{frame}" for part, frame in enumerate(frames[:-1], 1)]
        parts += [f"{self._id}{self.sequence}\n{frame}" for frame in frames[-1:]]
        return "".join(parts).encode("ascii")

    def _without_silent_end(self, index: int, tokens: Sequence[gen.TokenLogprob]) -> Sequence[gen.TokenLogprob]:
        """Return those that can be told now; the others are told if something comes behind them."""
        tokens = [*self._silent.pop(index, ()), *tokens]
        end = len(tokens)
        while end and is_silent(tokens[end - 1]):
            end -= 1
        if end < len(tokens):
            self._silent[index] = tokens[end:]
        return tokens[:end]

    def _logprob_groups(self, index: int, tokens: Sequence[gen.TokenLogprob]) -> Iterator[str]:
        """Yield the `logprobs` of one delta as JSON text, cut where a chunk would grow too long."""
        writer = self.shape.logprobs(self._offsets.get(index, 0))
        for token in tokens:
            if writer.size > MAX_LOGPROBS_CHARS:
                yield writer.text()
                writer = self.shape.logprobs(writer.offset_chars)
            writer.add(token)
        self._offsets[index] = writer.offset_chars
        yield writer.text()


def _pieces(text: str) -> list[str]:
    return [text[at : at + MAX_TEXT_CHARS] for at in range(0, len(text), MAX_TEXT_CHARS)]
