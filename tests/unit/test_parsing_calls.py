"""Tool calls in the ways in which models write them, right and wrong."""

from __future__ import annotations

import re

import pytest

from service.parsing import MAX_CALLS, OutputParser, ToolFormat, open_parser
from tests.support.parsed_output import ParsedOutput, parse

NAMES = frozenset({"get_weather", "add", "now"})


def parser(tools: ToolFormat, *, parallel: bool = True) -> OutputParser:
    opened = open_parser(
        tools=tools, guided=None, reasoning=None, starts_in_reasoning=False, parallel=parallel, tool_names=NAMES
    )
    assert opened is not None
    return opened


def parsed(tools: ToolFormat, text: str, *, parallel: bool = True) -> ParsedOutput:
    whole = parse(parser(tools, parallel=parallel), [text])
    assert parse(parser(tools, parallel=parallel), text) == whole, "the pieces depend on how the text is cut"
    return whole


WELL_FORMED = [
    (ToolFormat.HERMES, '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', [("add", '{"a": 1}')]),
    (
        ToolFormat.HERMES,
        '<tool_call>\n{"name":"add","arguments":{}}\n</tool_call>\n<tool_call>\n{"name":"now","arguments":{}}\n</tool_call>\n',
        [("add", "{}"), ("now", "{}")],
    ),
    (
        ToolFormat.HERMES,
        '<tool_call>[{"name":"add","arguments":{}},\n {"name":"now","arguments":{}}]</tool_call>',
        [("add", "{}"), ("now", "{}")],
    ),
    (ToolFormat.LLAMA3_JSON, '{"name": "add", "parameters": {"a": 1}}', [("add", '{"a": 1}')]),
    (ToolFormat.LLAMA3_JSON, '<|python_tag|>{"name": "add", "parameters": {"a": 1}}', [("add", '{"a": 1}')]),
    (
        ToolFormat.LLAMA3_JSON,
        '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}',
        [("add", '{"a": 1}'), ("now", "{}")],
    ),
    (
        ToolFormat.LLAMA3_JSON,
        '{"name": "now", "parameters": {}}\n<|python_tag|>{"type": "function", "name": "now", "parameters": {}}',
        [("now", "{}"), ("now", "{}")],
    ),
    (
        ToolFormat.MISTRAL,
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "VvvODy9mT"}, {"name": "now", "arguments": {}}]',
        [("add", '{"a": 1}'), ("now", "{}")],
    ),
    (ToolFormat.MISTRAL, '[TOOL_CALLS]add{"a": 1}', [("add", '{"a": 1}')]),
    (ToolFormat.MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}', [("add", '{"a": 1}'), ("now", "{}")]),
    (ToolFormat.MISTRAL, '[TOOL_CALLS]add[CALL_ID]VvvODy9mT[ARGS]{"a": 1}', [("add", '{"a": 1}')]),
    (ToolFormat.MISTRAL, ' [{"name": "add", "arguments": {"a": 1}}]', [("add", '{"a": 1}')]),
    (ToolFormat.JSON, '{"name": "add", "arguments": {"a": 1}}', [("add", '{"a": 1}')]),
    (ToolFormat.JSON, '```json\n{"name": "add", "parameters": {"a": 1}}\n```\n', [("add", '{"a": 1}')]),
    (
        ToolFormat.JSON,
        '\n```\n[{"name": "add", "arguments": {"a": 1}},\n{"name": "now", "arguments": {}}]\n```',
        [("add", '{"a": 1}'), ("now", "{}")],
    ),
    (
        ToolFormat.JSON,
        '{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}',
        [("add", '{"a": 1}')],
    ),
]


@pytest.mark.parametrize(("tools", "text", "calls"), WELL_FORMED)
def test_a_well_formed_call_is_found_and_leaves_no_text(
    tools: ToolFormat, text: str, calls: list[tuple[str, str]]
) -> None:
    found = parsed(tools, text)
    assert (found.calls, found.text) == (calls, "")
    assert not found.is_complete


