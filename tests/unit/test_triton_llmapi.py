"""The LLM API's contract: which tensors go out, what is refused, and how its responses are read."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from service.backends.base import EngineFinish, EngineOutput, EngineRequest, Feature
from service.backends.triton.contracts.contract import ContractSettings, TextMode
from service.backends.triton.contracts.llmapi import LlmApiContract
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import TensorSpec
from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind
from tests.support.triton_contracts import LLMAPI, engine_request, output, response, sent, shapes, without

TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
LORA = {"lora_task_id": 3, "lora_name": "law", "lora_path": "/adapters/law"}


def contract(**settings: Any) -> LlmApiContract:
    return LlmApiContract(ContractSettings(**settings))


def tensors(request: EngineRequest, facts: ModelFacts = LLMAPI, **settings: Any) -> dict[str, list[Any]]:
    return sent(contract(**settings).request(request, facts))


def sampled(**sampling: Any) -> dict[str, list[Any]]:
    return tensors(engine_request(sampling))


def test_the_smallest_request_has_what_is_required_and_the_switches() -> None:
    message = contract().request(engine_request(request_id="id"), LLMAPI)
    assert (message.model_name, message.id) == ("model", "id")
    assert sent(message) == {
        "text_input": ["Hi"],
        "streaming": [True],
        "sampling_param_max_tokens": [5],
        "sampling_param_seed": [1],
        "sampling_param_exclude_input_from_output": [True],
        "return_finish_reason": [True],
        "sampling_param_return_perf_metrics": [True],
    }


def test_no_tensor_has_a_batch_dimension() -> None:
    request = engine_request({"temperature": 0.5, "top_k": 3})
    assert all(shape == [1] for shape in shapes(contract(**LORA).request(request, LLMAPI)).values())


def test_every_sampling_field_is_sent_under_the_models_name() -> None:
    given = sampled(
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        frequency_penalty=0.75,
        presence_penalty=-0.5,
        seed=-1,
        max_output_tokens=9,
    )
    assert (
        given.items()
        >= {
            "sampling_param_temperature": [0.5],
            "sampling_param_top_p": [0.25],
            "sampling_param_top_k": [3],
            "sampling_param_frequency_penalty": [0.75],
            "sampling_param_presence_penalty": [-0.5],
            "sampling_param_seed": [2**64 - 1],
            "sampling_param_max_tokens": [9],
        }.items()
    )


def test_temperature_zero_is_greedy_with_top_k_one_and_nothing_else() -> None:
    given = sampled(temperature=0.0, top_p=0.9, top_k=40)
    assert given["sampling_param_top_k"] == [1]
    assert "sampling_param_temperature" not in given
    assert "sampling_param_top_p" not in given


def test_a_temperature_alone_makes_the_model_sample() -> None:
    # With neither top_k nor top_p the LLM API is greedy, whatever the temperature.
    assert sampled(temperature=0.5)["sampling_param_top_p"] == [1.0]
    assert "sampling_param_top_p" not in sampled(temperature=0.5, top_k=40)
    assert "sampling_param_top_p" not in sampled()


def test_all_tokens_is_said_by_leaving_top_k_out() -> None:
    assert "sampling_param_top_k" not in sampled(top_k=0)
    assert sampled(temperature=0.5, top_k=0)["sampling_param_top_p"] == [1.0]


def test_beams_and_stop_strings_are_not_sent() -> None:
    given = tensors(engine_request(stop_sequences=("a", "b"), stop_token_ids=(7,)))
    assert not given.keys() & {"sampling_param_best_of", "sampling_param_stop", "stop"}


def test_outputs_are_asked_for_where_the_model_has_them_and_their_switch() -> None:
    def asked(facts: ModelFacts) -> list[str]:
        return [one.name for one in contract().request(engine_request(), facts).outputs]

    assert asked(LLMAPI) == ["text_output", "finish_reason", *TIMES]
    assert asked(without(LLMAPI, "sampling_param_return_perf_metrics")) == ["text_output", "finish_reason"]
    assert asked(without(LLMAPI, "return_finish_reason", *TIMES)) == ["text_output"]
    assert asked(without(LLMAPI, "finish_reason", *TIMES)) == ["text_output"]


def test_nothing_is_sent_that_the_model_does_not_list() -> None:
    keep = {"text_input", "streaming", "sampling_param_max_tokens"}
    assert set(tensors(engine_request(), without(LLMAPI, *(set(LLMAPI.inputs) - keep)))) == keep


@pytest.mark.parametrize(
    ("request_", "missing", "feature"),
    [
        (engine_request({"repetition_penalty": 1.1}), [], Feature.REPETITION_PENALTY),
        (engine_request({"min_output_tokens": 1}), [], Feature.MIN_OUTPUT_TOKENS),
        (engine_request({"min_p": 0.1}), [], Feature.MIN_P),
        (engine_request({"logit_bias": {1: 2.0}}), [], Feature.LOGIT_BIAS),
        (engine_request({"bad_words": ("a",)}), [], Feature.BAD_WORDS),
        (engine_request({"ignore_eos": True}), [], Feature.IGNORE_EOS),
        (engine_request(prompt=(1, 2)), [], Feature.TOKEN_INPUT),
        (engine_request(token_ids=True), [], Feature.TOKEN_IDS),
        (engine_request(logprobs=0), [], Feature.LOGPROBS),
        (engine_request(constraint=Constraint(kind=ConstraintKind.JSON_OBJECT)), [], Feature.JSON_OBJECT),
        (
            engine_request(constraint=Constraint(kind=ConstraintKind.JSON_SCHEMA, source="{}")),
            [],
            Feature.JSON_SCHEMA,
        ),
        (engine_request(constraint=Constraint(kind=ConstraintKind.REGEX, source="a")), [], Feature.REGEX),
        (engine_request(constraint=Constraint(kind=ConstraintKind.GRAMMAR, source="g")), [], Feature.GRAMMAR),
        (engine_request(constraint=Constraint(kind=ConstraintKind.CHOICE, source='["a"]')), [], Feature.CHOICE),
        (engine_request({"temperature": 0.5}), ["sampling_param_temperature"], Feature.TEMPERATURE),
        (engine_request({"temperature": 0.0}), ["sampling_param_top_k"], Feature.TEMPERATURE),
        (engine_request({"top_p": 0.5}), ["sampling_param_top_p"], Feature.TOP_P),
        (engine_request({"top_k": 2}), ["sampling_param_top_k"], Feature.TOP_K),
        (
            engine_request({"frequency_penalty": 1.0}),
            ["sampling_param_frequency_penalty"],
            Feature.FREQUENCY_PENALTY,
        ),
        (engine_request({"presence_penalty": 1.0}), ["sampling_param_presence_penalty"], Feature.PRESENCE_PENALTY),
    ],
)
def test_what_the_model_has_no_tensor_for_is_refused_and_not_claimed(
    request_: EngineRequest, missing: list[str], feature: Feature
) -> None:
    facts = without(LLMAPI, *missing)
    assert feature not in contract().features(facts)
    with pytest.raises(ServiceError) as caught:
        contract().request(request_, facts)
    assert caught.value.reason is Reason.CAPABILITY_UNSUPPORTED
    assert caught.value.metadata == {"capability": feature.value}


def test_what_is_claimed_is_exactly_what_its_tensors_carry() -> None:
    assert contract().features(LLMAPI) == {
        Feature.TEMPERATURE,
        Feature.TOP_P,
        Feature.TOP_K,
        Feature.FREQUENCY_PENALTY,
        Feature.PRESENCE_PENALTY,
        Feature.SEED,
    }


def test_a_value_that_changes_nothing_needs_no_tensor() -> None:
    neutral = {
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_output_tokens": 0,
    }
    names = {name for name in LLMAPI.inputs if name.startswith("sampling_param_")} - {"sampling_param_max_tokens"}
    assert set(tensors(engine_request(neutral), without(LLMAPI, *names))) == {
        "text_input",
        "streaming",
        "sampling_param_max_tokens",
        "return_finish_reason",
    }


def test_a_beginning_of_sequence_that_the_template_wrote_is_not_sent_twice() -> None:
    chat = engine_request(prompt="<s>Hi", add_special_tokens=False)
    assert tensors(chat, bos_text="<s>")["text_input"] == ["Hi"]
    assert tensors(replace(chat, add_special_tokens=True), bos_text="<s>")["text_input"] == ["<s>Hi"]


def test_a_configured_adapter_goes_with_every_request() -> None:
    given = tensors(engine_request(), **LORA)
    assert (given["lora_id"], given["lora_name"], given["lora_path"]) == ([3], ["law"], ["/adapters/law"])
    assert contract(**LORA).problems(LLMAPI) == []
    assert not tensors(engine_request()).keys() & {"lora_id", "lora_name", "lora_path"}


def test_an_adapter_that_the_model_cannot_take_is_a_problem() -> None:
    assert contract(**LORA).problems(without(LLMAPI, "lora_id", "lora_name", "lora_path")) == [
        "input lora_id is missing, and lora_task_id is configured",
        "input lora_name is missing, and lora_name is configured",
        "input lora_path is missing, and lora_path is configured",
    ]


def test_half_an_adapter_is_a_problem() -> None:
    assert contract(lora_name="law").problems(LLMAPI) == [
        "input lora_id goes with the configured adapter, and lora_task_id is not configured",
        "input lora_path goes with the configured adapter, and lora_path is not configured",
    ]
    assert contract(lora_name="law").problems(without(LLMAPI, "lora_id", "lora_path")) == []


def test_a_model_of_another_kind_says_why() -> None:
    assert contract().problems(LLMAPI) == []
    missing = ("text_input", "streaming", "sampling_param_max_tokens", "text_output")
    assert contract().problems(without(LLMAPI, *missing)) == [
        "input text_input is missing",
        "input streaming is missing",
        "input sampling_param_max_tokens is missing",
        "output text_output is missing",
    ]


def test_an_unknown_required_input_is_a_problem_and_one_that_is_always_sent_is_not() -> None:
    image = TensorSpec(name="image_url", datatype="BYTES", dims=(-1,))
    streaming = replace(LLMAPI.inputs["streaming"], is_optional=False)
    facts = replace(LLMAPI, inputs={**LLMAPI.inputs, "image_url": image, "streaming": streaming})
    assert contract().problems(facts) == ["input image_url is required and unknown"]


def says(text: str, reason: str = "None", **outputs: tuple[str, bytes]) -> Any:
    return response(text_output=output(text), finish_reason=output(reason), **outputs)


def texts(asked: LlmApiContract, *parts: str) -> list[str]:
    reader = asked.reader(engine_request(), LLMAPI)
    items = [reader.read(says(part)) for part in parts]
    assert all(item is not None and item.tokens is None for item in items)
    return [item.data.decode() for item in items if item is not None]


def test_a_response_carries_the_whole_text_so_far() -> None:
    assert texts(contract(), "He", "Hello", "Hello") == ["He", "llo", ""]


def test_a_stream_of_new_texts_is_noticed_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    asked = contract()
    with caplog.at_level(logging.WARNING):
        assert texts(asked, "Hello", " world", "!") == ["Hello", " world", "!"]
        assert texts(asked, "Hello", " again") == ["Hello", " again"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Set text" in caplog.text


def test_one_odd_stream_changes_no_other() -> None:
    asked = contract()
    other = asked.reader(engine_request(), LLMAPI)
    assert other.read(says("a")) == EngineOutput(b"a", None)
    assert texts(asked, " ", ".", ". ok") == [" ", ".", ". ok"]
    assert other.read(says("ab")) == EngineOutput(b"b", None)
    assert texts(asked, "a", "ab", "abc") == ["a", "b", "c"]


def test_the_configured_mode_wins_over_what_responses_look_like() -> None:
    assert texts(contract(text_mode=TextMode.DELTA), "ha", "haha") == ["ha", "haha"]
    assert texts(contract(text_mode=TextMode.CUMULATIVE), "ha", "hum") == ["ha", "m"]
    assert texts(contract(text_mode=TextMode.CUMULATIVE), "ha", "oh!") == ["ha", "!"]


@pytest.mark.parametrize(("said", "reason"), [("stop", EngineFinish.STOP), ("length", EngineFinish.LENGTH)])
def test_the_reason_is_the_engines_own(said: str, reason: EngineFinish) -> None:
    reader = contract().reader(engine_request(), LLMAPI)
    reader.read(says("a"))
    reader.read(says("ab", said))
    finished = reader.finished()
    assert finished.reason is reason
    assert (finished.prompt_tokens, finished.output_tokens) == (None, None)


@pytest.mark.parametrize("said", ["None", "cancelled", "timeout", "not_finished", "something new"])
def test_an_output_that_was_cut_is_a_failure(said: str) -> None:
    reader = contract().reader(engine_request(), LLMAPI)
    reader.read(says("a", said))
    with pytest.raises(ServiceError, match="before it was complete") as caught:
        reader.finished()
    assert caught.value.reason is Reason.BACKEND_ERROR
    assert caught.value.detail == f"llmapi: finish_reason is {said!r}"


@pytest.mark.parametrize("outputs", [{}, {"finish_reason": ("BYTES", b"")}, {"finish_reason": output("")}])
def test_a_model_that_does_not_say_why_has_an_unknown_end(outputs: dict[str, tuple[str, bytes]]) -> None:
    reader = contract().reader(engine_request(), LLMAPI)
    reader.read(response(text_output=output("a"), **outputs))
    assert reader.finished().reason is EngineFinish.UNKNOWN


def test_a_reason_that_cannot_be_read_is_an_error() -> None:
    reader = contract().reader(engine_request(), LLMAPI)
    reader.read(response(text_output=output("a"), finish_reason=("BYTES", b"\x09\x00\x00\x00stop")))
    with pytest.raises(ServiceError, match="unexpected form"):
        reader.finished()


def test_times_come_with_the_last_response_and_as_text() -> None:
    reader = contract().reader(engine_request(), LLMAPI)
    reader.read(says("a"))
    assert reader.started().queue_s is None
    reader.read(says("ab", "stop", **{name: output(str(at * 10**9)) for at, name in enumerate(TIMES, start=1)}))
    finished = reader.finished()
    assert (finished.engine_queue_s, finished.engine_prefill_s, finished.engine_decode_s) == (1, 1, 1)
