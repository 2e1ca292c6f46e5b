"""One choice of a generation: from the engine's bytes to the deltas that a reader gets."""

from __future__ import annotations

from service.backends.base import EngineOutput
from service.core.assembly import MAX_DELTA_CHARS, Assembled, TextAssembler
from service.core.events import Delta, TokenLogprob
from service.parsing import OutputParser, Piece

__all__ = ["Choice"]


class Choice:
    """State of one choice.

    `output_tokens` is None once an output came without a count. `parser` is None
    where the text is sent as it is: most choices, and the cheaper way. Token
    details travel with the first delta that follows their token.
    """

    __slots__ = ("_assembler", "_ids", "_logprobs", "_shows_ids", "number", "output_tokens", "parser", "raw",
                 "reasoning_tokens")  # fmt: skip

    def __init__(
        self,
        number: int,
        assembler: TextAssembler,
        parser: OutputParser | None,
        *,
        shows_ids: bool,
        keeps_raw: bool,
    ) -> None:
        self.number = number
        self.parser = parser
        self.output_tokens: int | None = 0
        self.reasoning_tokens = 0
        # Kept only where a tokenizer has to count what the engine does not.
        self.raw: list[bytes] | None = [] if keeps_raw else None
        self._assembler = assembler
        # Stop tokens need the engine's ids, also where nobody asked for them.
        self._shows_ids = shows_ids
        self._ids: tuple[int, ...] = ()
        self._logprobs: tuple[TokenLogprob, ...] = ()

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
        return self._shown(self._assembler.feed(item.data, item.token_ids, item.logprobs))

    def flush(self) -> Assembled:
        """Return what was held back, because the engine ended."""
        return self._shown(self._assembler.flush())

    def deltas(self, assembled: Assembled, *, is_last: bool = False) -> list[Delta]:
        """Return what a reader gets of `assembled`: parsed, in events of a bounded size."""
        if self.parser is None:
            return [] if assembled.is_empty else _cut(self.number, Piece(text=assembled.text), assembled)
        pieces = self.parser.feed(assembled.text) if assembled.text else []
        if is_last:
            pieces = [*pieces, *self.parser.flush()]
        self._ids += assembled.token_ids
        self._logprobs += assembled.logprobs
        if is_last and not pieces and (self._ids or self._logprobs):
            pieces = [Piece()]
        made: list[Delta] = []
        for piece in pieces:
            made += _cut(self.number, piece, Assembled("", self._ids, self._logprobs))
            self._ids = self._logprobs = ()
        return made

    def _shown(self, assembled: Assembled) -> Assembled:
        return assembled if self._shows_ids or not assembled.token_ids else assembled._replace(token_ids=())


def _cut(number: int, piece: Piece, details: Assembled) -> list[Delta]:
    """Return `piece` as deltas of at most MAX_DELTA_CHARS; the token details go with the first."""
    text = piece.text or piece.reasoning or (piece.call.arguments if piece.call is not None else "")
    starts = range(0, len(text), MAX_DELTA_CHARS) if text else (0,)
    made = []
    for at in starts:
        part = text[at : at + MAX_DELTA_CHARS]
        call = piece.call
        if call is not None:
            call = call._replace(arguments=part) if at == 0 else call._replace(id="", name="", arguments=part)
        made.append(
            Delta(
                number,
                part if piece.text else "",
                () if at else details.token_ids,
                () if at else details.logprobs,
                part if piece.reasoning else "",
                call,
            )
        )
    return made
