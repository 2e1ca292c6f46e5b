"""From the events of a generation to the chunks of a stream.

The hot path of the gateway. What surrounds the text is the same for every
delta of a choice and is written once; per token only the text is encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from gateway import sse
from gateway.openai.requests import GenerationCall
from gateway.openai.responses import GenerationReader, timing_document, usage_document
from headrace.v1 import generation_pb2 as gen

__all__ = ["ChunkStream"]

# Common clients give up on lines above 64 KiB. An escaped character takes at
# most 12 bytes, so text and log-probs of one chunk stay below 30 KB each.
MAX_TEXT_CHARS: Final = 2500
MAX_LOGPROBS_BYTES: Final = 30_000


class ChunkStream(GenerationReader):
    """Turns events into server-sent events; `feed` returns whole events only."""

    def __init__(self, call: GenerationCall, created_s: int) -> None:
        super().__init__(call, created_s)
        self._include_usage = call.include_usage
        self._usage_null = ',"usage":null' if call.include_usage else ""
        self._top = ""  # a chunk up to its choices
        self._heads: dict[int, str] = {}  # of open choices: a chunk up to its text
        self._tail = ""  # a chunk from its text on, without log-probs
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
        self._top = sse.EVENT_START + json.dumps(top, separators=(",", ":"))[:-1] + ',"choices":['
        self._tail = self._after_text("null")
        return b""

    def _on_delta(self, delta: gen.ChoiceDelta) -> bytes:
        text = delta.text
        head = self._heads.get(delta.index)
        if head is None or self._wants_logprobs or len(text) > MAX_TEXT_CHARS or not text:
            return self._slow_delta(delta)
        return (head + encode_basestring_ascii(text) + self._tail).encode("ascii")

    def _slow_delta(self, delta: gen.ChoiceDelta) -> bytes:
        logprobs = list(delta.logprobs) if self._wants_logprobs else []
        index = delta.index
        if index not in self._heads:
            self._check_open(index)
        if not delta.text and not logprobs:
            return b""
        opening = self._open(index)
        self.has_output = True
        pieces = [delta.text[at : at + MAX_TEXT_CHARS] for at in range(0, len(delta.text), MAX_TEXT_CHARS)]
        groups = self._logprob_groups(index, logprobs)
        head = self._heads[index]
        frames = (
            head + encode_basestring_ascii(text) + self._after_text(group)
            for text, group in zip_longest(pieces, groups, fillvalue=None)
            for text, group in [(text or "", group or "null")]
        )
        return (opening + "".join(frames)).encode("ascii")

    def _on_finished(self, index: int, finish_reason: str) -> bytes:
        opening = self._open(index)
        del self._heads[index]
        return (opening + self._chunk(self.shape.closing(index, finish_reason))).encode("ascii")

    def _on_completed(self) -> bytes:
        if not self._include_usage:
            return sse.DONE
        document: dict[str, Any] = {"usage": usage_document(self.usage)}
        if self.timing is not None:
            document["timing"] = timing_document(self.timing)
        rest = json.dumps(document, separators=(",", ":"))[1:]
        return f"{self._top}],{rest}{sse.EVENT_END}".encode("ascii") + sse.DONE

    def _open(self, index: int) -> str:
        """Return the chunk that opens a choice, once."""
        if index in self._heads:
            return ""
        self._heads[index] = self._top + self.shape.before_text(index)
        opening = self.shape.opening(index)
        return "" if opening is None else self._chunk(opening)

    def _chunk(self, choice: str) -> str:
        return f"{self._top}{choice}]{self._usage_null}}}{sse.EVENT_END}"

    def _after_text(self, logprobs: str) -> str:
        return f'{self.shape.after_text}{logprobs},"finish_reason":null}}]{self._usage_null}}}{sse.EVENT_END}'

    def _logprob_groups(self, index: int, tokens: Sequence[gen.TokenLogprob]) -> Iterator[str]:
        """Yield the `logprobs` of one delta as JSON text, cut where a chunk would grow too long."""
        first = 0
        while first < len(tokens):
            count = len(tokens) - first
            offset = self._offsets.get(index, 0)
            while True:
                group = tokens[first : first + count]
                text = json.dumps(self.shape.logprobs(group, offset), separators=(",", ":"))
                if len(text) <= MAX_LOGPROBS_BYTES or count == 1:
                    break
                count = (count + 1) // 2
            self._offsets[index] = offset + sum(len(token.text) for token in group)
            first += count
            yield text
