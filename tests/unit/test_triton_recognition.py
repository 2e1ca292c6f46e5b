"""Which contract a model has, by its configuration alone."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from service.backends.triton.facts import ModelFacts, model_facts
from service.backends.triton.recognition import MisfitError, recognise
from tests.support.triton_fake import model_config

REPOSITORY = {
    "ensemble": ("inflight_batcher_llm", "ensemble"),
    "bls": ("inflight_batcher_llm", "tensorrt_llm_bls"),
    "raw": ("inflight_batcher_llm", "tensorrt_llm"),
    "llmapi": ("llmapi", "tensorrt_llm"),
    "vllm": ("vllm", "vllm_model"),
}


def facts_of(contract: str, name: str = "model") -> ModelFacts:
    family, folder = REPOSITORY[contract]
    return model_facts(name, model_config(folder, family))


@pytest.mark.parametrize("contract", REPOSITORY)
@pytest.mark.parametrize("name", ["ensemble", "tensorrt_llm", "anything"])
def test_a_model_is_recognised_by_its_tensors_whatever_its_name(contract: str, name: str) -> None:
    assert recognise(facts_of(contract, name)) == contract


@pytest.mark.parametrize("model", ["preprocessing", "postprocessing"])
def test_the_models_inside_an_ensemble_fit_no_contract(model: str) -> None:
    with pytest.raises(MisfitError):
        recognise(model_facts(model, model_config(model)))


def test_the_old_tensor_names_are_recognised_too() -> None:
    config = model_config("ensemble")
    for tensor in config.input:
        tensor.name = {"seed": "random_seed", "min_tokens": "min_length"}.get(tensor.name, tensor.name)
    assert recognise(model_facts("ensemble", config)) == "ensemble"


def without(config: Any, name: str) -> Any:
    for tensors in (config.input, config.output):
        for tensor in [one for one in tensors if one.name == name]:
            tensors.remove(tensor)
    return config


@pytest.mark.parametrize(
    ("contract", "tensor", "told"),
    [
        ("ensemble", "max_tokens", "ensemble misses input max_tokens"),
        ("raw", "output_ids", "raw misses output output_ids"),
        ("llmapi", "sampling_param_max_tokens", "llmapi misses input sampling_param_max_tokens"),
        ("vllm", "text_output", "vllm misses output text_output"),
    ],
)
def test_a_model_that_fits_none_is_told_what_is_there_and_what_is_missing(
    contract: str, tensor: str, told: str
) -> None:
    family, folder = REPOSITORY[contract]
    facts = model_facts("model", without(model_config(folder, family), tensor))
    with pytest.raises(MisfitError) as caught:
        recognise(facts)
    assert told in str(caught.value)
    assert next(iter(sorted(facts.inputs))) in str(caught.value)


def test_a_model_without_any_tensor_says_so() -> None:
    with pytest.raises(MisfitError, match=r"it fits no contract: inputs \(none\), outputs \(none\); "):
        recognise(ModelFacts(name="empty", inputs={}, outputs={}))


def test_the_facts_of_an_ensemble_name_its_steps() -> None:
    facts = facts_of("ensemble")
    assert facts.is_ensemble
    assert facts.steps == ("preprocessing", "tensorrt_llm", "postprocessing")


@pytest.mark.parametrize(
    ("queue", "honours"),
    [
        ({}, False),
        ({"allow_timeout_override": True}, False),
        ({"default_timeout_microseconds": 1000}, False),
        ({"allow_timeout_override": True, "default_timeout_microseconds": 1000}, True),
    ],
)
def test_a_timeout_counts_only_where_it_shortens_a_default(queue: dict[str, Any], *, honours: bool) -> None:
    config = model_config_pb2.ModelConfig(
        dynamic_batching=model_config_pb2.ModelDynamicBatching(
            default_queue_policy=model_config_pb2.ModelQueuePolicy(**queue)
        )
    )
    assert model_facts("model", config).honours_timeout is honours


def test_without_a_batcher_a_timeout_does_not_count() -> None:
    assert not facts_of("vllm").honours_timeout
