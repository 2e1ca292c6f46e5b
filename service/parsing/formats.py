"""The formats in which models write tool calls and reasoning, and how a chat template tells them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

from service.parsing.base import OutputParser
from service.parsing.calls import CallParser
from service.parsing.guided import AnyCalls, GuidedCalls, NamedCall, NamedCallParser
from service.parsing.prefixed_call import ARGUMENTS_MARK, ID_MARK
from service.parsing.reasoning import CLOSE, OPEN, ThinkParser
from service.parsing.shape import Shape

__all__ = [
    "ReasoningFormat",
    "ToolFormat",
    "marks_of",
    "open_parser",
    "opens_reasoning",
    "reasoning_format_of",
    "tool_format_of",
]


class ToolFormat(Enum):
    """How a model writes tool calls; the value is the word of the models file."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    JSON = "json"


class ReasoningFormat(Enum):
    """How a model writes its reasoning; the value is the word of the models file."""

    THINK = "think"


_SHAPES: Final[Mapping[ToolFormat, Shape]] = {
    ToolFormat.HERMES: Shape(opener="<tool_call>", closer="</tool_call>"),
    ToolFormat.LLAMA3_JSON: Shape(opener="<|python_tag|>", separators=";,", is_bare=True, is_strict=True),
    # Bare, because engines leave out control tokens, and the opener is one.
    ToolFormat.MISTRAL: Shape(opener="[TOOL_CALLS]", is_bare=True, has_prefixed_names=True),
    ToolFormat.JSON: Shape(is_bare=True, has_fences=True, is_strict=True),
}
_GUIDED: Final = Shape(is_bare=True, is_whole=True)

# Control tokens that a format consists of, beside the opener.
_MORE_MARKS: Final[Mapping[ToolFormat, tuple[str, ...]]] = {ToolFormat.MISTRAL: (ARGUMENTS_MARK, ID_MARK)}

# In templates of models that write calls in a way of their own, which none of the parsers reads.
_FOREIGN: Final = (
    "<function=",  # Qwen3-Coder: XML
    "<arg_key>",  # GLM: XML
    "<\uff5ctool",  # DeepSeek
    "<|tool_call",  # Granite, Phi
    "<|channel|>",  # GPT-OSS
    "<|action_start|>",  # InternLM
    "<|START_ACTION|>",  # Command
    "<TOOLCALL>",  # Nemotron
    "<minimax:tool_call>",
)
_LLAMA3_MARKS: Final = ("<|start_header_id|>", "<|python_tag|>")
_MENTIONS_TOOLS: Final = re.compile(r"\btools\b")


def tool_format_of(template_source: str) -> ToolFormat | None:
    """Return the format that a chat template teaches its model; None if it knows no tools, or a format unknown here."""
    if not _MENTIONS_TOOLS.search(template_source) or any(mark in template_source for mark in _FOREIGN):
        return None
    if "<tool_call>" in template_source:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in template_source:
        return ToolFormat.MISTRAL
    if any(mark in template_source for mark in _LLAMA3_MARKS):
        return ToolFormat.LLAMA3_JSON
    return ToolFormat.JSON


def reasoning_format_of(template_source: str) -> ReasoningFormat | None:
    """Return the format of the reasoning that a chat template knows of; None if it knows of none."""
    return ReasoningFormat.THINK if OPEN in template_source or CLOSE in template_source else None


def opens_reasoning(reasoning: ReasoningFormat, prompt: str) -> bool:
    """Return whether `prompt` ends inside reasoning, so that the model goes on with it."""
    match reasoning:
        case ReasoningFormat.THINK:
            return prompt[-64:].rstrip().endswith(OPEN)


def marks_of(tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> tuple[str, ...]:
    """Return the texts that the parser has to see, and which an engine must not leave out as control tokens."""
    marks: list[str] = []
    if tools is not None:
        shape = _SHAPES[tools]
        marks += [mark for mark in (shape.opener, shape.closer, *_MORE_MARKS.get(tools, ())) if mark]
    if reasoning is not None:
        marks += [OPEN, CLOSE]
    return tuple(marks)


def open_parser(
    *,
    tools: ToolFormat | None,
    guided: GuidedCalls | None,
    reasoning: ReasoningFormat | None,
    starts_in_reasoning: bool,
    parallel: bool,
    tool_names: frozenset[str],
    is_json: bool = False,
) -> OutputParser | None:
    """Return a parser for one choice; None if there is nothing to parse.

    `guided` wins over `tools`; `is_json` says that a constraint makes the answer
    JSON. Forced output is JSON from its first character for
    engines that allow nothing else, and behind the reasoning for those that wait
    with it: both are understood, whatever `starts_in_reasoning` says.
    """
    inner: OutputParser | None = None
    match guided:
        case NamedCall(name=name):
            inner = NamedCallParser(name)
        case AnyCalls(parallel=is_list):
            # The schema bounds the calls: a list of one is complete with its bracket.
            inner = CallParser(_GUIDED, names=tool_names, parallel=is_list)
        case None if tools is not None:
            inner = CallParser(_SHAPES[tools], names=tool_names, parallel=parallel)
        case None:
            pass
    if reasoning is None:
        return inner
    return ThinkParser(inner, starts_inside=starts_in_reasoning, may_be_json=is_json or guided is not None)