@pytest.mark.parametrize(("tools", "text", "calls"), WELL_FORMED)
def test_without_parallel_calls_the_first_one_is_the_last_thing(
    tools: ToolFormat, text: str, calls: list[tuple[str, str]]
) -> None:
    found = parsed(tools, text + " And then?", parallel=False)
    assert (found.calls, found.text, found.is_complete) == (calls[:1], "", True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"a": "}\\"{\\\\"}', '{"a": "}\\"{\\\\"}'),
        ('{ "a" :\n[1, {"b": null}] }', '{ "a" :\n[1, {"b": null}] }'),
        ('{"text": "</tool_call> é😀\\u00e9"}', '{"text": "</tool_call> é😀\\u00e9"}'),
        ('"{\\"a\\": \\"\\\\u0041\\\\n\\"}"', '{"a": "\\u0041\\n"}'),
        ('"\\ud83d\\ude00 \\ud83d \\q"', "😀 \ufffd \\q"),
        ('""', "{}"),
        ("null", "{}"),
        ('"null"', "{}"),
        ("nul", "nul"),
        ("nullable", "nullable"),
        ('"nul"', "nul"),
        ("12", "12"),
        ("{'a': True}", "{'a': True}"),
    ],
)
def test_arguments_are_the_models_own_text_and_a_string_of_json_is_unquoted(arguments: str, said: str) -> None:
    found = parsed(ToolFormat.HERMES, f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>')
    assert (found.calls, found.text) == ([("add", said)], "")


def test_arguments_may_come_before_the_name() -> None:
    for tools, text in [
        (ToolFormat.HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>'),
        (ToolFormat.JSON, '{"arguments": {"a": 1}, "name": "add"}'),
    ]:
        assert parsed(tools, text).calls == [("add", '{"a": 1}')]


@pytest.mark.parametrize("tools", [ToolFormat.LLAMA3_JSON, ToolFormat.JSON])
def test_a_call_without_arguments_gets_an_empty_object(tools: ToolFormat) -> None:
    assert parsed(tools, '{"name": "now"}').calls == [("now", "{}")]
    assert parsed(ToolFormat.HERMES, '<tool_call>{"name": "now"}</tool_call>').calls == [("now", "{}")]


def test_text_before_between_and_after_calls_passes() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    found = parsed(ToolFormat.HERMES, f"I look.\n{call}\n and again {call} Done.\n")
    assert found.text == "I look.\n\n and again  Done.\n"
    assert found.order == "text call text call text"


def test_an_answer_of_whitespace_alone_is_that_whitespace() -> None:
    for tools in ToolFormat:
        assert parsed(tools, " \n ").text == " \n "


@pytest.mark.parametrize(
    "text",
    [
        "A tag <tool_call> in prose, and <tool_",
        "<tool_call>\n{name: 'add'}\n</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": ""}</tool_call>',
        '<tool_call>{"name": "\\ud800"}</tool_call>',
        '<tool_call>{"name": "' + "x" * 300 + '"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": "x',
        "<tool_call>[]</tool_call>",
        "<tool_call>",
        "a </tool_call> b",
    ],
)
def test_what_is_no_call_is_text_to_the_last_character(text: str) -> None:
    found = parsed(ToolFormat.HERMES, text)
    assert (found.text, found.calls) == (text, [])


@pytest.mark.parametrize("tools", [ToolFormat.LLAMA3_JSON, ToolFormat.JSON, ToolFormat.MISTRAL])
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "arguments": {}}',
        '{"name": "add", "age": 36}',
        '{"city": "Paris", "name": "add", "arguments": {}}',
        '[{"name": "nobody"}]',
        "[1, 2]",
        "{",
        "Hello {",
        'Like this: {"name": "add", "arguments": {}}',
        "```python\nprint(1)\n```",
    ],
)
def test_json_that_is_no_call_of_a_known_function_is_text(tools: ToolFormat, text: str) -> None:
    found = parsed(tools, text)
    assert (found.text, found.calls) == (text, [])


