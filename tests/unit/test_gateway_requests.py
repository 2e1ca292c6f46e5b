"""From request bodies to requests of the contract."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gateway.openai.chat import ChatRequest
from gateway.openai.constraints import StructuredOutputs
from gateway.openai.errors import ApiError
from gateway.openai.fields import StreamOptions
from gateway.openai.parameters import HINTS, REFUSED
from gateway.openai.requests import Endpoint, GenerationCall, parse
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen


def chat(**members: Any) -> GenerationCall:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}
    return parse(Endpoint.CHAT, json.dumps(body).encode())


def completion(**members: Any) -> GenerationCall:
    return parse(Endpoint.COMPLETION, json.dumps({"model": "m", "prompt": "x", **members}).encode())


def refusal(call: Any, **members: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(**members)
    assert (caught.value.http_status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


@pytest.mark.parametrize(
    ("members", "code", "message"),
    [
        (
            {"temperature": 200},
            "decimal_above_max_value",
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 200 instead.",
        ),
        (
            {"max_tokens": 0},
            "integer_below_min_value",
            "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        ),
        (
            {"stop": list("abcdefghi")},
            "array_above_max_length",
            (
                "Invalid 'stop': array too long. "
                "Expected an array with maximum length 4, but got an array with length 9 instead."
            ),
        ),
        (
            {"stream_options": {}},
            None,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        ),
        ({"messages": None}, "invalid_type", "Invalid type for 'messages': expected an array, but got null instead."),
        (
            {"audio": {"voice": "x"}},
            "unsupported_parameter",
            "Unsupported parameter: 'audio' is not supported with this model. Only text is generated.",
        ),
        (
            {"functions": [{"name": "f"}]},
            "unsupported_parameter",
            "Unsupported parameter: 'functions' is not supported with this model. Use 'tools' instead.",
        ),
        (
            {"modalities": ["text", "audio"]},
            "unsupported_value",
            (
                "Unsupported value: 'modalities[1]' does not support 'audio' with this model. "
                "Supported values are: 'text'."
            ),
        ),
        (
            {"service_tier": "scale"},
            "invalid_value",
            (
                "Invalid value for 'service_tier': 'scale'. "
                "Supported values are: 'auto', 'default', 'flex', 'priority' and 'fast'."
            ),
        ),
        (
            {"top_logprobs": 2},
            None,
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "invalid_value",
            (
                "Invalid 'response_format.json_schema.name': string does not match pattern. "
                "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
            ),
        ),
        (
            {"messages": [{"role": "nobody", "content": "x"}]},
            "invalid_value",
            (
                "Invalid value for 'messages[0].role': 'nobody'. "
                "Supported values are: 'system', 'developer', 'user', 'assistant', 'tool'."
            ),
        ),
        (
            {"messages": [{"content": "x"}]},
            "missing_required_parameter",
            "Missing required parameter: 'messages[0].role'.",
        ),
        (
            {"stop": ""},
            "string_below_min_length",
            (
                "Invalid 'stop': string too short. "
                "Expected a string with minimum length 1, but got an empty string instead."
            ),
        ),
        (
            {"messages": []},
            "empty_array",
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        ),
    ],
)
def test_problems_are_worded_as_openai_words_them(members: dict[str, Any], code: str, message: str) -> None:
    error = refusal(chat, **members)
    assert (error.code, error.message) == (code, message)


def test_numbers_are_quoted_as_they_came() -> None:
    assert "but got 2.00000001 instead" in refusal(chat, temperature=2.00000001).message
    assert "but got 1e+300 instead" in refusal(chat, repetition_penalty=1e300).message
    assert "but got 1e-50 instead" in refusal(chat, repetition_penalty=1e-50).message


def test_a_part_that_is_no_text_does_not_lack_one() -> None:
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    error = refusal(chat, messages=[{"role": "user", "content": [picture]}])
    assert (error.param, "Missing" in error.message) == ("messages[0].content[0].type", False)
    assert "content[0].text" in refusal(chat, messages=[{"role": "user", "content": [{"type": "text"}]}]).message


def test_sentences_of_the_service_name_members_of_the_body() -> None:
    spell = chat(max_completion_tokens=3).naming.spell
    assert spell("must be at most max_output_tokens (3), got 4") == "must be at most max_completion_tokens (3), got 4"
    assert spell("needs output.logprobs") == "needs logprobs"
    assert spell("at most 4096 for this model, e.g. other_words") == "at most 4096 for this model, e.g. other_words"


def test_all_problems_are_told_at_once_and_the_first_is_the_param() -> None:
    error = refusal(chat, temperature=3, top_p=0, n="1", seed=2**64, frequency_penalty=-3)
    for name in ("temperature", "top_p", "n", "seed", "frequency_penalty"):
        assert f"'{name}'" in error.message
    assert error.param == "n"


def test_a_callers_megabyte_is_not_sent_back() -> None:
    assert len(refusal(chat, temperature="x" * 10**6).message) < 500
    assert len(refusal(chat, messages=[{"role": "x" * 10**6, "content": ""}] * 25).message) < 10_000
    assert len(refusal(chat, logit_bias={"x" * 10**6: 1}).message) < 500


STRUCTURES = {
    "objects": '"metadata":[' + "{}," * 70_000 + "1]",
    "nested arrays": '"tools":' + "[" * 70_000 + "]" * 70_000,
    "strings": '"x":{"b":""' + ',"a":""' * 150_000 + "}",
    "numbers": '"prompt":[' + "1," * 1_400_000 + "1]",
}


@pytest.mark.parametrize("what", STRUCTURES)
def test_structure_is_bounded_before_anything_is_built_from_it(what: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(Endpoint.COMPLETION, b'{"model":"m","prompt":"x",' + STRUCTURES[what].encode() + b"}")
    assert (caught.value.http_status, caught.value.code) == (400, "request_too_complex")


def test_text_that_looks_like_structure_is_text() -> None:
    text = '[{"\\\\,' * 500_000
    assert completion(prompt=text).request.prompt == text


def test_a_prompt_of_as_many_token_ids_as_the_contract_takes_passes_and_one_more_does_not() -> None:
    assert len(completion(prompt=[1] * 2**20).request.tokens.ids) == 2**20
    assert refusal(completion, prompt=[1] * (2**20 + 1)).code == "array_above_max_length"


@pytest.mark.parametrize("items", [[1, *[""] * 50_000], [[1] * 3] * 50_000, ["a", *[""] * 50_000], [["a"] * 50_000]])
def test_of_many_wrong_items_one_is_told(items: Any) -> None:
    assert "more." not in refusal(completion, prompt=items).message
    assert "more." not in refusal(chat, messages=[{"role": "user", "content": items}]).message


def test_lists_are_no_longer_than_the_contract_takes() -> None:
    assert refusal(chat, messages=[{"role": "user", "content": "x"}] * 4097).param == "messages"
    parts = [{"type": "text", "text": "x"}] * 1025
    assert refusal(chat, messages=[{"role": "user", "content": parts}]).param == "messages[0].content"
    assert refusal(chat, logit_bias={str(i): "x" for i in range(1025)}).code == "object_above_max_length"


@pytest.mark.parametrize("key", [" 5", "5 ", "+5", "1_0", "5.0", "05", "", "\u0665", "9" * 5000, "abc"])
def test_a_key_of_logit_bias_is_a_decimal_number_and_nothing_else(key: str) -> None:
    error = refusal(chat, logit_bias={key: 1})
    assert (error.code, str(error.param).startswith("logit_bias")) == ("invalid_value", True)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [10**4000] * 5},
        {str(i): 1 for i in range(65)},
        {"a": "x" * 17_000},
        {"a": [{}] * 10_000},
        {"a": "\u20ac" * 6000},
    ],
)
def test_template_variables_are_few_and_small(value: dict[str, Any]) -> None:
    error = refusal(chat, chat_template_kwargs=value)
    assert (error.param, error.code) == ("chat_template_kwargs", "invalid_value")
    assert "at most 64 members and 16384 bytes" in error.message


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    body = '{"model":"m","messages":[{"role":"user","content":"q"}],"%s":%s}'
    for name in ("temperature", "top_p", "repetition_penalty", "chat_template_kwargs"):
        value = f'{{"a":[{text}]}}' if name == "chat_template_kwargs" else text
        with pytest.raises(ApiError) as caught:
            parse(Endpoint.CHAT, (body % (name, value)).encode())
        assert caught.value.param == name


@pytest.mark.parametrize("seed", [-1, 0, 2**63 - 1, -(2**63)])
def test_every_64_bit_integer_is_a_seed(seed: int) -> None:
    assert chat(seed=seed).request.sampling.seed == seed


def test_zero_and_absent_differ() -> None:
    assert chat(temperature=0).request.sampling.HasField("temperature")
    assert not chat().request.sampling.HasField("temperature")
    assert not chat().request.HasField("stop")


def test_the_smaller_of_two_limits_counts_and_lends_its_name() -> None:
    both = chat(max_tokens=5, max_completion_tokens=9)
    assert both.request.sampling.max_output_tokens == 5
    assert both.naming.json_name("sampling.max_output_tokens") == "max_tokens"
    assert chat(max_completion_tokens=9).naming.json_name("sampling.max_output_tokens") == "max_completion_tokens"


def test_contract_paths_become_json_names_and_keep_what_follows() -> None:
    name = chat().naming.json_name
    assert name("stop.sequences[3]") == "stop[3]"
    assert name("chat.messages[0].content[1].text") == "messages[0].content[1].text"
    assert name("sampling.logit_bias[7]") == "logit_bias.7"
    assert name("choice_count") == "n"
    assert name("never.heard.of") == "never.heard.of"
    assert completion().naming.json_name("tokens.ids[2]") == "prompt[2]"
    assert completion().naming.json_name("output.top_logprobs") == "logprobs"


NOT_OVER_HTTP = {"token_ids", "queue_events"}


def test_every_field_of_the_contract_has_a_json_name() -> None:
    names = chat().naming.fields.keys() | completion().naming.fields.keys()
    for field in gen.GenerateRequest.DESCRIPTOR.fields:
        assert field.name in names
        if field.name in {"sampling", "stop", "output"}:
            assert field.message_type is not None
            for inner in field.message_type.fields:
                assert f"{field.name}.{inner.name}" in names or inner.name in NOT_OVER_HTTP


@pytest.mark.parametrize(
    ("prompt", "text", "tokens"),
    [("hi", "hi", []), (["hi"], "hi", []), ([1, 2], "", [1, 2]), ([[1, 2]], "", [1, 2])],
)
def test_a_prompt_is_a_text_or_token_ids_or_a_list_of_one(prompt: Any, text: str, tokens: list[int]) -> None:
    request = completion(prompt=prompt).request
    assert (request.prompt, list(request.tokens.ids)) == (text, tokens)


@pytest.mark.parametrize("prompt", [[], "", [[]], [""], 5, None, [1, "a"], [True], [-1], {}])
def test_other_prompts_are_refused_by_name(prompt: Any) -> None:
    assert str(refusal(completion, prompt=prompt).param).startswith("prompt")


@pytest.mark.parametrize(
    "harmless",
    [
        {"tools": []}, {"tools": None}, {"tool_choice": "none"}, {"tool_choice": "auto"}, {"modalities": ["text"]},
        {"functions": []}, {"audio": None}, {"function_call": "auto"}, {"parallel_tool_calls": True},
        {"skip_special_tokens": True}, {"add_generation_prompt": True}, {"use_beam_search": False},
        {"length_penalty": 1.0}, {"store": True}, {"prediction": {"type": "content", "content": "x"}},
        {"prompt_cache_key": "k"}, {"prompt_cache_retention": "24h"}, {"verbosity": "low"}, {"some_new_member": [1]},
    ],
)  # fmt: skip
def test_members_that_ask_for_nothing_pass(harmless: dict[str, Any]) -> None:
    assert chat(**harmless).request == chat().request


def test_a_response_format_becomes_a_constraint() -> None:
    assert not chat(response_format={"type": "text"}).request.HasField("constraint")
    assert chat(response_format={"type": "json_object"}).request.constraint.HasField("json_object")
    schema = {"type": "object", "properties": {"b": {}, "a": {"enum": ["\u00e9"]}}}
    given = chat(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    )
    assert list(json.loads(given.request.constraint.json_schema)["properties"]) == ["b", "a"]
    assert json.loads(given.request.constraint.json_schema) == schema


@pytest.mark.parametrize(
    ("members", "kind", "value"),
    [
        ({"guided_json": {"b": 1, "a": 2}}, "json_schema", '{"b":1,"a":2}'),
        ({"guided_json": '{"type": "object"}'}, "json_schema", '{"type": "object"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_grammar": "root ::= 'a'"}, "grammar", "root ::= 'a'"),
        ({"structured_outputs": {"json": {"type": "string"}}}, "json_schema", '{"type":"string"}'),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"grammar": "g"}}, "grammar", "g"),
    ],
)
@pytest.mark.parametrize("call", [chat, completion])
def test_the_ways_of_other_servers_to_ask_for_a_constraint_are_understood(
    call: Any, members: dict[str, Any], kind: str, value: str
) -> None:
    given = call(**members)
    assert given.request.constraint.WhichOneof("kind") == kind
    assert getattr(given.request.constraint, kind) == value
    name, member = next((name, given) for name, given in members.items())
    spelled = f"{name}.{next(iter(member))}" if name == "structured_outputs" else name
    assert given.naming.json_name(f"constraint.{kind}") == spelled


def test_a_choice_among_texts_travels_in_both_spellings() -> None:
    for call in (chat(guided_choice=["a", "b"]), chat(structured_outputs={"choice": ["a", "b"]})):
        assert list(call.request.constraint.choice.choices) == ["a", "b"]
    named = chat(guided_choice=["a", "b"]).naming.json_name("constraint.choice.choices[1]")
    assert named == "guided_choice[1]"
    assert chat(structured_outputs={"json_object": True}).request.constraint.HasField("json_object")


def test_two_constraints_are_refused_and_both_are_named() -> None:
    error = refusal(chat, response_format={"type": "json_object"}, guided_regex="a")
    assert (error.param, error.code) == ("guided_regex", "invalid_value")
    assert "'response_format' and 'guided_regex'" in error.message
    assert "structured_outputs.json" in refusal(chat, structured_outputs={"json": {}, "regex": "a"}).message
    assert chat(response_format={"type": "text"}, guided_regex="a").request.constraint.regex == "a"


@pytest.mark.parametrize(
    "members",
    [
        {"guided_json": 5}, {"guided_json": []}, {"guided_json": {"a": "x" * 300_000}},
        {"guided_json": {"a": [10**60] * 5000}}, {"guided_choice": []}, {"guided_choice": [""]}, {"guided_regex": ""},
        {"structured_outputs": 1}, {"structured_outputs": {"structural_tag": "x"}}, {"guided_whitespace_pattern": " "},
        {"response_format": {"type": "json_schema"}}, {"response_format": {"type": "xml"}}, {"response_format": "text"},
    ],
)  # fmt: skip
def test_constraints_that_are_none_are_refused_by_name(members: dict[str, Any]) -> None:
    assert str(refusal(chat, **members).param).startswith(next(iter(members)))


@pytest.mark.parametrize("asked", [{}, {"json": None}, {"json_object": False}, {"jsn": None}])
def test_structured_outputs_that_ask_for_nothing_are_refused(asked: dict[str, Any]) -> None:
    error = refusal(chat, structured_outputs=asked)
    assert (error.param, error.code) == ("structured_outputs", "invalid_value")
    assert "'json', 'regex', 'choice', 'grammar' or 'json_object'" in error.message


def test_members_of_structured_outputs_that_nobody_knows_are_named() -> None:
    error = refusal(chat, structured_outputs={"jsn": {"type": "object"}, "regx": "a"})
    assert (error.param, error.code) == ("structured_outputs.jsn", "unknown_parameter")
    assert "'structured_outputs.jsn', 'structured_outputs.regx'" in error.message
    assert refusal(chat, structured_outputs={"regex": "a", "lazy": True}).param == "structured_outputs.lazy"
    assert chat(structured_outputs={"regex": "a", "lazy": None, "x": False}).request.constraint.regex == "a"
    assert len(refusal(chat, structured_outputs={f"{at}{'x' * 5000}": 1 for at in range(99)}).message) < 600


def test_numbers_of_a_schema_are_numbers() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"q"}],"guided_json":{"maximum":NaN}}'
    with pytest.raises(ApiError) as caught:
        parse(Endpoint.CHAT, body)
    assert (caught.value.param, "finite" in caught.value.message) == ("guided_json", True)


@pytest.mark.parametrize(
    ("asked", "priority", "served"),
    [
        (None, gen.PRIORITY_UNSPECIFIED, None),
        ("auto", gen.PRIORITY_UNSPECIFIED, "default"),
        ("default", gen.PRIORITY_UNSPECIFIED, "default"),
        ("priority", gen.PRIORITY_INTERACTIVE, "priority"),
        ("fast", gen.PRIORITY_INTERACTIVE, "priority"),
        ("flex", gen.PRIORITY_BATCH, "flex"),
    ],
)
def test_a_service_tier_is_a_scheduling_class(asked: str | None, priority: int, served: str | None) -> None:
    call = chat(service_tier=asked)
    assert (call.request.priority, call.service_tier) == (priority, served)


def test_the_end_user_travels_and_the_safety_identifier_counts_more() -> None:
    assert chat(user="a").request.end_user == "a"
    both = chat(user="a", safety_identifier="b")
    assert (both.request.end_user, both.naming.json_name("end_user")) == ("b", "safety_identifier")
    assert completion(user="a").request.end_user == "a"
    assert refusal(chat, user="x" * 513).code == "string_above_max_length"
    assert refusal(chat, safety_identifier="x" * 65).param == "safety_identifier"


@pytest.mark.parametrize("metadata", [{"a": "b"}, {}, None, {str(i): "x" * 512 for i in range(16)}])
def test_metadata_is_checked_and_changes_nothing(metadata: Any) -> None:
    assert chat(metadata=metadata).request == chat().request


@pytest.mark.parametrize(
    ("metadata", "param"),
    [
        ({str(i): "" for i in range(17)}, "metadata"),
        ({"a": 1}, "metadata.a"),
        ({"a": "x" * 513}, "metadata.a"),
        ({"k" * 65: "v"}, "metadata." + "k" * 64),
        ([], "metadata"),
    ],
)
def test_metadata_is_at_most_sixteen_short_texts(metadata: Any, param: str) -> None:
    assert refusal(chat, metadata=metadata).param == param


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_every_reasoning_effort_travels(effort: str) -> None:
    sent = chat(reasoning_effort=effort).request.chat.reasoning_effort
    assert chat_pb2.ReasoningEffort.Name(sent) == f"REASONING_EFFORT_{effort.upper()}"


def test_template_variables_travel_and_their_depth_is_bounded() -> None:
    given = chat(chat_template_kwargs={"enable_thinking": False, "a": [1, {"b": None}]})
    assert dict(given.request.chat.template_args)["enable_thinking"] is False
    deep: Any = 1
    for _ in range(30):
        deep = [deep]
    assert refusal(chat, chat_template_kwargs={"a": deep}).param == "chat_template_kwargs"
    sent = chat(chat_template_kwargs={"a": deep[0][0][0][0][0][0][0]}).request.SerializeToString()
    assert gen.GenerateRequest.FromString(sent).chat.HasField("template_args")


def test_the_extensions_of_other_servers_travel() -> None:
    request = chat(
        top_k=5, min_p=0.25, repetition_penalty=1.5, min_tokens=2, ignore_eos=True, stop="x", stop_token_ids=[7],
        include_stop_str_in_output=True,
    ).request  # fmt: skip
    sampling = request.sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (5, 0.25, 1.5)
    assert (sampling.min_output_tokens, sampling.ignore_eos) == (2, True)
    assert (list(request.stop.token_ids), request.stop.include_in_output) == ([7], True)
    assert chat(top_k=-1).request.sampling.top_k == 0


@pytest.mark.parametrize(
    "members",
    [
        {"skip_special_tokens": False}, {"add_generation_prompt": False}, {"continue_final_message": True},
        {"chat_template": "{{ messages }}"}, {"documents": [{}]}, {"include_reasoning": False}, {"prompt_logprobs": 0},
        {"use_beam_search": True}, {"length_penalty": 0.5}, {"truncate_prompt_tokens": 5}, {"allowed_token_ids": [1]},
        {"web_search_options": {"user_location": None}}, {"web_search_options": {}}, {"function_call": {"name": "f"}},
        {"spaces_between_special_tokens": False},
    ],
)  # fmt: skip
def test_what_would_change_the_answer_and_is_not_served_is_refused_by_name(members: dict[str, Any]) -> None:
    (name,) = members
    error = refusal(chat, **members)
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert error.message.startswith(f"Unsupported parameter: '{name}' is not supported with this model.")


@pytest.mark.parametrize("schema", [ChatRequest, StreamOptions, StructuredOutputs])
def test_the_tables_of_members_that_are_not_used_hold_what_the_schemas_say(schema: type[BaseModel]) -> None:
    hints, refused = set(), set()
    for name, field in schema.model_fields.items():
        if field.description == "Accepted and not used.":
            hints.add(name)
        elif field.annotation is Any:
            refused.add(name)
    assert hints <= HINTS.keys()
    assert refused <= REFUSED.keys()
    if schema is ChatRequest:
        assert HINTS.keys() - hints == {"include_obfuscation"}
        assert REFUSED.keys() - refused == {"structural_tag", "suffix"}


def test_the_published_schema_says_why_a_hint_is_not_used() -> None:
    described = ChatRequest.model_json_schema()["properties"]["store"]["description"]
    assert described == f"Accepted and not used: {HINTS['store']}"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    [
        "model", "messages", "prompt", "stream", "stream_options", "n", "temperature", "top_p", "top_k", "seed", "stop",
        "logit_bias", "logprobs", "top_logprobs", "response_format", "tools", "max_tokens", "user", "x",
        "chat_template_kwargs", "tool_choice", "metadata", "guided_json", "structured_outputs", "service_tier",
        "parallel_tool_calls", "reasoning_effort", "guided_choice",
    ]
)  # fmt: skip


@given(st.sampled_from(Endpoint), st.dictionaries(names, json_values))
def test_no_json_object_raises_anything_but_a_refusal(endpoint: Endpoint, members: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "prompt": "x", **members}
    try:
        parse(endpoint, json.dumps(body).encode())
    except ApiError as error:
        assert error.http_status == 400  # noqa: PT017 - either a request or a refusal
        json.loads(error.document())


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_refusal(body: bytes) -> None:
    with pytest.raises(ApiError):
        parse(Endpoint.CHAT, body)
