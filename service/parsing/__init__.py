"""What a model wrote, told apart: text, reasoning and tool calls, while it arrives.

Pure: knows the core values, and neither engines nor the wire.
"""

from service.parsing.base import MAX_CALLS, OutputParser, Piece
from service.parsing.formats import (
    ReasoningFormat,
    ToolFormat,
    marks_of,
    open_parser,
    opens_reasoning,
    reasoning_format_of,
    tool_format_of,
)
from service.parsing.guided import AnyCalls, GuidedCalls, NamedCall, guided_schema

__all__ = [
    "MAX_CALLS",
    "AnyCalls",
    "GuidedCalls",
    "NamedCall",
    "OutputParser",
    "Piece",
    "ReasoningFormat",
    "ToolFormat",
    "guided_schema",
    "marks_of",
    "open_parser",
    "opens_reasoning",
    "reasoning_format_of",
    "tool_format_of",
]