# Names of other functions, and names that could not even be sent back in the next turn.
@pytest.mark.parametrize("name", ["x", "functions.add", "évil", "a b", "add x", "Add", "n" * 200, "add\\n", "a.b-c_1"])
@pytest.mark.parametrize(
    ("tools", "form"),
    [
        (ToolFormat.HERMES, '<tool_call>\n{{"name": "{}", "arguments": {{"a": 1}}}}\n</tool_call> ok'),
        (ToolFormat.HERMES, '<tool_call>{{"arguments": {{"a": "x"}}, "name": "{}"}}</tool_call>'),
        (ToolFormat.HERMES, '<tool_call>[{{"name": "{}"}}]</tool_call>'),
        (ToolFormat.MISTRAL, "[TOOL_CALLS]{}{{}}"),
        (ToolFormat.MISTRAL, "[TOOL_CALLS]{}[CALL_ID]a1[ARGS]{{}}"),
        (ToolFormat.MISTRAL, '[TOOL_CALLS] [{{"name": "{}", "arguments": {{}}}}]'),
        (ToolFormat.LLAMA3_JSON, '<|python_tag|>{{"name": "{}", "parameters": {{}}}}'),
        (ToolFormat.JSON, '```json\n{{"name": "{}", "arguments": {{}}}}\n```'),
    ],
)
def test_what_names_no_function_of_the_request_is_text_with_its_marks(tools: ToolFormat, form: str, name: str) -> None:
    text = form.format(name)
    found = parsed(tools, text)
    assert (found.text, found.calls, found.is_call_open) == (text, [], False)


def test_a_call_that_names_no_function_does_not_hide_those_around_it() -> None:
    call = '<tool_call>{{"name": "{}", "arguments": {{}}}}</tool_call>'
    found = parsed(ToolFormat.HERMES, "".join(map(call.format, ("add", "x", "now"))))
    assert (found.calls, found.text) == ([("add", "{}"), ("now", "{}")], call.format("x"))


@pytest.mark.parametrize(
    ("tools", "text", "calls", "rest"),
    [
        (ToolFormat.HERMES, '<tool_call>{"name": "now", "arguments": {}}}</tool_call>', 1, ""),
        (ToolFormat.HERMES, '<tool_call>\n{"name": "now", "arguments": {}} ]}\n}\n</tool_call> ok', 1, " ok"),
        (ToolFormat.HERMES, '<tool_call>{"name": "now", "arguments": {}}} oops</tool_call> ok', 1, "} oops ok"),
        (ToolFormat.HERMES, '<tool_call>[{"name": "now", "arguments": {}}]]</tool_call>ok', 1, "ok"),
        (ToolFormat.HERMES, '<tool_call>[{"name": "now", "arguments": {}}}, {"name": "now"}]</tool_call>', 2, ""),
        (ToolFormat.HERMES, '<tool_call>{"name": "now", "arguments": {}}}\n{"name": "now"}</tool_call>', 2, ""),
        (ToolFormat.HERMES, '<tool_call>{"name": "now", "arguments": {}}}', 1, ""),
        (ToolFormat.MISTRAL, '[TOOL_CALLS] [{"name": "now", "arguments": {}}}]', 1, ""),
        (ToolFormat.MISTRAL, '[TOOL_CALLS] [{"name": "now", "arguments": {}}]] ', 1, ""),
        (ToolFormat.MISTRAL, "[TOOL_CALLS]now{}} [TOOL_CALLS]now{}", 2, "} "),
        (ToolFormat.LLAMA3_JSON, '{"name": "now", "parameters": {}}}', 1, ""),
        (ToolFormat.LLAMA3_JSON, '{"name": "now", "parameters": {}}}; {"name": "now", "parameters": {}}', 2, ""),
        (ToolFormat.JSON, '```json\n{"name": "now", "arguments": {}}}\n```', 1, ""),
        (ToolFormat.JSON, '{"name": "now", "arguments": {}}} is it', 1, "} is it"),
    ],
)
def test_brackets_too_many_behind_a_call_are_dropped_unless_text_follows(
    tools: ToolFormat, text: str, calls: int, rest: str
) -> None:
    found = parsed(tools, text)
    assert (found.calls, found.text, found.is_call_open) == ([("now", "{}")] * calls, rest, False)


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 1}\n</tool_call> ok', '{"a": 1}', " ok"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}}\n</tool_call> ok', '{"a": 1}', " ok"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}, "b" c</tool_call>', '{"a": 1}', ', "b" c'),
        ('<tool_call>{"name": "add", "arguments": {"a": [1}}</tool_call> ok', '{"a": [1}}', " ok"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1</tool_call> ok', '{"a": 1', " ok"),
        ('<tool_call>{"name": "add" oops </tool_call> ok', " oops ", " ok"),
        ('<tool_call>{"name": "add"</tool_call>', "{}", ""),
    ],
)
def test_a_call_that_breaks_behind_its_name_ends_with_its_mark_and_nothing_is_lost(
    text: str, arguments: str, rest: str
) -> None:
    found = parsed(ToolFormat.HERMES, text)
    assert (found.calls, found.text, found.is_call_open) == ([("add", arguments)], rest, False)


