"""Reasoning between tags, before text and before calls."""

from __future__ import annotations

import pytest

from service.parsing import NamedCall, OutputParser, ReasoningFormat, ToolFormat, open_parser
from service.parsing.guided import GuidedCalls
from tests.support.parsed_output import parse


def parser(
    *, tools: ToolFormat | None = None, guided: GuidedCalls | None = None, inside: bool = False, parallel: bool = True
) -> OutputParser:
    opened = open_parser(
        tools=tools,
        guided=guided,
        reasoning=ReasoningFormat.THINK,
        starts_in_reasoning=inside,
        parallel=parallel,
        tool_names=frozenset({"add"}),
    )
    assert opened is not None
    return opened


@pytest.mark.parametrize(
    ("inside", "answer", "reasoning", "text"),
    [
        (False, "<think>\nHm.\n</think>\n\nYes.", "Hm.\n", "Yes."),
        (False, "\n <think>Hm.</think>Yes.", "Hm.", "Yes."),
        (False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        (False, "Yes. <think>no</think>", "", "Yes. <think>no</think>"),
        (False, "<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
        (False, "<think>a < b, <think> </thin", "a < b, <think> </thin", ""),
        (False, " <thi", "", " <thi"),
        (False, "", "", ""),
        (True, "\nHm.</think>\nYes.", "Hm.", "Yes."),
        (True, "<think>\nHm.</think>\nYes.", "Hm.", "Yes."),
        (True, "</think>Yes.", "", "Yes."),
        (True, "never ends", "never ends", ""),
        (True, "\n never ends", " never ends", ""),
        (True, '{"a": 1}', '{"a": 1}', ""),
    ],
)
def test_reasoning_is_told_apart_however_it_is_cut(inside: bool, answer: str, reasoning: str, text: str) -> None:
    for pieces in ([answer], list(answer)):
        found = parse(parser(inside=inside), pieces)
        assert (found.reasoning, found.text) == (reasoning, text)


def test_calls_follow_reasoning_and_not_inside_of_it() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    found = parse(parser(tools=ToolFormat.HERMES), f"<think>I write {call}?</think>\n\n{call}")
    assert (found.reasoning, found.text, found.calls) == (f"I write {call}?", "", [("add", "{}")])
    assert found.order == "reasoning call"


def test_the_parser_says_whether_it_is_inside() -> None:
    outside = parser()
    told = [outside.is_reasoning]
    for piece in ("<thi", "nk>", "a", "</think>", "b"):
        outside.feed(piece)
        told.append(outside.is_reasoning)
    assert told == [False, False, True, True, False, False]
    assert parser(inside=True).is_reasoning


def test_completeness_is_that_of_the_calls() -> None:
    single = parser(tools=ToolFormat.HERMES, parallel=False)
    single.feed('<think>x</think><tool_call>{"name": "add", "arguments": {}')
    assert (single.calls, single.is_complete) == (1, False)
    assert not single.is_call_open
    single.feed("}")
    assert single.is_complete
    assert not parser().is_complete
    assert not parser().is_call_open
    cut = parser(tools=ToolFormat.HERMES)
    cut.feed('<think>x</think><tool_call>{"name": "add", "arguments": {')
    assert cut.is_call_open


@pytest.mark.parametrize(
    ("inside", "answer", "reasoning"),
    [
        (False, '{"a": 1}', ""),
        (True, '{"a": 1}', ""),
        (True, 'Hm {}.</think>\n{"a": 1}', "Hm {}."),
        (False, '<think>Hm.</think>{"a": 1}', "Hm."),
    ],
)
def test_forced_output_is_understood_with_reasoning_before_it_and_without(
    inside: bool, answer: str, reasoning: str
) -> None:
    found = parse(parser(guided=NamedCall("add"), inside=inside), answer)
    assert (found.reasoning, found.text, found.calls) == (reasoning, "", [("add", '{"a": 1}')])
