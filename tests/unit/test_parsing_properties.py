"""What holds for every parser and every text: no cut matters, nothing is lost, nothing raises."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.parsing import AnyCalls, GuidedCalls, NamedCall, OutputParser, ReasoningFormat, ToolFormat, open_parser
from tests.support.parsed_output import parse

NAMES = frozenset({"get_weather", "add"})

CONFIGURATIONS: list[tuple[ToolFormat | None, GuidedCalls | None]] = [
    (None, None),
    *((tools, None) for tools in ToolFormat),
    (None, NamedCall("add")),
    (None, AnyCalls(parallel=True)),
    (None, AnyCalls(parallel=False)),
]

FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "```", "```json"),
    *("<think>", "</think>", "<", "</", "[TO", "\n", " ", "{", "}", "[", "]", ",", ";", ":", "\\", "`", '"'),
    *('"name"', '"arguments"', '"parameters"', '"function"', '"id"', '"add"', '"nobody"', "add", "null", "12", "json"),
    *('{"x": 1}', '{"a": [1, 2', '"{\\"a\\": \\u0041\\ud83d\\ude00}"', "\\u", "\\ud83d", "é😀", "Hello", "x" * 260),
    *('{"name": "add", "arguments": {"a": 1}}', '{"name":"get_weather","parameters":{"c":"}\\"{"}}'),
]
garbage = st.one_of(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join), st.text(max_size=60))
cuts = st.lists(st.integers(1, 12), min_size=1, max_size=40)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
arguments_of = st.dictionaries(st.text(max_size=8), json_values, max_size=4)
calls_of = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), arguments_of), min_size=1, max_size=3)


def opened(
    tools: ToolFormat | None,
    guided: GuidedCalls | None,
    *,
    reasoning: bool = False,
    inside: bool = False,
    parallel: bool = True,
) -> OutputParser | None:
    return open_parser(
        tools=tools,
        guided=guided,
        reasoning=ReasoningFormat.THINK if reasoning else None,
        starts_in_reasoning=inside,
        parallel=parallel,
        tool_names=NAMES,
    )


def pieces_of(text: str, lengths: list[int]) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        length = lengths[len(pieces) % len(lengths)]
        pieces.append(text[at : at + length])
        at += length
    return pieces


def is_subsequence(part: str, whole: str) -> bool:
    rest = iter(whole)
    return all(character in rest for character in part)


@pytest.mark.parametrize(("tools", "guided"), CONFIGURATIONS)
@given(text=garbage, lengths=cuts, reasoning=st.booleans(), inside=st.booleans(), parallel=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_outcome_does_not_depend_on_how_the_text_is_cut(
    tools: ToolFormat | None,
    guided: GuidedCalls | None,
    text: str,
    lengths: list[int],
    reasoning: bool,
    inside: bool,
    parallel: bool,
) -> None:
    if tools is None and guided is None and not reasoning:
        return
    outcomes = []
    for pieces in ([text], pieces_of(text, lengths), list(text)):
        parser = opened(tools, guided, reasoning=reasoning, inside=inside, parallel=parallel)
        assert parser is not None
        outcomes.append(parse(parser, pieces))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize("tools", list(ToolFormat))
@given(text=garbage)
@settings(max_examples=60, deadline=None)
def test_text_without_a_call_passes_unchanged_and_with_one_in_its_order(tools: ToolFormat, text: str) -> None:
    parser = opened(tools, None)
    assert parser is not None
    found = parse(parser, text)
    if found.calls:
        assert is_subsequence(found.text, text)
    else:
        assert found.text == text


def split_at_once(text: str, *, inside: bool) -> tuple[str, str]:
    """Return reasoning and text of a whole answer, by looking at it as a whole."""
    opened = re.match(r"[ \t\r\n]*<think>", text)
    if opened is None and not inside:
        return "", text
    body = text if opened is None else text[opened.end() :]
    reasoning, _, rest = body.lstrip("\r\n").partition("</think>")
    return reasoning, rest.lstrip("\r\n")


@given(text=garbage, lengths=cuts, inside=st.booleans())
@settings(max_examples=120, deadline=None)
def test_reasoning_is_what_stands_between_the_tags_at_the_start(text: str, lengths: list[int], inside: bool) -> None:
    parser = opened(None, None, reasoning=True, inside=inside)
    assert parser is not None
    found = parse(parser, pieces_of(text, lengths))
    assert (found.reasoning, found.text) == split_at_once(text, inside=inside)


def written(tools: ToolFormat, calls: list[tuple[str, dict[str, Any]]], indent: int | None, *, as_string: bool) -> str:
    key = "parameters" if tools is ToolFormat.LLAMA3_JSON else "arguments"
    objects = [
        json.dumps({"name": name, key: json.dumps(arguments) if as_string else arguments}, indent=indent)
        for name, arguments in calls
    ]
    match tools:
        case ToolFormat.HERMES:
            return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in objects)
        case ToolFormat.LLAMA3_JSON:
            return "; ".join(objects)
        case ToolFormat.MISTRAL:
            return f"[TOOL_CALLS] [{', '.join(objects)}]"
        case ToolFormat.JSON:
            return f"```json\n[{', '.join(objects)}]\n```"


@pytest.mark.parametrize("tools", list(ToolFormat))
@given(calls=calls_of, lengths=cuts, indent=st.sampled_from([None, 2]), as_string=st.booleans())
@settings(max_examples=40, deadline=None)
def test_arguments_of_well_formed_calls_mean_what_was_written(
    tools: ToolFormat,
    calls: list[tuple[str, dict[str, Any]]],
    lengths: list[int],
    indent: int | None,
    as_string: bool,
) -> None:
    parser = opened(tools, None)
    assert parser is not None
    found = parse(parser, pieces_of(written(tools, calls, indent, as_string=as_string), lengths))
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == calls
    assert found.text == ""


@given(calls=calls_of, lengths=cuts, parallel=st.booleans())
@settings(max_examples=40, deadline=None)
def test_forced_calls_mean_what_was_written(
    calls: list[tuple[str, dict[str, Any]]], lengths: list[int], parallel: bool
) -> None:
    objects = [{"name": name, "arguments": arguments} for name, arguments in calls]
    text = json.dumps(objects if parallel else objects[0])
    parser = opened(None, AnyCalls(parallel=parallel))
    assert parser is not None
    found = parse(parser, pieces_of(text, lengths))
    expected = calls if parallel else calls[:1]
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == expected
    assert found.is_complete
