"""Token details of a parsed choice: they go where the text of their token went, and none is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.backends.base import EngineOutput
from service.core.assembly import TextAssembler
from service.core.events import Delta, TokenLogprob
from service.generation.choice import Choice
from service.parsing import ReasoningFormat, ToolFormat, open_parser

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": "ü"}}\n</tool_call>'
FRAGMENTS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<", "\n", " ", "{", "}", "]", "Hi", "é😀"),
    *('{"name": "add", "arguments": {"a": 1}}', '{"name": "x"}', "END", "EN", CALL, '"', "\ufffd"),
]


def choice(tools: ToolFormat | None, *, stops: tuple[str, ...] = (), shows_ids: bool = True) -> Choice:
    parser = open_parser(
        tools=tools,
        guided=None,
        reasoning=ReasoningFormat.THINK,
        starts_in_reasoning=False,
        parallel=True,
        tool_names=frozenset({"add"}),
    )
    return Choice(0, TextAssembler(stops), parser, shows_ids=shows_ids, keeps_raw=False)


def told(one: Choice, tokens: Sequence[bytes], *, group: int = 1, has_logprobs: bool = True) -> list[Delta]:
    """Return all deltas of an answer of `tokens`, `group` of them in an output."""
    made: list[Delta] = []
    for at in range(0, len(tokens), group):
        raws = tokens[at : at + group]
        ids = tuple(range(at, at + len(raws)))
        logprobs = tuple([TokenLogprob(i, -0.5, raw) for i, raw in zip(ids, raws, strict=True)])
        item = EngineOutput(b"".join(raws), len(raws), ids, logprobs if has_logprobs else ())
        assembled = one.feed(item)
        if assembled.is_stopped:
            return [*made, *one.deltas(assembled, is_last=True)]
        made += one.deltas(assembled)
    return [*made, *one.deltas(one.flush(), is_last=True)]


def raw_of(deltas: Sequence[Delta]) -> bytes:
    return b"".join([logprob.raw for delta in deltas for logprob in delta.logprobs])


def in_text(deltas: Sequence[Delta]) -> list[Delta]:
    return [delta for delta in deltas if not (delta.reasoning or delta.call or delta.is_mark)]


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join([delta.text for delta in deltas])


@pytest.mark.parametrize("tools", [None, *ToolFormat])
@given(
    answer=st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    is_cut=st.booleans(),
    group=st.integers(1, 7),
    stops=st.sampled_from([(), ("END",), ("zz", "\n\n")]),
)
@settings(max_examples=80, deadline=None)
def test_the_tokens_of_all_text_are_the_text_and_every_token_comes_once_and_in_order(
    tools: ToolFormat | None, answer: str, is_cut: bool, group: int, stops: tuple[str, ...]
) -> None:
    # A token is a byte, or a character: then none is half text and half mark.
    data = answer.encode()
    tokens = [data[at : at + 1] for at in range(len(data))] if is_cut else [c.encode() for c in answer]
    deltas = told(choice(tools, stops=stops), tokens, group=group)
    assert raw_of(in_text(deltas)).decode() == text_of(deltas)
    ids = [i for delta in deltas for i in delta.token_ids]
    cut = min((answer.find(stop) for stop in stops if stop in answer), default=len(answer))
    assert ids == list(range(len(ids)))
    assert raw_of(deltas).decode() == answer[:cut]


def test_each_kind_has_its_own_tokens_and_marks_stand_with_none_of_the_text() -> None:
    tokens = [
        *("<think>", "\n", "Hm", ".", "</think>", "\n\n", "Let", " me", ".", "<tool_call>", "\n", '{"name": "add"'),
        *(', "arguments": ', '{"a', '": 1}', "}", "\n", "</tool_call>", "Done", ""),
    ]
    deltas = told(choice(ToolFormat.HERMES), [token.encode() for token in tokens])
    kinds = [
        (
            "mark" if delta.is_mark else "reasoning" if delta.reasoning else "call" if delta.call else "text",
            [tokens[i] for i in delta.token_ids],
        )
        for delta in deltas
    ]
    assert kinds == [
        ("reasoning", ["<think>", "\n", "Hm"]),
        ("reasoning", ["."]),
        ("mark", ["</think>", "\n\n"]),
        ("text", ["Let"]),
        ("text", [" me"]),
        ("text", ["."]),
        ("call", ["<tool_call>", "\n", '{"name": "add"']),
        ("call", [', "arguments": ', '{"a']),
        ("call", ['": 1}']),
        ("mark", ["}", "\n", "</tool_call>"]),
        ("text", ["Done"]),
        # An end of sequence.
        ("text", [""]),
    ]


def test_what_ends_with_a_call_or_with_reasoning_leaves_no_token_to_the_text() -> None:
    for answer in (["<think>", "Hm", "</think>", "\n", ""], ["<tool_call>", '{"name":"add"}', "</tool_call>", ""]):
        deltas = told(choice(ToolFormat.HERMES), [token.encode() for token in answer])
        assert in_text(deltas) == []
        assert [i for delta in deltas for i in delta.token_ids] == [0, 1, 2, 3, 4][: len(answer)]


def test_without_the_bytes_of_each_token_those_of_an_output_go_where_it_begins() -> None:
    tokens = [b"<think>", b"Hm", b"</think>", b"Yes", b".", b" No"]
    deltas = told(choice(None), tokens, group=5, has_logprobs=False)
    assert [(delta.reasoning, delta.text, delta.token_ids) for delta in deltas] == [
        ("Hm", "", (0, 1, 2, 3, 4)),
        ("", "Yes.", ()),
        ("", " No", (5,)),
    ]


def test_ids_that_nobody_asked_for_are_not_told() -> None:
    deltas = told(choice(None, shows_ids=False), [b"<think>", b"Hm", b"</think>", b"Yes"])
    assert [i for delta in deltas for i in delta.token_ids] == []
    assert raw_of(deltas) == b"<think>Hm</think>Yes"


def test_a_long_piece_has_its_tokens_in_its_first_delta_and_all_of_its_text() -> None:
    text = "word " * 5000
    deltas = told(choice(ToolFormat.HERMES), [text.encode()])
    assert (text_of(deltas), [delta.token_ids for delta in deltas if delta.token_ids]) == (text, [(0,)])
    assert len(deltas) > 1


@pytest.mark.parametrize(
    ("begin", "word"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": "', " word"),
        ('<tool_call>{"name": "add", "note": "', " word"),
        ('<tool_call>{"arguments": {"a": "', " word"),
        ('<tool_call>{"name": "add"}', "}"),
        ('<tool_call>{"name": "add"} oops', "} <"),
        ("", "<tool"),
        ("", " "),
    ],
)
def test_cost_is_linear_in_the_length_of_an_answer(begin: str, word: str) -> None:
    def run_s(count: int) -> float:
        tokens = [begin.encode(), *[word.encode()] * count]
        started = time.process_time()
        told(choice(ToolFormat.HERMES), tokens)
        return time.process_time() - started

    run_s(500)
    assert min(run_s(10_000) for _ in range(3)) < 8 * min(run_s(2500) for _ in range(3))
