"""Turns the engine's bytes into deltas: UTF-8, stop strings, token details.

One assembler per choice, the same for every engine, so that the text never
depends on how the engine groups tokens.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from service.core.events import TokenLogprob
from service.core.stops import StopMatcher

__all__ = ["Assembled", "Detail", "TextAssembler"]

# One event stays under 64 KiB on every wire: common SSE readers abort on
# longer lines. 8,192 characters are at most 32 KiB of UTF-8 and, escaped as
# JSON, 48 KiB.
MAX_DELTA_CHARS = 8192


# A token: how many characters were sent from its text on, its id and its log-prob, where known.
Detail = tuple[int, int | None, TokenLogprob | None]


class Assembled(NamedTuple):
    """Text to send now, the details of the tokens behind it, and the end if it came.

    `details` are the same tokens again, with their places: a token that began n
    characters before the end of the text has n, one behind it 0.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    stop_sequence: str | None = None
    stop_token_id: int | None = None
    details: tuple[Detail, ...] = ()

    @property
    def is_stopped(self) -> bool:
        """True when a stop criterion matched: nothing may follow."""
        return self.stop_sequence is not None or self.stop_token_id is not None

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to send."""
        return not (self.text or self.token_ids or self.logprobs)


class TextAssembler:
    """Assembles one choice.

    Invalid bytes become U+FFFD as soon as they can no longer be completed; at
    most three bytes are held. A character cut by the end of the generation
    becomes one U+FFFD, so that streamed and whole answers agree.

    Token details travel with the text that their token contributed to: they
    wait while that text is held back or incomplete, tokens without text go with
    the next text, and a token that lies wholly inside a stop match is dropped
    with it. Tokens that come in one output have places of their own if the bytes of
    their log-probs make up the output; else that of the output.
    """

    __slots__ = ("_decode", "_decoder", "_details", "_matcher", "_seen", "_sent", "_stop_ids")

    def __init__(
        self,
        stop_sequences: tuple[str, ...] = (),
        stop_token_ids: Sequence[int] = (),
        *,
        include_stop: bool = False,
    ) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode = self._decoder.decode
        self._matcher = StopMatcher(stop_sequences, include_in_output=include_stop) if stop_sequences else None
        self._stop_ids = frozenset(stop_token_ids)
        # (characters seen before this token's text, id, logprob) of unsent tokens.
        self._details: deque[tuple[int, int | None, TokenLogprob | None]] = deque()
        self._seen = 0
        self._sent = 0

    @property
    def holds_back(self) -> bool:
        """True while something waits for what follows it."""
        is_in_character = bool(self._decoder.getstate()[0])
        return is_in_character or bool(self._details) or (self._matcher is not None and self._matcher.holds_back)

    def feed(
        self,
        data: bytes,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> Assembled:
        """Return what may be sent now that one engine output has arrived."""
        stop_id = None
        if self._stop_ids and token_ids:
            stop_id = next((i for i in token_ids if i in self._stop_ids), None)
        if stop_id is not None:
            return self._stop_on_token(stop_id, token_ids, logprobs)
        text = self._decode_tokens(data, token_ids, logprobs) if token_ids or logprobs else self._decode(data)
        if self._matcher is None and not self._details:
            return Assembled(text)
        self._seen += len(text)
        if self._matcher is None:
            return self._release(text, None)
        scan = self._matcher.feed(text)
        return self._release(scan.text, scan.matched)

    def flush(self) -> Assembled:
        """Return what was held back, because the engine ended."""
        text = self._decode(b"", final=True)
        self._seen += len(text)
        matched = None
        if self._matcher is not None:
            scan = self._matcher.feed(text)
            text, matched = scan.text, scan.matched
            if matched is None:
                rest = self._matcher.flush()
                text, matched = text + rest.text, rest.matched
        return self._release(text, matched, is_last=True)

    def _stop_on_token(self, stop_id: int, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> Assembled:
        # What came before the stop token in one grouped output is still text;
        # without per-token bytes it cannot be told apart, and is dropped with it.
        before = token_ids.index(stop_id)
        if before and len(logprobs) == len(token_ids):
            kept = logprobs[:before]
            head = self.feed(b"".join(p.raw for p in kept), token_ids[:before], kept)
            if head.is_stopped:
                return head
        else:
            head = Assembled()
        rest = self.flush()
        return Assembled(
            head.text + rest.text,
            head.token_ids + rest.token_ids,
            head.logprobs + rest.logprobs,
            stop_sequence=rest.stop_sequence,
            stop_token_id=stop_id if rest.stop_sequence is None else None,
            details=tuple([(d[0] + len(rest.text), d[1], d[2]) for d in head.details]) + rest.details,
        )

    def _decode_tokens(self, data: bytes, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> str:
        count = max(len(token_ids), len(logprobs))
        has_places = len(logprobs) == count > 1 and b"".join([one.raw for one in logprobs]) == data
        text = "" if has_places else self._decode(data)
        for position in range(count):
            token_id = token_ids[position] if position < len(token_ids) else None
            logprob = logprobs[position] if position < len(logprobs) else None
            self._details.append((self._seen + (len(text) if has_places else 0), token_id, logprob))
            if has_places:
                text += self._decode(logprobs[position].raw)
        return text

    def _release(self, text: str, matched: str | None, *, is_last: bool = False) -> Assembled:
        self._sent += len(text)
        if not self._details:
            return Assembled(text, stop_sequence=matched)
        ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        released: list[Detail] = []
        details = self._details
        everything = is_last and matched is None
        while details and (everything or details[0][0] < self._sent):
            start, token_id, logprob = details.popleft()
            released.append((self._sent - start, token_id, logprob))
            if token_id is not None:
                ids.append(token_id)
            if logprob is not None:
                logprobs.append(logprob)
        if matched is not None:
            details.clear()
        return Assembled(text, tuple(ids), tuple(logprobs), matched, None, tuple(released))
