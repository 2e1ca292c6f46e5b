"""Which format a template teaches, and what a parser needs to see."""

from __future__ import annotations

import pytest

from service.backends.base import BackendInfo
from service.parsing import (
    ReasoningFormat,
    ToolFormat,
    marks_of,
    open_parser,
    opens_reasoning,
    reasoning_format_of,
    tool_format_of,
)
from service.templates import load_template


@pytest.mark.parametrize(
    ("source", "tools"),
    [
        ("{% if tools %}<tools></tools> answer in <tool_call></tool_call>{% endif %}<|im_start|>", ToolFormat.HERMES),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", ToolFormat.MISTRAL),
        ("<|start_header_id|>{% if tools is not none %}{% endif %}", ToolFormat.LLAMA3_JSON),
        ("{{ tools | tojson }}", ToolFormat.JSON),
        ("<|start_header_id|>{{ messages }}", None),
        ("<|im_start|>{{ messages }} toolset", None),
        ("{% if tools %}<tool_call>\n<function=name>", None),
        ("{% if tools %}<tool_call>name\n<arg_key>", None),
        ("{% if tools %}<\uff5ctool\u2581calls\u2581begin\uff5c>", None),
    ],
)
def test_a_template_tells_the_format_of_calls_and_one_that_is_unknown_is_not_guessed(
    source: str, tools: ToolFormat | None
) -> None:
    assert tool_format_of(source) is tools


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("chatml", ToolFormat.HERMES),
        ("llama3", ToolFormat.LLAMA3_JSON),
        ("gemma", ToolFormat.JSON),
        ("qa", ToolFormat.JSON),
    ],
)
def test_every_builtin_template_teaches_a_format_that_has_a_parser(name: str, tools: ToolFormat) -> None:
    template = load_template(name, BackendInfo(provider="t", features=frozenset(), fingerprint="f"))
    assert template.knows_tools
    assert tool_format_of(template.source) is tools
    assert reasoning_format_of(template.source) is None


def test_a_template_tells_of_reasoning_by_its_tags() -> None:
    assert reasoning_format_of("{{ content.split('</think>') }}") is ReasoningFormat.THINK
    assert reasoning_format_of("{{ messages }}") is None


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<think> is a tag\n<|im_start|>assistant\n", False),
    ],
)
def test_a_prompt_that_ends_in_an_open_tag_starts_inside_reasoning(prompt: str, is_open: bool) -> None:
    assert opens_reasoning(ReasoningFormat.THINK, prompt) is is_open


def test_the_marks_are_what_an_engine_must_not_leave_out() -> None:
    assert marks_of(ToolFormat.MISTRAL, None) == ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    assert marks_of(ToolFormat.HERMES, ReasoningFormat.THINK) == (
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
    )
    assert marks_of(ToolFormat.JSON, None) == ()
    assert marks_of(None, None) == ()


def test_without_tools_and_reasoning_there_is_nothing_to_parse() -> None:
    assert (
        open_parser(
            tools=None,
            guided=None,
            reasoning=None,
            starts_in_reasoning=False,
            parallel=True,
            tool_names=frozenset(),
        )
        is None
    )


def test_every_format_has_a_parser() -> None:
    for tools in ToolFormat:
        assert open_parser(
            tools=tools,
            guided=None,
            reasoning=None,
            starts_in_reasoning=False,
            parallel=True,
            tool_names=frozenset(),
        )
