"""The ensemble and BLS contracts: which tensors go out for which request, by the model's own list."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from service.backends.base import EngineFinish, EngineOutput, EngineRequest, Feature
from service.backends.triton.contracts.contract import ContractSettings, TextMode
from service.backends.triton.contracts.ensemble import BlsContract, EnsembleContract, accumulates
from service.backends.triton.facts import ModelFacts, model_facts
from service.backends.triton.tensors import TensorSpec
from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind
from tests.support.triton_contracts import engine_request, output, response, sent, shapes, without
from tests.support.triton_fake import model_config

FACTS = model_facts("ensemble", model_config("ensemble"))
BLS_FACTS = replace(FACTS, is_ensemble=False)
JSON_SCHEMA = Constraint(kind=ConstraintKind.JSON_SCHEMA, source='{"type": "object"}')
GRAMMAR = Constraint(kind=ConstraintKind.GRAMMAR, source="g")


def ensemble(**settings: Any) -> EnsembleContract:
    return EnsembleContract(ContractSettings(**settings))


def bls(**settings: Any) -> BlsContract:
    return BlsContract(ContractSettings(**settings))


def renamed(facts: ModelFacts, names: dict[str, str]) -> ModelFacts:
    return replace(facts, inputs={names.get(name, name): spec for name, spec in renamed_specs(facts, names)})


def renamed_specs(facts: ModelFacts, names: dict[str, str]) -> list[tuple[str, TensorSpec]]:
    return [(name, replace(spec, name=names.get(name, name))) for name, spec in facts.inputs.items()]


def tensors(request: EngineRequest, facts: ModelFacts = FACTS, **settings: Any) -> dict[str, list[Any]]:
    return sent(ensemble(**settings).request(request, facts))


def sampled(**sampling: Any) -> dict[str, list[Any]]:
    return tensors(engine_request(sampling))


def test_the_smallest_request_has_what_is_required_and_the_switches() -> None:
    assert tensors(engine_request()) == {
        "text_input": ["Hi"],
        "max_tokens": [5],
        "stream": [True],
        "exclude_input_in_output": [True],
        "beam_width": [1],
        "seed": [1],
        "return_num_input_tokens": [True],
        "return_num_output_tokens": [True],
        "return_perf_metrics": [True],
    }


def test_every_tensor_has_a_batch_dimension() -> None:
    message = ensemble().request(engine_request(stop_sequences=("a", "b")), FACTS)
    assert shapes(message)["text_input"] == [1, 1]
    assert shapes(message)["stop_words"] == [1, 2]
    assert all(shape[0] == 1 and len(shape) == 2 for shape in shapes(message).values())


def test_every_sampling_field_is_sent_under_the_models_name() -> None:
    given = sampled(
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        frequency_penalty=0.75,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        min_output_tokens=2,
        ignore_eos=True,
        bad_words=("x", "y"),
    )
    assert (
        given.items()
        >= {
            "temperature": [0.5],
            "top_p": [0.25],
            "top_k": [3],
            "frequency_penalty": [0.75],
            "presence_penalty": [-0.5],
            "repetition_penalty": [1.5],
            "min_tokens": [2],
            "end_id": [-1],
            "bad_words": ["x", "y"],
        }.items()
    )


def test_old_tensor_names_are_used_where_the_model_has_them() -> None:
    facts = renamed(FACTS, {"seed": "random_seed", "min_tokens": "min_length"})
    given = tensors(engine_request({"seed": -1, "min_output_tokens": 2}), facts)
    assert given["random_seed"] == [2**64 - 1]
    assert given["min_length"] == [2]
    assert ensemble().features(facts) == ensemble().features(FACTS)


def test_temperature_zero_is_greedy_and_sends_no_zero() -> None:
    given = sampled(temperature=0.0, top_p=0.9, top_k=40)
    assert given["top_k"] == [1]
    assert "temperature" not in given
    assert "top_p" not in given


def test_a_temperature_alone_makes_the_model_sample() -> None:
    assert sampled(temperature=0.5)["top_p"] == [1.0]
    assert "top_p" not in sampled(temperature=0.5, top_k=40)
    assert "top_p" not in sampled()


def test_stop_words_and_the_constraint_are_sent() -> None:
    given = tensors(engine_request(stop_sequences=("a", "ß"), constraint=JSON_SCHEMA))
    assert given["stop_words"] == ["a", "ß"]
    assert given["guided_decoding_guide_type"] == ["json_schema"]
    assert given["guided_decoding_guide"] == ['{"type": "object"}']
    assert tensors(engine_request(constraint=GRAMMAR))["guided_decoding_guide_type"] == ["ebnf_grammar"]


@pytest.mark.parametrize(
    ("kind", "source", "guide_type", "guide"),
    [
        (ConstraintKind.JSON_OBJECT, "", "json", "{}"),
        (ConstraintKind.REGEX, r"a\d+", "regex", r"a\d+"),
        (ConstraintKind.CHOICE, '["yes", "no"]', "ebnf_grammar", 'root ::= "yes" | "no"'),
        (
            ConstraintKind.CHOICE,
            json.dumps(['say "é🧿"\n\t\r', "\\d \x00\x7f"]),
            "ebnf_grammar",
            r'root ::= "say \"é🧿\"\n\t\r" | "\\d \u0000\u007f"',
        ),
    ],
)
def test_every_constraint_has_a_guide(kind: ConstraintKind, source: str, guide_type: str, guide: str) -> None:
    given = tensors(engine_request(constraint=Constraint(kind=kind, source=source)))
    assert given["guided_decoding_guide_type"] == [guide_type]
    assert given["guided_decoding_guide"] == [guide]


def test_stop_words_are_left_to_the_service_where_the_model_takes_none() -> None:
    assert "stop_words" not in tensors(engine_request(stop_sequences=("a",)), without(FACTS, "stop_words"))


def test_nothing_is_sent_or_asked_for_that_the_model_does_not_list() -> None:
    keep = {"text_input", "max_tokens", "stream"}
    message = ensemble().request(engine_request(), without(FACTS, *(set(FACTS.inputs) - keep)))
    assert set(sent(message)) == keep
    assert [one.name for one in message.outputs] == ["text_output"]


def test_every_output_that_is_asked_for_is_switched_on() -> None:
    message = ensemble().request(engine_request(logprobs=0), FACTS)
    assert [one.name for one in message.outputs] == [
        "text_output",
        "num_input_tokens",
        "num_output_tokens",
        "arrival_time_ns",
        "first_scheduled_time_ns",
        "first_token_time_ns",
        "last_token_time_ns",
        "output_log_probs",
    ]
    assert sent(message)["return_log_probs"] == [True]
    assert "return_log_probs" not in tensors(engine_request())


@pytest.mark.parametrize(
    ("request_", "missing", "feature"),
    [
        (engine_request({"top_k": 3}), ["top_k"], Feature.TOP_K),
        (engine_request({"temperature": 0.0}), ["top_k"], Feature.TEMPERATURE),
        (engine_request({"min_output_tokens": 3}), ["min_tokens"], Feature.MIN_OUTPUT_TOKENS),
        (engine_request({"ignore_eos": True}), ["end_id"], Feature.IGNORE_EOS),
        (engine_request({"bad_words": ("a",)}), ["bad_words"], Feature.BAD_WORDS),
        (engine_request({"min_p": 0.1}), [], Feature.MIN_P),
        (engine_request({"logit_bias": {1: 2.0}}), [], Feature.LOGIT_BIAS),
        (engine_request(prompt=(1, 2)), [], Feature.TOKEN_INPUT),
        (engine_request(token_ids=True), [], Feature.TOKEN_IDS),
        (engine_request(logprobs=0), ["return_log_probs"], Feature.LOGPROBS),
        (engine_request(logprobs=0), ["output_log_probs"], Feature.LOGPROBS),
        (engine_request(logprobs=1), [], Feature.TOP_LOGPROBS),
        (engine_request(constraint=GRAMMAR), ["guided_decoding_guide_type"], Feature.GRAMMAR),
        (
            engine_request(constraint=Constraint(kind=ConstraintKind.REGEX, source="a")),
            ["guided_decoding_guide"],
            Feature.REGEX,
        ),
        (
            engine_request(constraint=Constraint(kind=ConstraintKind.CHOICE, source='["a"]')),
            ["guided_decoding_guide_type"],
            Feature.CHOICE,
        ),
    ],
)
def test_what_the_model_has_no_tensor_for_is_refused_and_not_claimed(
    request_: EngineRequest, missing: list[str], feature: Feature
) -> None:
    facts = without(FACTS, *missing)
    assert feature not in ensemble().features(facts)
    with pytest.raises(ServiceError) as caught:
        ensemble().request(request_, facts)
    assert caught.value.reason is Reason.CAPABILITY_UNSUPPORTED
    assert caught.value.metadata == {"capability": feature.value}


def test_a_value_that_changes_nothing_needs_no_tensor() -> None:
    names = {"top_k", "top_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens", "seed"}
    neutral = {
        "top_k": 0,
        "top_p": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_output_tokens": 0,
        "min_p": 0.0,
    }
    assert not tensors(engine_request(neutral), without(FACTS, *names)).keys() & names


def test_a_beginning_of_sequence_that_the_template_wrote_is_not_sent_twice() -> None:
    chat = engine_request(prompt="<s>Hi", add_special_tokens=False)
    assert tensors(chat, bos_text="<s>")["text_input"] == ["Hi"]
    assert tensors(chat)["text_input"] == ["<s>Hi"]
    assert tensors(replace(chat, add_special_tokens=True), bos_text="<s>")["text_input"] == ["<s>Hi"]


def test_a_configured_adapter_goes_with_every_request() -> None:
    assert tensors(engine_request(), lora_task_id=7)["lora_task_id"] == [7]
    assert "lora_task_id" not in tensors(engine_request())
    assert ensemble(lora_task_id=7).problems(without(FACTS, "lora_task_id")) == [
        "input lora_task_id is missing, and lora_task_id is configured"
    ]


def test_a_model_that_is_no_ensemble_says_why() -> None:
    assert ensemble().problems(without(FACTS, "max_tokens", "stream", "text_output")) == [
        "input max_tokens is missing",
        "input stream is missing",
        "output text_output is missing",
    ]
    assert ensemble().problems(FACTS) == []


def test_an_unknown_required_input_is_a_problem_and_a_known_one_is_not() -> None:
    image = TensorSpec(name="image", datatype="BYTES", dims=(1,))
    stream = replace(FACTS.inputs["stream"], is_optional=False)
    facts = replace(FACTS, inputs={**FACTS.inputs, "image": image, "stream": stream})
    assert ensemble().problems(facts) == ["input image is required and unknown"]


def test_bls_takes_and_claims_the_same() -> None:
    request = engine_request({"temperature": 0.5}, stop_sequences=("a",), constraint=JSON_SCHEMA)
    assert sent(bls().request(request, BLS_FACTS)) == tensors(request)
    assert bls().features(BLS_FACTS) == ensemble().features(FACTS)
    assert (bls().name, ensemble().name) == ("bls", "ensemble")


def read(contract: EnsembleContract, facts: ModelFacts, *texts: str) -> list[EngineOutput | None]:
    reader = contract.reader(engine_request(), facts)
    return [reader.read(response(text_output=output(text), num_output_tokens=output(1))) for text in texts]


@pytest.mark.parametrize("contract", [ensemble(), bls()])
def test_a_response_carries_new_text(contract: EnsembleContract) -> None:
    assert read(contract, FACTS, "ha", "ha") == [EngineOutput(b"ha", 1), EngineOutput(b"ha", 1)]


@pytest.mark.parametrize("word", ["true", "True", "yes", "1", "t"])
def test_a_bls_model_that_accumulates_carries_the_whole_text(word: str) -> None:
    facts = replace(BLS_FACTS, parameters={"accumulate_tokens": word})
    assert accumulates(facts)
    assert read(bls(), facts, "ha", "haha") == [EngineOutput(b"ha", 1), EngineOutput(b"ha", 1)]


@pytest.mark.parametrize("word", ["", "false", "0", "${accumulate_tokens}"])
def test_a_bls_model_that_does_not_say_so_does_not_accumulate(word: str) -> None:
    assert not accumulates(replace(BLS_FACTS, parameters={"accumulate_tokens": word}))


@pytest.mark.parametrize(
    ("mode", "facts", "second"),
    [
        (TextMode.DELTA, replace(BLS_FACTS, parameters={"accumulate_tokens": "true"}), b"haha"),
        (TextMode.CUMULATIVE, BLS_FACTS, b"ha"),
    ],
)
def test_what_is_configured_wins_over_the_models_parameter(mode: TextMode, facts: ModelFacts, second: bytes) -> None:
    assert read(bls(text_mode=mode), facts, "ha", "haha")[1] == EngineOutput(second, 1)


def test_an_ensemble_has_no_such_parameter() -> None:
    facts = replace(FACTS, parameters={"accumulate_tokens": "true"})
    assert read(ensemble(), facts, "ha", "haha")[1] == EngineOutput(b"haha", 1)


@pytest.mark.parametrize(("tokens", "reason"), [(4, EngineFinish.STOP), (5, EngineFinish.LENGTH)])
def test_the_end_is_computed_from_the_requests_limit(tokens: int, reason: EngineFinish) -> None:
    reader = ensemble().reader(engine_request(), FACTS)
    reader.read(response(text_output=output("a"), num_output_tokens=output(tokens)))
    assert reader.finished().reason is reason
