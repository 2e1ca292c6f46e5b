"""From the keywords of generate() to the message."""

import pytest

from headrace._requests import CHAT_ONLY, CONSTRAINTS, RequestFields, build_request
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as pb


def test_every_keyword_reaches_its_field() -> None:
    fields: RequestFields = {
        "model": "m",
        "prompt": "p",
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 0,
        "min_p": 0.25,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.5,
        "seed": -3,
        "max_output_tokens": 7,
        "min_output_tokens": 0,
        "logit_bias": {5: -1.0},
        "ignore_eos": True,
        "bad_words": ["x"],
        "stop": ["a", "b"],
        "stop_token_ids": [1, 2],
        "include_stop": True,
        "grammar": "root ::= x",
        "choice_count": 2,
        "logprobs": True,
        "top_logprobs": 0,
        "token_ids": True,
        "time_limit_s": 1.5,
        "priority": "batch",
        "queue_events": True,
        "end_user": "u",
        "idempotency_key": "k",
        "retain_for_s": 2.5,
        "continue_on_disconnect": True,
        "annotation": b"note",
    }
    request = build_request(fields)
    expected = pb.GenerateRequest(
        model="m",
        prompt="p",
        sampling={
            "temperature": 0.0,
            "top_p": 0.5,
            "top_k": 0,
            "min_p": 0.25,
            "frequency_penalty": 0.5,
            "presence_penalty": -0.5,
            "repetition_penalty": 1.5,
            "seed": -3,
            "max_output_tokens": 7,
            "min_output_tokens": 0,
            "logit_bias": {5: -1.0},
            "ignore_eos": True,
            "bad_words": ["x"],
        },
        stop={"sequences": ["a", "b"], "token_ids": [1, 2], "include_in_output": True},
        constraint={"grammar": "root ::= x"},
        output={"logprobs": True, "top_logprobs": 0, "token_ids": True, "queue_events": True},
        choice_count=2,
        priority="PRIORITY_BATCH",
        end_user="u",
        idempotency_key="k",
        retention={"continue_on_disconnect": True, "annotation": b"note"},
    )
    expected.time_limit.FromMilliseconds(1500)
    expected.retention.retain_for.FromMilliseconds(2500)
    assert request == expected
    assert request.sampling.HasField("temperature")  # 0 is not unset
    # Below.
    others = {"chat", "tokens", *CHAT_ONLY, *CONSTRAINTS}
    assert set(fields) | others == set(RequestFields.__annotations__)


def test_what_is_left_out_stays_unset() -> None:
    request = build_request({"prompt": "p"})
    assert request == pb.GenerateRequest(prompt="p")
    assert not request.HasField("sampling")
    assert not request.HasField("stop")


def test_interactive_said_aloud_is_sent_as_such() -> None:
    assert build_request({"prompt": "p", "priority": "interactive"}).priority == pb.PRIORITY_INTERACTIVE
    assert build_request({"prompt": "p", "queue_events": False}) == pb.GenerateRequest(prompt="p")


def test_none_counts_as_left_out() -> None:
    assert build_request({"prompt": "p", "seed": None}) == pb.GenerateRequest(prompt="p")  # type: ignore[typeddict-item]


def test_a_chat_takes_pairs_mappings_and_messages() -> None:
    message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_ASSISTANT, content=[chat_pb2.ContentPart(text="c")])
    turns = [("system", "a"), {"role": "user", "content": "b", "name": "ann"}, message]
    request = build_request({"chat": turns, "template_args": {"enable_thinking": False}})
    roles = [m.role for m in request.chat.messages]
    assert roles == [chat_pb2.ROLE_SYSTEM, chat_pb2.ROLE_USER, chat_pb2.ROLE_ASSISTANT]
    assert [m.content[0].text for m in request.chat.messages] == ["a", "b", "c"]
    assert request.chat.messages[1].name == "ann"
    assert request.chat.template_args["enable_thinking"] is False


def test_one_stop_string_is_not_its_letters() -> None:
    assert list(build_request({"prompt": "p", "stop": "END"}).stop.sequences) == ["END"]


@pytest.mark.parametrize("fields", [{"tokens": []}, {"chat": []}, {"prompt": ""}], ids=["tokens", "chat", "prompt"])
def test_an_empty_input_is_sent_as_what_it_is_for_the_service_to_refuse(fields: RequestFields) -> None:
    assert build_request(fields).WhichOneof("input") == next(iter(fields))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "exactly one of prompt, chat and tokens"),
        ({"prompt": "p", "tokens": [1]}, "got prompt, tokens"),
        ({"prompt": "p", "max_tokens": 3}, "unknown request fields: max_tokens"),
        ({"prompt": "p", "json_object": True, "grammar": "g"}, "at most one constraint"),
        ({"prompt": "p", "template_args": {"a": 1}}, "only with chat: template_args"),
        ({"prompt": "p", "tools": [], "tool_choice": "auto"}, "only with chat: tools, tool_choice"),
        ({"prompt": "p", "regex": "a", "choices": ["b"]}, "at most one constraint"),
        ({"chat": [("robot", "x")]}, "unknown role 'robot'"),
        ({"chat": [], "tool_choice": "always"}, "unknown tool_choice 'always'"),
        ({"chat": [], "reasoning_effort": "some"}, "unknown reasoning_effort 'some'"),
        ({"prompt": "p", "priority": "urgent"}, "unknown priority 'urgent': use interactive or batch"),
        ({"chat": [{"role": "user"}]}, "role and content"),
        ({"chat": [{"role": "user", "content": "x", "colour": "red"}]}, "role and content"),
    ],
)
def test_fields_that_make_no_request_are_refused_in_words(fields: RequestFields, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        build_request(fields)


def test_a_conversation_with_tools_reaches_its_fields() -> None:
    tool = chat_pb2.Tool(function=chat_pb2.FunctionTool(name="f"))
    result = chat_pb2.ChatMessage(role=chat_pb2.ROLE_TOOL, tool_call_id="c")
    request = build_request(
        {
            "chat": [("user", "hi"), result],
            "tools": [tool],
            "tool_choice": chat_pb2.ToolChoice(function_name="f"),
            "parallel_tool_calls": False,
            "reasoning_effort": "low",
        }
    )
    assert list(request.chat.tools) == [tool]
    assert request.chat.tool_choice.function_name == "f"
    assert request.chat.HasField("parallel_tool_calls")
    assert request.chat.reasoning_effort == chat_pb2.REASONING_EFFORT_LOW
    assert request.chat.messages[1] == result
    required = build_request({"chat": [], "tool_choice": "required"})
    assert required.chat.tool_choice.mode == chat_pb2.TOOL_CHOICE_MODE_REQUIRED


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choices": ["a", "b"]}, {"choice": {"choices": ["a", "b"]}}),
        ({"choices": []}, {"choice": {}}),
        ({"json_object": True}, {"json_object": {}}),
    ],
)
def test_constraints_reach_their_fields(fields: RequestFields, constraint: dict[str, object]) -> None:
    request = build_request({"prompt": "p", **fields})
    assert request.constraint == pb.GenerateRequest(constraint=constraint).constraint
