"""What the three models of TensorRT-LLM's inflight_batcher_llm share: tensors, old names and new.

The text models (`ensemble`, `bls`) and the token-level model differ in a few
names; the values are the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from service.backends.base import EngineRequest, Feature
from service.backends.triton.contracts.ebnf import alternatives
from service.backends.triton.contracts.fields import (
    Field,
    add_fields,
    is_greedy,
    listed_features,
    seed_value,
    top_k_value,
    top_p_value,
)
from service.backends.triton.contracts.response import TIMES
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import add_input
from service.core.request import Constraint, ConstraintKind

__all__ = [
    "COMMON_FIELDS",
    "GUIDES",
    "TEXT_FIELDS",
    "TOKEN_FIELDS",
    "add_outputs",
    "add_shared",
    "lora_problems",
    "shared_features",
]

# Tensors with the same name in all three models.
COMMON_FIELDS: Final = (
    Field(Feature.FREQUENCY_PENALTY, ("frequency_penalty",), lambda s: s.frequency_penalty),
    Field(Feature.PRESENCE_PENALTY, ("presence_penalty",), lambda s: s.presence_penalty),
    Field(Feature.REPETITION_PENALTY, ("repetition_penalty",), lambda s: s.repetition_penalty),
    Field(Feature.SEED, ("seed", "random_seed"), seed_value),
    Field(Feature.MIN_OUTPUT_TOKENS, ("min_tokens", "min_length"), lambda s: s.min_output_tokens),
    Field(Feature.TEMPERATURE, ("temperature",), lambda s: None if is_greedy(s) else s.temperature),
    # -1: no token ends the generation.
    Field(Feature.IGNORE_EOS, ("end_id",), lambda s: -1 if s.ignore_eos else None),
)
TEXT_FIELDS: Final = (
    *COMMON_FIELDS,
    Field(Feature.TOP_K, ("top_k",), top_k_value),
    Field(Feature.TOP_P, ("top_p",), top_p_value),
)
TOKEN_FIELDS: Final = (
    *COMMON_FIELDS,
    Field(Feature.TOP_K, ("runtime_top_k",), top_k_value),
    Field(Feature.TOP_P, ("runtime_top_p",), top_p_value),
)

GUIDES: Final = {
    ConstraintKind.JSON_OBJECT: "json",
    ConstraintKind.JSON_SCHEMA: "json_schema",
    ConstraintKind.REGEX: "regex",
    ConstraintKind.GRAMMAR: "ebnf_grammar",
    ConstraintKind.CHOICE: "ebnf_grammar",
}
_GUIDE_TYPE: Final = "guided_decoding_guide_type"
_GUIDE: Final = "guided_decoding_guide"
_LORA: Final = "lora_task_id"
_LOGPROBS_SWITCH: Final = "return_log_probs"

# Outputs that are asked for -> the input that switches them on: the engine fills
# an output only if it was asked for *and* switched on. One that it leaves out of a
# response is left out by the ensemble too, and holds nothing up.
_OUTPUTS: Final = {
    "num_input_tokens": "return_num_input_tokens",
    "num_output_tokens": "return_num_output_tokens",
    **dict.fromkeys(TIMES, "return_perf_metrics"),
}
_ALWAYS_ON: Final = ("return_num_input_tokens", "return_num_output_tokens", "return_perf_metrics")


def shared_features(fields: Sequence[Field], facts: ModelFacts) -> set[Feature]:
    """Return the features behind the inputs of one of the three models."""
    features = listed_features(fields, facts)
    # Temperature 0 is sent as top_k 1: with neither top_k nor top_p the model ignores the temperature.
    if Feature.TOP_K not in features:
        features.discard(Feature.TEMPERATURE)
    if {_GUIDE_TYPE, _GUIDE} <= facts.inputs.keys():
        features |= {Feature.JSON_OBJECT, Feature.JSON_SCHEMA, Feature.REGEX, Feature.GRAMMAR, Feature.CHOICE}
    if _LOGPROBS_SWITCH in facts.inputs and "output_log_probs" in facts.outputs:
        features.add(Feature.LOGPROBS)
    return features


def add_shared(
    message: Any, fields: Sequence[Field], request: EngineRequest, facts: ModelFacts, *, lora_task_id: int | None
) -> None:
    """Append what the three models share: sampling, guide, adapter, beam off, prompt echo off, switches."""

    def add(name: str, values: Sequence[Any]) -> None:
        add_input(message, facts.inputs[name], values)

    add_fields(message, fields, request.sampling, facts)
    if "exclude_input_in_output" in facts.inputs:
        # Without it a request that is answered in one piece repeats the prompt.
        add("exclude_input_in_output", [True])
    if "beam_width" in facts.inputs:
        add("beam_width", [1])
    if request.constraint is not None:
        add(_GUIDE_TYPE, [GUIDES[request.constraint.kind]])
        add(_GUIDE, [_guide(request.constraint)])
    if lora_task_id is not None:
        add(_LORA, [lora_task_id])
    if request.logprobs is not None:
        add(_LOGPROBS_SWITCH, [True])
    for name in _ALWAYS_ON:
        if name in facts.inputs:
            add(name, [True])


def add_outputs(message: Any, names: Sequence[str], request: EngineRequest, facts: ModelFacts) -> None:
    """Ask for the outputs `names`, for counts and times where the model has them, and log-probs if wanted."""
    for name in names:
        message.outputs.add(name=name)
    for name, switch in _OUTPUTS.items():
        if name in facts.outputs and switch in facts.inputs:
            message.outputs.add(name=name)
    if request.logprobs is not None:
        message.outputs.add(name="output_log_probs")


def _guide(constraint: Constraint) -> str:
    """Return the guide. The model wants one also where the type says it all."""
    if constraint.kind is ConstraintKind.CHOICE:
        return alternatives(json.loads(constraint.source))
    return constraint.source or "{}"


def lora_problems(facts: ModelFacts, lora_task_id: int | None) -> list[str]:
    """Return why the configured adapter cannot be used."""
    if lora_task_id is None or _LORA in facts.inputs:
        return []
    return [f"input {_LORA} is missing, and lora_task_id is configured"]
