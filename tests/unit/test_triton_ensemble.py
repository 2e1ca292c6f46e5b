"""The ensemble contract: which tensors go out for which request, by the model's own list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor

from service.backends.base import EngineRequest, Feature
from service.backends.triton.ensemble import EnsembleContract
from service.backends.triton.facts import ModelFacts, ServerFacts
from service.backends.triton.options import TritonOptions
from service.backends.triton.tensors import TensorSpec
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind, Sampling
from tests.support.triton_fake import model_config

DTYPES = {"INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_, "UINT64": np.uint64}


def ensemble_facts(*, without: set[str] = frozenset(), renamed: dict[str, str] | None = None) -> ModelFacts:  # type: ignore[assignment]
    from tritonclient.grpc import model_config_pb2

    def specs(tensors: Any) -> dict[str, TensorSpec]:
        result = {}
        for tensor in tensors:
            if tensor.name in without:
                continue
            name = (renamed or {}).get(tensor.name, tensor.name)
            datatype = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
            result[name] = TensorSpec(
                name=name,
                datatype="BYTES" if datatype == "STRING" else datatype,
                dims=tuple(tensor.dims),
                is_optional=getattr(tensor, "optional", False),
            )
        return result

    config = model_config("ensemble")
    return ModelFacts(
        name="ensemble", inputs=specs(config.input), outputs=specs(config.output), instances=1, fingerprint="f"
    )


FACTS = ensemble_facts()


def request(**fields: Any) -> EngineRequest:
    given = {"prompt": "Hi", "sampling": Sampling(max_output_tokens=5, seed=1), **fields}
    return EngineRequest(request_id="r", deadline=Deadline.after(1), **given)


def sent(wanted: EngineRequest, facts: ModelFacts = FACTS, **contract: Any) -> dict[str, list[Any]]:
    message = EnsembleContract(**contract).request(wanted, facts)
    result = {}
    for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            result[tensor.name] = [item.decode() for item in deserialize_bytes_tensor(raw)]
        else:
            result[tensor.name] = np.frombuffer(raw, DTYPES[tensor.datatype]).tolist()
    return result


def sampled(**fields: Any) -> dict[str, list[Any]]:
    return sent(request(sampling=Sampling(max_output_tokens=5, seed=1, **fields)))


def test_the_smallest_request_has_what_is_required_and_the_switches() -> None:
    assert sent(request()) == {
        "text_input": ["Hi"],
        "max_tokens": [5],
        "stream": [True],
        "exclude_input_in_output": [True],
        "seed": [1],
        "return_num_input_tokens": [True],
        "return_num_output_tokens": [True],
        "return_perf_metrics": [True],
    }


def test_every_sampling_field_is_sent_under_the_models_name() -> None:
    tensors = sampled(
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        frequency_penalty=0.75,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        min_output_tokens=2,
    )
    assert (
        tensors.items()
        >= {
            "temperature": [0.5],
            "top_p": [0.25],
            "top_k": [3],
            "frequency_penalty": [0.75],
            "presence_penalty": [-0.5],
            "repetition_penalty": [1.5],
            "min_tokens": [2],
        }.items()
    )


def test_old_tensor_names_are_used_where_the_model_has_them() -> None:
    facts = ensemble_facts(renamed={"seed": "random_seed", "min_tokens": "min_length"})
    sampling = Sampling(max_output_tokens=5, seed=-1, min_output_tokens=2)
    tensors = sent(request(sampling=sampling), facts)
    assert tensors["random_seed"] == [2**64 - 1]
    assert tensors["min_length"] == [2]
    assert EnsembleContract().features(facts) == EnsembleContract().features(FACTS)


def test_temperature_zero_is_greedy_and_sends_no_zero() -> None:
    tensors = sampled(temperature=0.0, top_p=0.9, top_k=40)
    assert tensors["top_k"] == [1]
    assert "temperature" not in tensors
    assert "top_p" not in tensors


def test_a_temperature_alone_makes_the_model_sample() -> None:
    assert sampled(temperature=0.5)["top_p"] == [1.0]
    assert "top_p" not in sampled(temperature=0.5, top_k=40)
    assert "top_p" not in sampled()


def test_stop_words_and_the_constraint_are_sent() -> None:
    constraint = Constraint(kind=ConstraintKind.JSON_SCHEMA, source='{"type": "object"}')
    tensors = sent(request(stop_sequences=("a", "ß"), constraint=constraint))
    assert tensors["stop_words"] == ["a", "ß"]
    assert tensors["guided_decoding_guide_type"] == ["json_schema"]
    assert tensors["guided_decoding_guide"] == ['{"type": "object"}']
    assert sent(request(constraint=Constraint(kind=ConstraintKind.GRAMMAR, source="g")))[
        "guided_decoding_guide_type"
    ] == ["ebnf_grammar"]


def test_nothing_is_sent_or_asked_for_that_the_model_does_not_list() -> None:
    keep = {"text_input", "max_tokens", "stream"}
    facts = ensemble_facts(without=set(FACTS.inputs) - keep)
    message = EnsembleContract().request(request(), facts)
    assert {tensor.name for tensor in message.inputs} == keep
    assert [output.name for output in message.outputs] == ["text_output"]


def test_every_output_that_is_asked_for_is_switched_on() -> None:
    message = EnsembleContract().request(request(), FACTS)
    assert [output.name for output in message.outputs] == [
        "text_output",
        "num_input_tokens",
        "num_output_tokens",
        "arrival_time_ns",
        "first_scheduled_time_ns",
        "first_token_time_ns",
        "last_token_time_ns",
    ]


@pytest.mark.parametrize(
    ("fields", "missing", "feature"),
    [
        ({"sampling": Sampling(max_output_tokens=5, seed=1, top_k=3)}, {"top_k"}, Feature.TOP_K),
        (
            {"sampling": Sampling(max_output_tokens=5, seed=1, min_output_tokens=3)},
            {"min_tokens"},
            Feature.MIN_OUTPUT_TOKENS,
        ),
        ({"prompt": (1, 2)}, set(), Feature.TOKEN_INPUT),
        (
            {"constraint": Constraint(kind=ConstraintKind.GRAMMAR, source="g")},
            {"guided_decoding_guide_type"},
            Feature.GRAMMAR,
        ),
    ],
)
def test_what_the_model_has_no_tensor_for_is_refused_and_not_claimed(
    fields: dict[str, Any], missing: set[str], feature: Feature
) -> None:
    facts = ensemble_facts(without=missing)
    assert feature not in EnsembleContract().features(facts)
    with pytest.raises(ServiceError) as caught:
        EnsembleContract().request(request(**fields), facts)
    assert caught.value.reason is Reason.CAPABILITY_UNSUPPORTED
    assert caught.value.metadata == {"capability": feature.value}


def test_a_value_that_changes_nothing_needs_no_tensor() -> None:
    names = {"top_k", "top_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens", "seed"}
    sampling = Sampling(
        max_output_tokens=5,
        seed=1,
        top_k=0,
        top_p=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repetition_penalty=1.0,
        min_output_tokens=0,
    )
    assert not sent(request(sampling=sampling), ensemble_facts(without=names)).keys() & names


def test_log_probs_token_ids_and_token_input_are_not_claimed() -> None:
    assert not EnsembleContract().features(FACTS) & {
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
        Feature.TOKEN_IDS,
        Feature.TOKEN_INPUT,
        Feature.LOGIT_BIAS,
        Feature.MIN_P,
        Feature.IGNORE_EOS,
    }


def test_a_beginning_of_sequence_that_the_template_wrote_is_not_sent_twice() -> None:
    chat = request(prompt="<s>Hi", add_special_tokens=False)
    assert sent(chat, bos_text="<s>")["text_input"] == ["Hi"]
    assert sent(chat)["text_input"] == ["<s>Hi"]
    assert sent(replace(chat, add_special_tokens=True), bos_text="<s>")["text_input"] == ["<s>Hi"]


def test_a_model_that_is_no_ensemble_says_why() -> None:
    facts = ensemble_facts(without={"max_tokens", "text_output"})
    assert EnsembleContract().problems(facts) == ["input max_tokens is missing", "output text_output is missing"]
    assert EnsembleContract().problems(FACTS) == []


def test_an_unknown_required_input_is_a_problem() -> None:
    spec = TensorSpec(name="image", datatype="BYTES", dims=(1,))
    facts = replace(FACTS, inputs={**FACTS.inputs, "image": spec})
    assert EnsembleContract().problems(facts) == ["input image is required and unknown"]


@pytest.mark.parametrize(("version", "is_safe"), [("2.51.0", False), ("2.68.0dev", True), ("", False), ("10.0", True)])
def test_grpc_errors_are_safe_from_the_fixed_version_on(version: str, is_safe: bool) -> None:
    assert ServerFacts(version=version).has_safe_grpc_errors is is_safe


def test_options_that_cannot_work_are_all_named() -> None:
    with pytest.raises(ValueError, match=r"url must not be empty; stop_timeout_s must be above 0, got 0"):
        TritonOptions(url="", stop_timeout_s=0)
