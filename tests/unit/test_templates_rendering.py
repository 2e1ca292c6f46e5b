"""What a foreign template may do, and what happens when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.errors import Reason, ServiceError
from service.core.request import Chat, ChatMessage, Role, Tool, ToolCall
from service.templates import ChatTemplate, TemplateError

HELLO = ChatMessage(role=Role.USER, content="<b>Hé</b>")


def render(source: str, *messages: ChatMessage, args: dict[str, Any] | None = None, **facts: Any) -> str:
    template = ChatTemplate(source, origin="t.jinja", **facts)
    return template.render(Chat(messages=messages or (HELLO,), template_args=args or {}))


def test_blocks_leave_no_newline_and_no_indent_behind() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.role }}|\n    {% endif %}\n{% endfor %}\n"
    assert render(source) == "user|\n"


def test_tojson_does_not_escape_for_html_or_ascii() -> None:
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "<b>Hé</b>"}'
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": [\n  2\n ],\n "b": 1\n}'


def test_loops_may_break_and_continue() -> None:
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
    )
    assert render(source + "{% endfor %}") == "02"


def test_a_loop_still_knows_its_length_and_its_last_step() -> None:
    source = "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}"
    assert render(source, HELLO, HELLO) == "1/2False 2/2True "


def test_a_loop_over_a_filter_without_length_works() -> None:
    assert render("{% for r in messages | map(attribute='role') %}{{ r }},{% endfor %}", HELLO, HELLO) == "user,user,"


def test_the_generation_mark_is_ignored_and_its_content_kept() -> None:
    assert render("a{% generation %}{{ messages[0].role }}{% endgeneration %}b") == "auserb"


def test_the_date_can_be_asked_for() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_tools_and_documents_are_none_and_not_undefined() -> None:
    assert render("{{ tools is none }}{{ documents is none }}") == "TrueTrue"


def test_template_arguments_are_variables_and_whole_numbers_are_no_floats() -> None:
    args = {"enable_thinking": False, "n": 3.0, "x": 0.5, "deep": {"list": [1.0]}}
    assert render("{{ enable_thinking }} {{ n }} {{ x }} {{ deep.list[0] }}", args=args) == "False 3 0.5 1"


@pytest.mark.parametrize("name", ["messages", "bos_token", "add_generation_prompt"])
def test_template_arguments_cannot_replace_what_the_server_sets(name: str) -> None:
    with pytest.raises(ServiceError, match="is set by the server") as caught:
        render("{{ messages }}", args={name: "x"})
    assert caught.value.violations[0].field == f"chat.template_args[{name}]"


def test_a_template_that_knows_developers_gets_them() -> None:
    source = "{% for m in messages %}{{ 'D' if m.role == 'developer' else m.role }}{% endfor %}"
    assert render(source, ChatMessage(role=Role.DEVELOPER, content="x")) == "D"


def test_the_name_of_an_author_is_there_only_if_it_was_given() -> None:
    source = "{% for m in messages %}{{ m.name | default('-') }}{% endfor %}"
    assert render(source, HELLO, ChatMessage(role=Role.USER, content="", name="Ada")) == "-Ada"


def test_the_reason_of_a_template_that_refuses_reaches_the_caller() -> None:
    with pytest.raises(ServiceError) as caught:
        render("{{ raise_exception('no system please') }}")
    assert caught.value.reason is Reason.INVALID_FIELD
    assert caught.value.violations[0].field == "chat.messages"
    assert "no system please" in caught.value.violations[0].description


def test_a_template_that_fails_by_itself_is_our_fault_and_tells_the_log() -> None:
    with pytest.raises(ServiceError) as caught:
        render("{{ messages[0].tool_calls[0].name }}")
    assert caught.value.reason is Reason.INTERNAL
    assert "tool_calls" not in caught.value.message
    assert "tool_calls" in (caught.value.detail or "")


def test_a_template_that_fails_on_arguments_is_the_callers_fault() -> None:
    with pytest.raises(ServiceError) as caught:
        render("{{ n + 1 }}", args={"n": "one"})
    assert [v.field for v in caught.value.violations] == ["chat.template_args"]


def test_a_syntax_error_names_the_file_and_the_line() -> None:
    with pytest.raises(TemplateError, match=r"^t\.jinja:2: "):
        ChatTemplate("{{ 1 }}\n{% for %}", origin="t.jinja")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ '%s' | attr('__class__') }}",
        "{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_a_template_reaches_no_internals_and_changes_no_input(source: str) -> None:
    try:
        rendered = render(source)
    except ServiceError as error:
        assert error.reason is Reason.INTERNAL  # noqa: PT017 - refusing is one of two good answers
    else:
        assert "class" not in rendered
        assert "os" not in rendered


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% for a in range(1000000) %}{% endfor %}",
        "{% for a in range(900) %}{% for b in messages | map(attribute='role') %}{% for c in range(90000) %}"
        + "{% endfor %}" * 3,
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * 'x' }}",
        "{{ [0] * 1000000000 }}",
        "{{ 10 ** 10000000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(900) %}{{ 'x' * 900000 }}{% endfor %}",
    ],
)
@pytest.mark.timeout(10)
def test_a_runaway_template_is_stopped(source: str) -> None:
    with pytest.raises(ServiceError) as caught:
        render(source)
    assert caught.value.reason is Reason.INTERNAL


def test_the_start_token_is_found_also_by_its_text() -> None:
    assert ChatTemplate("<s>{{ messages[0].content }}", origin="t", bos_text="<s>").writes_bos
    assert not ChatTemplate("{{ messages[0].content }}<s>", origin="t", bos_text="<s>").writes_bos
    assert not ChatTemplate("{{ bos_token }}{{ messages[0].content }}", origin="t").writes_bos


def test_a_template_that_refuses_a_lone_question_is_judged_by_its_source() -> None:
    source = "{{ bos_token }}{{ raise_exception('never') }}"
    assert ChatTemplate(source, origin="t", bos_text="<s>").writes_bos


QUADRATIC = "{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}{{ messages | length }}"
LOUD = "{% for m in messages %}{% for n in range(3) %}{{ m.content }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "messages"), [(QUADRATIC, (HELLO,) * 1100), (LOUD, (ChatMessage(role=Role.USER, content="x" * 2**23),))]
)
@pytest.mark.parametrize(
    "extras", [{}, {"tools": (Tool(name="f"),)}, {"template_args": {"a": 1}, "tools": (Tool(name="f"),)}]
)
def test_messages_that_make_a_template_loop_or_write_too_much_are_to_blame(
    source: str, messages: tuple[ChatMessage, ...], extras: dict[str, Any]
) -> None:
    with pytest.raises(ServiceError) as caught:
        ChatTemplate(source, origin="t").render(Chat(messages=messages, **extras))
    assert [violation.field for violation in caught.value.violations] == ["chat.messages"]


def test_of_tools_and_arguments_the_one_that_makes_a_template_fail_is_to_blame() -> None:
    source = "{{ n + 1 if n is defined }}{{ tools[0].function.missing.deeper if tools }}"
    tools = (Tool(name="f"),)
    for args, given, field in [
        ({"n": "x"}, (), "chat.template_args"),
        ({"n": 1}, tools, "chat.tools"),
        ({"other": 1}, tools, "chat.tools"),
    ]:
        with pytest.raises(ServiceError) as caught:
            ChatTemplate(source, origin="t").render(Chat(messages=(HELLO,), template_args=args, tools=given))
        assert [violation.field for violation in caught.value.violations] == [field]


def test_a_template_that_fails_on_the_messages_alone_does_not_blame_the_tools() -> None:
    source = "{{ messages[1].missing.deeper if messages | length > 1 }}"
    with pytest.raises(ServiceError) as caught:
        ChatTemplate(source, origin="t").render(Chat(messages=(HELLO, HELLO), tools=(Tool(name="f"),)))
    assert caught.value.reason is Reason.INTERNAL


@pytest.mark.parametrize(
    "arguments", [r'{"a":"\ud800"}', r'{"\udc00":[{"b":"x\ud800y"}]}', r'{"a":"\ud83d"}', r'{"a":"\udc00\ud800"}']
)
def test_half_a_character_in_the_arguments_of_a_call_becomes_a_replacement_character(arguments: str) -> None:
    call = ToolCall(id="c", name="f", arguments=arguments)
    chat = Chat(messages=(HELLO, ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(call,))))
    source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}"
    rendered = ChatTemplate(source + "{% endfor %}{% endfor %}", origin="t").render(chat)
    assert rendered.encode().decode() == rendered
    assert rendered.count("\ufffd") == arguments.count(r"\u")


def test_a_whole_character_written_as_its_halves_stays_whole() -> None:
    call = ToolCall(id="c", name="f", arguments=r'{"a":"\ud83d\ude00","b":"\ud800"}')
    chat = Chat(messages=(ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(call,)),))
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert ChatTemplate(source, origin="t").render(chat) == '{"a": "😀", "b": "\ufffd"}'


def test_a_template_cannot_make_half_a_character() -> None:
    assert render("{{ '%c' | format(55296) }}x") == "\ufffdx"