def test_a_call_that_breaks_in_a_format_without_an_end_mark_takes_the_rest() -> None:
    found = parsed(ToolFormat.MISTRAL, '[TOOL_CALLS] [{"name": "add", "arguments": {"a": [1}} and so on')
    assert found.calls == [("add", '{"a": [1}} and so on')]
    assert found.is_call_open


@pytest.mark.parametrize(
    ("text", "arguments", "is_open"),
    [
        ('<tool_call>{"name": "add", "argum', "", True),
        ('<tool_call>{"name": "add", "arguments": {"a": "x', '{"a": "x', True),
        ('<tool_call>{"name": "add", "arguments": {"a": {}', '{"a": {}', True),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": \\u00', '{"a": \\u00', True),
        ('<tool_call>{"name": "add", "arguments": nu', "nu", True),
        ('<tool_call>{"name": "add", "arguments": {"a": [1}', '{"a": [1}', True),
        ('<tool_call>{"name": "add", "arguments": {}', "{}", False),
        ('<tool_call>{"name": "add", "arguments": {}, "id": "', "{}", False),
        ('<tool_call>{"name": "add", "arguments": {}}</tool_', "{}", False),
        ('<tool_call>[{"name": "add", "arguments": {}}, ', "{}", False),
    ],
)
def test_an_answer_that_is_cut_inside_a_call_has_what_was_written_and_says_so(
    text: str, arguments: str, is_open: bool
) -> None:
    found = parsed(ToolFormat.HERMES, text)
    assert (found.calls, found.is_call_open) == ([("add", arguments)], is_open)
    assert found.text == ("</tool_" if text.endswith("</tool_") else "")


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        (ToolFormat.MISTRAL, '[TOOL_CALLS]add{"a": '),
        (ToolFormat.MISTRAL, '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "add", "arguments": {'),
        (ToolFormat.LLAMA3_JSON, '{"name": "add", "parameters": {"a": "</'),
        (ToolFormat.JSON, '```json\n{"name": "add", "arguments": {"a": 1'),
    ],
)
def test_a_cut_call_is_known_in_every_format(tools: ToolFormat, text: str) -> None:
    found = parsed(tools, text)
    assert found.calls[-1][0] == "add"
    assert found.is_call_open


def test_a_mark_without_a_call_does_not_hide_the_next_one() -> None:
    assert parsed(ToolFormat.HERMES, '<tool_call><tool_call>{"name":"add"}</tool_call>').calls == [("add", "{}")]
    assert parsed(ToolFormat.MISTRAL, "[TOOL_CALLS]oops[TOOL_CALLS]add{}").calls == [("add", "{}")]


def test_the_name_is_told_at_once_and_the_arguments_as_they_come() -> None:
    open_ended = parser(ToolFormat.HERMES)
    assert open_ended.feed('<tool_call>\n{"name": "add') == []
    (first,) = open_ended.feed('", ')
    assert first.call is not None
    assert (first.call.number, first.call.name, first.call.arguments) == (0, "add", "")
    assert re.fullmatch(r"call_[0-9a-f]{24}", first.call.id)
    assert open_ended.feed('"arguments": ') == []
    assert [p.call and p.call.arguments for p in open_ended.feed('{"a"')] == ['{"a"']
    assert [p.call and p.call.arguments for p in open_ended.feed(": 1")] == [": 1"]


def test_text_is_held_back_only_while_it_may_become_a_mark() -> None:
    hermes = parser(ToolFormat.HERMES)
    assert [piece.text for text in ("a <", "to", "p>", "b") for piece in hermes.feed(text)] == ["a ", "<top>", "b"]
    json_form = parser(ToolFormat.JSON)
    assert [piece.text for text in ("{", '"ti', 'tle"', ":") for piece in json_form.feed(text)] == ['{"title"', ":"]


@pytest.mark.parametrize("tools", [ToolFormat.HERMES, ToolFormat.MISTRAL])
def test_calls_beyond_the_bound_are_text(tools: ToolFormat) -> None:
    call = {
        ToolFormat.HERMES: '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
        ToolFormat.MISTRAL: "[TOOL_CALLS]now{}",
    }[tools]
    found = parse(parser(tools), [call * (MAX_CALLS + 2)])
    assert len(found.calls) == MAX_CALLS
    assert found.text == call * 2
