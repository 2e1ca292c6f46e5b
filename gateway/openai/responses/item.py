"""One item of a response's output: a message, reasoning, or a function call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Final, Literal

__all__ = ["Kind", "OutputItem", "Status", "documents"]

Kind = Literal["message", "reasoning", "function_call"]
Status = Literal["in_progress", "completed", "incomplete"]
_ID_PREFIXES: Final = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}


@dataclass(slots=True, kw_only=True, eq=False)
class OutputItem:
    """An item that grows. `call_id`, `name` and `call_index`, its place among the calls, are a function call's."""

    kind: Kind
    index: int
    generation_id: str
    call_id: str = ""
    name: str = ""
    call_index: int | None = None
    status: Status = "in_progress"
    pieces: list[str] = field(default_factory=list)
    logprobs: list[str] = field(default_factory=list)  # JSON text of each token

    @property
    def id(self) -> str:
        """Return the id: the same in every event, and in a repeated reading of the same generation."""
        return f"{_ID_PREFIXES[self.kind]}{self.generation_id}_{self.index}"

    @property
    def text(self) -> str:
        """Return the text so far: of the answer, of the reasoning, or of the arguments."""
        return "".join(self.pieces)

    def part(self) -> str:
        """Return the content part with the text so far as JSON text; not for a function call."""
        text = encode_basestring_ascii(self.text)
        if self.kind == "reasoning":
            return f'{{"type":"reasoning_text","text":{text}}}'
        return f'{{"type":"output_text","annotations":[],"logprobs":[{",".join(self.logprobs)}],"text":{text}}}'

    def document(self) -> str:
        """Return the item as JSON text. Content has no part while nothing was said."""
        top = f'{{"id":{json.dumps(self.id)},"type":"{self.kind}","status":"{self.status}"'
        if self.kind == "function_call":
            arguments = encode_basestring_ascii(self.text)
            return (
                f'{top},"arguments":{arguments},"call_id":{json.dumps(self.call_id)},"name":{json.dumps(self.name)}}}'
            )
        begun = self.status != "in_progress" or bool(self.pieces)
        content = f"[{self.part()}]" if begun else "[]"
        if self.kind == "reasoning":
            return f'{top},"summary":[],"content":{content}}}'
        return f'{top},"role":"assistant","content":{content}}}'


def documents(items: Sequence[OutputItem]) -> str:
    """Return the items as a JSON array."""
    return f"[{','.join(item.document() for item in items)}]"
