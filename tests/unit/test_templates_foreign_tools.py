"""Templates in the style of well-known models: what they read is there, in the shape that they expect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.core.errors import Reason, ServiceError
from service.core.request import Chat, ChatMessage, ReasoningEffort, Role, Tool, ToolCall
from service.parsing import ReasoningFormat, ToolFormat, reasoning_format_of, tool_format_of
from service.templates import ChatTemplate

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool(name="get_weather", description="Tells the weather.", parameters=json.dumps(CITY))
CALL_ID = "call_0123456789abcdef01234567"
TALK = (
    ChatMessage(role=Role.SYSTEM, content="Be brief."),
    ChatMessage(role=Role.USER, content="Weather?"),
    ChatMessage(
        role=Role.ASSISTANT,
        content="",
        reasoning="Paris, surely.",
        tool_calls=(ToolCall(id=CALL_ID, name="get_weather", arguments='{"city": "Paris", "n": 1}'),),
    ),
    ChatMessage(role=Role.TOOL, content="18 degrees", tool_call_id=CALL_ID),
)
CHAT = Chat(messages=TALK, tools=(WEATHER,))

# Qwen 3: Hermes tags, earlier reasoning is shown while its call is open, thinking can be switched off.
QWEN = """
{%- if tools %}
{{- '<|im_start|>system\\n' + (messages[0].content + '\\n\\n' if messages[0].role == 'system' else '') }}
{{- '<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set reasoning = '' %}
{%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
{%- elif '</think>' in message.content %}{%- set reasoning = message.content.split('</think>')[0] %}{%- endif %}
{{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + message.content }}
{%- if message.tool_calls %}{%- for tool_call in message.tool_calls %}
{%- if (loop.first and message.content) or not loop.first %}{{- '\\n' }}{%- endif %}
{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
{%- if tool_call.arguments is string %}{{- tool_call.arguments }}
{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or (messages[loop.index0 - 1].role != 'tool') %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# Llama 3.1: one call at a time, parameters, results as "ipython" and as JSON where they are no text.
LLAMA = """
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- for message in messages %}
{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in message %}
{%- if not message.tool_calls | length == 1 %}{{- raise_exception('only single tool-calls at once') }}{%- endif %}
{%- set tool_call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{{- '{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- '}<|eot_id|>' }}
{%- elif message.role == 'tool' or message.role == 'ipython' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
{%- if message.content is mapping or message.content is iterable and message.content is not string %}
{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}{%- endif %}
"""

# Mistral 7B v0.3: ids of nine characters, or the conversation is refused.
MISTRAL = """
{{- bos_token }}
{%- if tools is not none %}{{- '[AVAILABLE_TOOLS] [' }}
{%- for tool in tools %}{%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}
{%- for key, val in tool.items() if key != 'return' %}
{%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
{%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}
{{- '}}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- '][/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '[INST] ' + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}{{- '[TOOL_CALLS] [' }}
{%- for tool_call in message.tool_calls %}{%- set out = tool_call.function | tojson %}{{- out[:-1] }}
{%- if not tool_call.id is defined or tool_call.id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}
{{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' + eos_token }}{%- endif %}
{%- endfor %}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', ' }}
{%- if not message.tool_call_id is defined or message.tool_call_id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}
{{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}
"""

# DeepSeek R1: arguments are put together with text, so they have to be text.
TEXT_ARGUMENTS = """
{%- for message in messages %}
{%- if message.role == 'assistant' and 'tool_calls' in message %}
{%- for tool in message['tool_calls'] %}
{{- tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' }}
{%- endfor %}
{%- else %}{{- message.content }}{%- endif %}
{%- endfor %}
"""


def template(source: str, **facts: Any) -> ChatTemplate:
    return ChatTemplate(source, origin="t.jinja", **facts)


def test_a_qwen_template_gets_tools_calls_results_and_earlier_reasoning() -> None:
    tool = {"name": "get_weather", "description": "Tells the weather.", "parameters": CITY}
    assert template(QWEN).render(CHAT) == (
        "<|im_start|>system\nBe brief.\n\n<tools>\n"
        + json.dumps({"type": "function", "function": tool})
        + "\n</tools><|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nParis, surely.\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "n": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n18 degrees\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_llama_template_gets_one_call_and_its_refusal_of_two_reaches_the_caller() -> None:
    rendered = template(LLAMA, bos_text="<|begin_of_text|>").render(CHAT)
    assert '{"name": "get_weather", "parameters": {"city": "Paris", "n": 1}}<|eot_id|>' in rendered
    assert "<|start_header_id|>ipython<|end_header_id|>\n\n18 degrees<|eot_id|>" in rendered
    assert '\n        "name": "get_weather"' in rendered
    twice = ChatMessage(role=Role.ASSISTANT, content="", tool_calls=TALK[2].tool_calls * 2)
    with pytest.raises(ServiceError, match="single tool-calls") as caught:
        template(LLAMA).render(Chat(messages=(TALK[1], twice)))
    assert [violation.field for violation in caught.value.violations] == ["chat.messages"]


def test_a_mistral_template_gets_ids_that_it_accepts_and_that_still_belong_together() -> None:
    rendered = template(MISTRAL, bos_text="<s>", eos_text="</s>").render(CHAT)
    before, _, after = rendered.partition(', "id": "')
    short = after[:9]
    assert short.isalnum()
    assert before.endswith('[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "n": 1}')
    assert f'"call_id": "{short}"}}[/TOOL_RESULTS]' in rendered
    assert '"name": "get_weather", "description": "Tells the weather.", "parameters": {"type": "object"' in rendered


def test_an_id_of_the_vendors_own_form_stays() -> None:
    own = (
        TALK[1],
        ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(ToolCall(id="VvvODy9mT", name="f", arguments="{}"),)),
        ChatMessage(role=Role.TOOL, content="1", tool_call_id="VvvODy9mT"),
    )
    assert template(MISTRAL).render(Chat(messages=own)).count('"VvvODy9mT"') == 2


def test_a_template_that_needs_arguments_as_text_gets_the_callers_own() -> None:
    assert 'get_weather\n```json\n{"city": "Paris", "n": 1}\n```' in template(TEXT_ARGUMENTS).render(CHAT)


def test_a_template_that_would_show_a_mapping_as_python_does_gets_text() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert template(source).render(CHAT) == '{"city": "Paris", "n": 1}'


def test_a_result_has_the_name_of_the_function_that_it_answers_for() -> None:
    source = "{% for m in messages %}{{ m.name | default('-') }}{{ m.tool_call_id | default('') }} {% endfor %}"
    assert template(source).render(CHAT) == f"- - - get_weather{CALL_ID} "
    named = ChatMessage(role=Role.TOOL, content="x", tool_call_id=CALL_ID, name="mine")
    assert template(source).render(Chat(messages=(*TALK[:3], named))).endswith(f"mine{CALL_ID} ")


def test_calls_reasoning_and_ids_are_there_only_where_they_were_given() -> None:
    source = "{{ messages[0] | tojson }}{{ tools is none }}"
    chat = Chat(messages=(ChatMessage(role=Role.USER, content="x"),))
    assert template(source).render(chat) == '{"role": "user", "content": "x"}True'


def test_a_tool_without_parameters_has_an_empty_schema_whose_properties_can_be_gone_through() -> None:
    source = "{% for name in tools[0].function.parameters.properties %}{{ name }}{% endfor %}{{ tools[0] | tojson }}"
    chat = Chat(messages=TALK[:2], tools=(Tool(name="now"),))
    assert json.loads(template(source).render(chat)) == {
        "type": "function",
        "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
    }


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": [1, 2.5, null]}', '{"a": [1, 2.5, null]}'),
        ("[1]", '"[1]"'),
        ("", '""'),
        ("{'a': 1}", "\"{'a': 1}\""),
        ('{"a":' * 5000 + "1" + "}" * 5000, None),
        ('{"a":' * 100 + "1" + "}" * 100, None),
    ],
)
def test_arguments_are_a_mapping_where_they_are_one_and_text_otherwise(arguments: str, shown: str | None) -> None:
    call = ToolCall(id="c", name="f", arguments=arguments)
    chat = Chat(messages=(ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(call,)),))
    rendered = template("{{ messages[0].tool_calls[0].function.arguments | tojson }}").render(chat)
    assert rendered == (json.dumps(arguments) if shown is None else shown)


@pytest.mark.parametrize(
    ("effort", "args", "variables"),
    [
        (None, {}, "- -"),
        (ReasoningEffort.NONE, {}, "none False"),
        (ReasoningEffort.LOW, {}, "low True"),
        (ReasoningEffort.LOW, {"enable_thinking": False, "reasoning_effort": "mine"}, "mine False"),
    ],
)
def test_the_effort_is_told_and_template_arguments_win(
    effort: ReasoningEffort | None, args: dict[str, Any], variables: str
) -> None:
    both = template("{{ reasoning_effort | default('-') }} {{ enable_thinking | default('-') }}")
    assert both.knows_reasoning_effort
    assert both.render(Chat(messages=TALK[:2], reasoning_effort=effort, template_args=args)) == variables


def test_the_effort_none_closes_the_reasoning_of_a_qwen_template_at_once() -> None:
    for effort, end in [
        (ReasoningEffort.NONE, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (ReasoningEffort.HIGH, "<|im_start|>assistant\n"),
    ]:
        chat = Chat(messages=TALK[:2], reasoning_effort=effort)
        assert template(QWEN).render(chat).endswith(f"Weather?<|im_end|>\n{end}")


@pytest.mark.parametrize(
    ("source", "knows_tools", "knows_effort"),
    [
        (QWEN, True, True),
        (LLAMA, True, False),
        (MISTRAL, True, False),
        (TEXT_ARGUMENTS, False, False),
        ("{{ 'no tools here, and no reasoning_effort' }}", False, False),
        ("{{ reasoning_effort }}", False, True),
    ],
)
def test_a_template_says_what_it_knows_by_the_variables_that_it_reads(
    source: str, knows_tools: bool, knows_effort: bool
) -> None:
    found = template(source)
    assert (found.knows_tools, found.knows_reasoning_effort) == (knows_tools, knows_effort)
    assert found.source == source


def test_the_formats_of_well_known_templates_are_recognised() -> None:
    assert [tool_format_of(source) for source in (QWEN, LLAMA, MISTRAL, TEXT_ARGUMENTS)] == [
        ToolFormat.HERMES,
        ToolFormat.LLAMA3_JSON,
        ToolFormat.MISTRAL,
        None,
    ]
    assert [reasoning_format_of(source) for source in (QWEN, LLAMA)] == [ReasoningFormat.THINK, None]


def test_tools_of_the_request_cannot_be_given_as_template_arguments_as_well() -> None:
    args = {"tools": [{"mine": True}]}
    assert template("{{ tools[0].mine }}").render(Chat(messages=TALK[:2], template_args=args)) == "True"
    with pytest.raises(ServiceError) as caught:
        template("{{ tools }}").render(Chat(messages=TALK[:2], template_args=args, tools=(WEATHER,)))
    assert [violation.field for violation in caught.value.violations] == ["chat.template_args[tools]"]


def test_a_template_that_fails_on_a_tool_names_the_tools() -> None:
    chat = Chat(messages=TALK[:2], tools=(WEATHER,))
    with pytest.raises(ServiceError) as caught:
        template("{{ tools[0].function.parameters.missing.deeper }}").render(chat)
    assert caught.value.reason is Reason.INVALID_FIELD
    assert [violation.field for violation in caught.value.violations] == ["chat.tools"]
