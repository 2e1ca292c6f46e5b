"""What a request asks for, and that every contract takes exactly what it claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from service.backends.base import EngineRequest, Feature
from service.backends.triton.contracts.contract import Contract, ContractSettings
from service.backends.triton.contracts.demands import demands
from service.backends.triton.contracts.ensemble import BlsContract, EnsembleContract
from service.backends.triton.contracts.llmapi import LlmApiContract
from service.backends.triton.contracts.vllm import VllmContract
from service.backends.triton.facts import ModelFacts, model_facts
from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind
from tests.support.triton_contracts import LLMAPI, VLLM, engine_request, without
from tests.support.triton_fake import model_config

# One request per feature, that asks for nothing else.
REQUESTS: Mapping[Feature, EngineRequest] = {
    Feature.TOKEN_INPUT: engine_request(prompt=(1, 2)),
    Feature.TEMPERATURE: engine_request({"temperature": 0.0}),
    Feature.TOP_P: engine_request({"top_p": 0.5}),
    Feature.TOP_K: engine_request({"top_k": 2}),
    Feature.MIN_P: engine_request({"min_p": 0.5}),
    Feature.FREQUENCY_PENALTY: engine_request({"frequency_penalty": -1.0}),
    Feature.PRESENCE_PENALTY: engine_request({"presence_penalty": -1.0}),
    Feature.REPETITION_PENALTY: engine_request({"repetition_penalty": 0.5}),
    Feature.MIN_OUTPUT_TOKENS: engine_request({"min_output_tokens": 1}),
    Feature.BAD_WORDS: engine_request({"bad_words": ("a",)}),
    Feature.LOGIT_BIAS: engine_request({"logit_bias": {1: 0.5}}),
    Feature.IGNORE_EOS: engine_request({"ignore_eos": True}),
    Feature.TOKEN_IDS: engine_request(token_ids=True),
    Feature.LOGPROBS: engine_request(logprobs=0),
    Feature.JSON_OBJECT: engine_request(constraint=Constraint(kind=ConstraintKind.JSON_OBJECT)),
    Feature.JSON_SCHEMA: engine_request(constraint=Constraint(kind=ConstraintKind.JSON_SCHEMA, source="{}")),
    Feature.REGEX: engine_request(constraint=Constraint(kind=ConstraintKind.REGEX, source="a+")),
    Feature.GRAMMAR: engine_request(constraint=Constraint(kind=ConstraintKind.GRAMMAR, source="g")),
    Feature.CHOICE: engine_request(constraint=Constraint(kind=ConstraintKind.CHOICE, source='["a"]')),
}
SETTINGS = ContractSettings()
ENSEMBLE = model_facts("ensemble", model_config("ensemble"))
MODELS: Mapping[str, tuple[Contract, ModelFacts]] = {
    "ensemble": (EnsembleContract(SETTINGS), ENSEMBLE),
    "bls": (BlsContract(SETTINGS), replace(ENSEMBLE, is_ensemble=False)),
    "llmapi": (LlmApiContract(SETTINGS), LLMAPI),
    "vllm": (VllmContract(SETTINGS), VLLM),
}


def test_there_is_a_request_for_every_feature_that_can_be_asked_for_alone() -> None:
    # A seed is always set, and alternatives come with log-probs.
    assert set(Feature) - REQUESTS.keys() == {Feature.SEED, Feature.TOP_LOGPROBS}


@pytest.mark.parametrize("feature", REQUESTS, ids=lambda feature: feature.name)
def test_what_is_asked_for_is_named(feature: Feature) -> None:
    assert list(demands(REQUESTS[feature])) == [feature]


def test_alternatives_are_asked_for_with_log_probs() -> None:
    assert list(demands(engine_request(logprobs=2))) == [Feature.LOGPROBS, Feature.TOP_LOGPROBS]


def test_nothing_is_asked_for_by_what_changes_nothing() -> None:
    neutral = {
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_output_tokens": 0,
        "seed": 5,
    }
    assert list(demands(engine_request(neutral, stop_sequences=("a",)))) == []


@pytest.mark.parametrize("is_bare", [False, True], ids=["full", "bare"])
@pytest.mark.parametrize("feature", REQUESTS, ids=lambda feature: feature.name)
@pytest.mark.parametrize("name", MODELS)
def test_a_contract_takes_what_it_claims_and_refuses_the_rest_by_name(
    name: str, feature: Feature, *, is_bare: bool
) -> None:
    contract, facts = MODELS[name]
    if is_bare:
        needed = {"text_input", "max_tokens", "stream", "streaming", "sampling_param_max_tokens", "sampling_parameters"}
        facts = without(facts, *(facts.inputs.keys() - needed))
        assert contract.problems(facts) == []
    if feature in contract.features(facts):
        assert contract.request(REQUESTS[feature], facts).inputs
        return
    with pytest.raises(ServiceError) as caught:
        contract.request(REQUESTS[feature], facts)
    assert caught.value.reason is Reason.CAPABILITY_UNSUPPORTED
    assert caught.value.metadata == {"capability": feature.value}
    assert [violation.field for violation in caught.value.violations] == [feature.value]
