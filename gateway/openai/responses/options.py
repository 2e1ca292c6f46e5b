"""The nested options of a request: what the text has to look like, and how to reason."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from gateway.openai.base import RequestModel
from gateway.openai.json_values import ObjectText
from gateway.openai.parameters import Hint
from headrace.v1 import sampling_pb2

__all__ = ["ReasoningOptions", "TextOptions", "ascii_text"]

_NOT_USED: Final = "Accepted and not used: {}"


def ascii_text(text: str) -> str:
    """Return JSON text with every character beyond ASCII escaped."""
    return text if text.isascii() else json.dumps(json.loads(text), separators=(",", ":"))


class PlainFormat(RequestModel):
    """Free text, or any JSON object."""

    type: Literal["text", "json_object"]

    def document(self) -> str:
        """Return the format as the response repeats it, as JSON text."""
        return f'{{"type":"{self.type}"}}'


class SchemaFormat(RequestModel):
    """A JSON Schema that the answer has to satisfy."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
    schema_: Annotated[ObjectText, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = Field(default=None, description="The schema is enforced with either value.")

    def document(self) -> str:
        """Return the format as the response repeats it, as JSON text."""
        top = {"type": self.type, "name": self.name, "description": self.description, "strict": self.strict}
        return f'{json.dumps(top)[:-1]},"schema":{ascii_text(self.schema_)}}}'


def _format_kind(value: Any) -> str:
    return "<schema>" if isinstance(value, dict) and value.get("type") == "json_schema" else "<plain>"


_Format = Annotated[
    Annotated[PlainFormat, Tag("<plain>")] | Annotated[SchemaFormat, Tag("<schema>")], Discriminator(_format_kind)
]


class TextOptions(RequestModel):
    """What the text of the answer looks like."""

    format: _Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(
        default=None, description=_NOT_USED.format("a wish for shorter or longer answers.")
    )

    def constraint(self) -> sampling_pb2.OutputConstraint | None:
        """Return the constraint; None for free text."""
        if isinstance(self.format, SchemaFormat):
            return sampling_pb2.OutputConstraint(json_schema=self.format.schema_)
        if self.format is not None and self.format.type == "json_object":
            return sampling_pb2.OutputConstraint(json_object=sampling_pb2.JsonObjectConstraint())
        return None

    def document(self) -> str:
        """Return the options as the response repeats them, as JSON text."""
        format_text = self.format.document() if self.format else '{"type":"text"}'
        return f'{{"format":{format_text},"verbosity":"{self.verbosity or "medium"}"}}'


class ReasoningOptions(RequestModel):
    """How to reason."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="A hint to the chat template; those that do not know it ignore it."
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        default=None, description=_NOT_USED.format("reasoning is sent as it is.")
    )
    generate_summary: Hint
    context: Hint
    mode: Hint
