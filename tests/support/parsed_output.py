"""Runs an output parser over a text cut into pieces, and puts together what it said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from service.parsing import OutputParser, Piece

__all__ = ["ParsedOutput", "parse"]


@dataclass(slots=True)
class ParsedOutput:
    """What a reader of the pieces has in the end. `order` names the kinds of output as they alternated."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    order: str = ""
    is_complete: bool = False
    is_call_open: bool = False


def parse(parser: OutputParser, pieces: Iterable[str]) -> ParsedOutput:
    """Feed and flush `parser`, and check what holds for every piece on the way."""
    parsed = ParsedOutput()
    found: list[tuple[Piece, str]] = []
    fed = ""
    for text in pieces:
        fed += text
        found += [(piece, fed) for piece in parser.feed(text)]
    found += [(piece, fed) for piece in parser.flush()]
    ids: set[str] = set()
    reached = 0
    for piece, so_far in found:
        # Places do not go back, and a text stands where its piece says.
        end = len(so_far) - piece.rest
        assert reached <= end - len(piece.text)
        assert so_far[:end].endswith(piece.text)
        reached = end
        assert bool(piece.text) + bool(piece.reasoning) + (piece.call is not None) == 1
        kind = "text" if piece.text else "reasoning" if piece.reasoning else "call"
        parsed.text += piece.text
        parsed.reasoning += piece.reasoning
        if piece.call is not None:
            call = piece.call
            if call.id:
                assert call.name
                assert not call.arguments
                assert call.number == len(parsed.calls)
                assert call.id not in ids
                ids.add(call.id)
                parsed.calls.append((call.name, ""))
                parsed.order += " call" if parsed.order.endswith("call") else ""
            else:
                assert not call.name
                assert call.arguments
                assert call.number == len(parsed.calls) - 1
                name, arguments = parsed.calls[-1]
                parsed.calls[-1] = (name, arguments + call.arguments)
        if not parsed.order.endswith(kind):
            parsed.order = f"{parsed.order} {kind}".strip()
    assert parser.calls == len(parsed.calls)
    parsed.is_complete = parser.is_complete
    parsed.is_call_open = parser.is_call_open
    return parsed
