"""Legacy completion requests: what is run for them, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.openai.errors import ApiError
from gateway.openai.readers import reader_of
from gateway.openai.requests import Endpoint, GenerationCall, parse
from headrace.v1 import generation_pb2 as gen


def completion(**members: Any) -> GenerationCall:
    return parse(Endpoint.COMPLETION, json.dumps({"model": "m", "prompt": "hi", **members}).encode())


def refusal(**members: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        completion(**members)
    assert refused.value.http_status == 400
    return refused.value


def inputs(call: GenerationCall) -> list[str | list[int]]:
    assert call.plan is not None
    return [request.prompt or list(request.tokens.ids) for request in call.plan.requests]


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [1, 2], [[1, 2]]])
def test_one_prompt_is_one_generation_without_a_plan(prompt: Any) -> None:
    for harmless in ({}, {"echo": False, "suffix": None, "best_of": 1}, {"n": 3, "best_of": 3}, {"suffix": ""}):
        call = completion(prompt=prompt, **harmless)
        assert call.plan is None
        assert call.choices == harmless.get("n", 1)
        assert not call.request.output.logprobs


@pytest.mark.parametrize(
    "prompts", [["a", "b", "c"], [[1], [2, 3]], [[7]] * 128, [f"text {number}" for number in range(128)]]
)
def test_several_prompts_are_several_generations_in_order(prompts: list[Any]) -> None:
    call = completion(prompt=prompts, temperature=0.5, seed=3, user="me")
    assert call.plan is not None
    assert inputs(call) == prompts
    assert call.choices == len(prompts)
    assert {request.sampling.seed for request in call.plan.requests} == {3}
    assert all(request.end_user == "me" for request in call.plan.requests)


def test_choices_are_counted_over_all_prompts() -> None:
    assert completion(prompt=["a", "b"], n=3).choices == 6
    assert completion(prompt=["a", "b"], n=3, best_of=5).choices == 6


def test_sixteen_tokens_are_the_default() -> None:
    assert completion().request.sampling.max_output_tokens == 16
    call = completion(prompt=["a", "b"])
    assert call.plan is not None
    assert [request.sampling.max_output_tokens for request in call.plan.requests] == [16, 16]


def test_best_of_runs_more_choices_with_log_probs_and_shows_what_was_asked_for() -> None:
    call = completion(n=2, best_of=5)
    assert call.plan is not None
    assert (call.plan.choices, call.plan.picks_best, call.plan.echo) == (2, True, False)
    (request,) = call.plan.requests
    assert (request.choice_count, request.output.logprobs) == (5, True)
    assert not call.request.output.logprobs
    shown = completion(n=2, best_of=5, logprobs=3)
    assert shown.plan is not None
    assert shown.request.output.logprobs
    assert shown.plan.requests[0].output.top_logprobs == 3


@pytest.mark.parametrize(
    ("members", "path", "name"),
    [
        ({"n": 20}, "choice_count", "n"),
        ({"best_of": 20}, "choice_count", "best_of"),
        ({"n": 2, "best_of": 2}, "choice_count", "n"),
        ({"best_of": 2}, "output.logprobs", "best_of"),
        ({"best_of": 2, "logprobs": 1}, "output.logprobs", "logprobs"),
        ({"max_tokens": 4}, "sampling.max_output_tokens", "max_tokens"),
    ],
)
def test_a_refusal_of_the_service_names_what_the_caller_wrote(members: dict[str, Any], path: str, name: str) -> None:
    assert completion(**members).naming.json_name(path) == name


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"best_of": 0}, "best_of", "integer_below_min_value"),
        ({"best_of": 21}, "best_of", "integer_above_max_value"),
        ({"n": 3, "best_of": 2}, "best_of", "invalid_value"),
        ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
        ({"best_of": 2, "prompt": ["a"] * 65}, "best_of", "invalid_value"),
        ({"n": 2, "prompt": ["a"] * 65}, "n", "invalid_value"),
        ({"n": 129}, "n", "integer_above_max_value"),
        ({"prompt": ["a"] * 129}, "prompt", "array_above_max_length"),
        ({"prompt": [[1]] * 129}, "prompt", "array_above_max_length"),
        ({"echo": True, "logprobs": 0}, "echo", "unsupported_value"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"logprobs": 6}, "logprobs", "integer_above_max_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"prompt": ["a", ""]}, "prompt[1]", "string_below_min_length"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
        ({"prompt": [[1], []]}, "prompt[1]", "empty_array"),
        ({"prompt": ""}, "prompt", "string_below_min_length"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(members: dict[str, Any], param: str, code: str) -> None:
    error = refusal(**members)
    assert (error.param, error.code) == (param, code)
    assert param in error.message


def test_a_missing_prompt_is_named() -> None:
    with pytest.raises(ApiError) as refused:
        parse(Endpoint.COMPLETION, b'{"model": "m"}')
    assert (refused.value.param, refused.value.code) == ("prompt", "missing_required_parameter")


def test_every_problem_is_named_at_once() -> None:
    message = refusal(best_of=0, suffix="x", echo=True, logprobs=1, max_tokens=0).message
    for name in ("best_of", "suffix", "echo", "max_tokens"):
        assert f"'{name}'" in message


def test_a_plan_survives_the_wire() -> None:
    call = completion(prompt=["a", "b"], best_of=2, logit_bias={"5": 1}, stop=["x"])
    assert call.plan is not None
    for request in call.plan.requests:
        assert gen.GenerateRequest.FromString(request.SerializeToString()) == request


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def test_response_format_is_that_of_chat() -> None:
    assert completion(response_format={"type": "json_object"}).request.constraint.HasField("json_object")
    assert not completion(response_format={"type": "text"}).request.HasField("constraint")
    call = completion(prompt=["a", "b"], response_format=SCHEMA)
    assert call.plan is not None
    assert [request.constraint.json_schema for request in call.plan.requests] == ['{"type":"object"}'] * 2
    assert call.naming.fields["constraint.json_schema"] == "response_format.json_schema.schema"
    assert refusal(response_format={"type": "xml"}).param == "response_format.type"
    assert "'response_format' and 'guided_regex'" in refusal(response_format=SCHEMA, guided_regex="a").message


@pytest.mark.parametrize(
    "members",
    [
        {"max_completion_tokens": 5}, {"messages": []}, {"tools": [{}]}, {"tool_choice": "required"},
        {"reasoning_effort": "low"}, {"functions": [{}]}, {"function_call": {"name": "f"}}, {"top_logprobs": 2},
        {"chat_template_kwargs": {"a": 1}}, {"chat_template": "x"}, {"modalities": ["audio"]}, {"audio": {"voice": ""}},
        {"web_search_options": {"user_location": None}}, {"documents": [{}]},
    ],
)  # fmt: skip
def test_members_of_chat_are_refused_by_name(members: dict[str, Any]) -> None:
    error = refusal(**members)
    assert (error.param, error.code) == (next(iter(members)), "unsupported_parameter")


def test_members_of_chat_that_ask_for_nothing_pass() -> None:
    assert completion(tools=[], tool_choice="none", modalities=["text"], messages=None, top_logprobs=0)


@pytest.mark.parametrize("prompt", [[[7]] * 129, ["x"] * 129, [["wrong"]] * 129, [{"wrong": 1}, *["x"] * 129]])
def test_prompts_are_counted_before_they_are_looked_at(prompt: list[Any]) -> None:
    error = refusal(prompt=prompt)
    assert error.param == ("prompt" if isinstance(prompt[0], str | list) else "prompt[0]")


def token(text: str, raw: bytes | None = None) -> gen.TokenLogprob:
    return gen.TokenLogprob(text=text, raw_bytes=text.encode() if raw is None else raw, logprob=-1.0)


def delta(text: str, *tokens: gen.TokenLogprob) -> gen.GenerateResponse:
    return gen.GenerateResponse(delta=gen.ChoiceDelta(text=text, logprobs=tokens))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_the_end_of_sequence_has_no_log_probs_and_other_silent_tokens_do(*, stream: bool, together: bool) -> None:
    reader = reader_of(completion(stream=stream, logprobs=0), 1)
    half, end = token("", b"\xf0"), token("")
    last = [delta("b", token("b"), end, end)] if together else [delta("b", token("b")), delta("", end), delta("", end)]
    events = [
        gen.GenerateResponse(started=gen.GenerationStarted(generation_id="g")),
        delta("a", token("a"), half, end),
        *last,
        gen.GenerateResponse(choice_finished=gen.ChoiceFinished(reason=gen.FINISH_REASON_STOP)),
        gen.GenerateResponse(completed=gen.GenerationCompleted()),
    ]
    written = b"".join(map(reader.feed, events))
    frames = [line[6:] for line in written.splitlines() if line.startswith(b"data: {")] if stream else [written]
    told = [json.loads(frame)["choices"][0]["logprobs"] for frame in frames]
    assert [name for columns in told if columns for name in columns["tokens"]] == ["a", "", "", "b"]
    assert [at for columns in told if columns for at in columns["text_offset"]] == [0, 1, 1, 1]
    assert len(frames) == (3 if stream else 1)
