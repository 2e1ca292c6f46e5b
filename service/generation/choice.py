"""One choice of a generation: from the engine's bytes to the deltas that a reader gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from service.backends.base import EngineOutput
from service.core.assembly import MAX_DELTA_CHARS, Assembled, Detail, TextAssembler
from service.core.events import Delta, TokenLogprob
from service.parsing import OutputParser, Piece

__all__ = ["Choice"]


class Choice:
    """State of one choice.

    `output_tokens` is None once an output came without a count. `parser` is None
    where the text is sent as it is: most choices, and the cheaper way.

    A token's details go with the delta in which its text begins: text, reasoning or
    a call. Those of marks, and of whitespace that was dropped, go with the reasoning
    or the call behind them; before text and at the end they have a delta of their own,
    so that the log-probs of all text are those of the answer.
    """

    __slots__ = ("_assembler", "_is_in_text", "_seen", "_shows_ids", "_tokens", "answer", "number", "output_tokens",
                 "parser", "raw", "reasoning_tokens")  # fmt: skip

    def __init__(
        self,
        number: int,
        assembler: TextAssembler,
        parser: OutputParser | None,
        *,
        shows_ids: bool,
        keeps_raw: bool,
        keeps_answer: bool = False,
    ) -> None:
        self.number = number
        self.parser = parser
        self.output_tokens: int | None = 0
        self.reasoning_tokens = 0
        # Kept only where a tokenizer has to count what the engine does not.
        self.raw: list[bytes] | None = [] if keeps_raw else None
        # Text of the answer so far; kept only where it is held against a constraint.
        self.answer: list[str] | None = [] if keeps_answer else None
        self._assembler = assembler
        # Stop tokens need the engine's ids, also where nobody asked for them.
        self._shows_ids = shows_ids
        # Of a parsed choice: where they begin in the text that the parser got, while no piece has reached them.
        self._tokens: deque[Detail] = deque()
        # Characters that the parser got; counted only while there are tokens.
        self._seen = 0
        self._is_in_text = True

    @property
    def holds_back(self) -> bool:
        """True while text waits for what follows: it may become a stop string, or is part of a character."""
        return self._assembler.holds_back

    def feed(self, item: EngineOutput) -> Assembled:
        """Count `item` and return its text, cut at a stop criterion."""
        tokens = item.tokens
        if tokens is None:
            self.output_tokens = None
        elif self.output_tokens is not None:
            self.output_tokens += tokens
            if self.parser is not None and self.parser.is_reasoning:
                self.reasoning_tokens += tokens
        if self.raw is not None:
            self.raw.append(item.data)
        assembled = self._shown(self._assembler.feed(item.data, item.token_ids, item.logprobs))
        if self.answer is not None and self.parser is None:
            self.answer.append(assembled.text)
        return assembled

    def flush(self) -> Assembled:
        """Return what was held back, because the engine ended."""
        assembled = self._shown(self._assembler.flush())
        if self.answer is not None and self.parser is None:
            self.answer.append(assembled.text)
        return assembled

    def deltas(self, assembled: Assembled, *, is_last: bool = False) -> list[Delta]:
        """Return what a reader gets of `assembled`: parsed, in events of a bounded size."""
        if self.parser is None:
            _, token_ids, logprobs = assembled[:3]
            return [] if assembled.is_empty else _cut(self.number, Piece(assembled.text), token_ids, logprobs)
        pieces = self.parser.feed(assembled.text) if assembled.text else []
        if is_last:
            pieces = [*pieces, *self.parser.flush()]
        if self.answer is not None:
            self.answer += [piece.text for piece in pieces]
        if assembled.details or self._tokens:
            return self._with_tokens(pieces, assembled, is_last=is_last)
        return [delta for piece in pieces for delta in _cut(self.number, piece)]

    def _with_tokens(self, pieces: Sequence[Piece], assembled: Assembled, *, is_last: bool) -> list[Delta]:
        self._seen += len(assembled.text)
        self._tokens.extend([(self._seen - place, token_id, logprob) for place, token_id, logprob in assembled.details])
        made: list[Delta] = []
        for piece in pieces:
            end = self._seen - piece.rest
            if piece.text:
                self._add_mark(made, end - len(piece.text))
            made += _cut(self.number, piece, *self._take(end))
            self._is_in_text = bool(piece.text)
        if is_last:
            # An end of sequence has no text, and goes with that before it.
            self._add_mark(made, self._seen if self._is_in_text else None)
            if self._tokens:
                made.append(Delta(self.number, "", *self._take(None)))
        return made

    def _add_mark(self, made: list[Delta], end: int | None) -> None:
        token_ids, logprobs = self._take(end)
        if token_ids or logprobs:
            made.append(Delta(self.number, "", token_ids, logprobs, is_mark=True))

    def _take(self, end: int | None) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        """Return ids and log-probs of the tokens that begin before `end`, of all without one."""
        token_ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        tokens = self._tokens
        while tokens and (end is None or tokens[0][0] < end):
            _, token_id, logprob = tokens.popleft()
            if token_id is not None and self._shows_ids:
                token_ids.append(token_id)
            if logprob is not None:
                logprobs.append(logprob)
        return tuple(token_ids), tuple(logprobs)

    def _shown(self, assembled: Assembled) -> Assembled:
        return assembled if self._shows_ids or not assembled.token_ids else assembled._replace(token_ids=())


def _cut(
    number: int, piece: Piece, token_ids: tuple[int, ...] = (), logprobs: tuple[TokenLogprob, ...] = ()
) -> list[Delta]:
    """Return `piece` as deltas of at most MAX_DELTA_CHARS; the token details go with the first."""
    call = piece.call
    text = piece.text or piece.reasoning or (call.arguments if call is not None else "")
    if len(text) <= MAX_DELTA_CHARS:
        return [Delta(number, piece.text, token_ids, logprobs, piece.reasoning, call)]
    parts = [text[at : at + MAX_DELTA_CHARS] for at in range(0, len(text), MAX_DELTA_CHARS)]
    made = [
        Delta(
            number,
            part if piece.text else "",
            (),
            (),
            part if piece.reasoning else "",
            # Arguments come behind the piece that begins a call.
            None if call is None else call._replace(arguments=part),
        )
        for part in parts
    ]
    made[0] = made[0]._replace(token_ids=token_ids, logprobs=logprobs)
    return made
