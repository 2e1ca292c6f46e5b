"""Triton's vLLM backend: text in, new text out, and everything about sampling in one JSON text.

The backend hands the JSON to vLLM's `SamplingParams` as it is, unchecked: a key
that this vLLM does not know fails the request without saying why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from tritonclient.grpc import service_pb2

from service.backends.base import EngineRequest, Feature
from service.backends.triton.contracts.contract import ContractSettings, TextMode
from service.backends.triton.contracts.demands import prompt_text, refuse
from service.backends.triton.contracts.finish import FINISH_REASON, RETURN_FINISH_REASON
from service.backends.triton.contracts.text_reader import TEXT, TextRule
from service.backends.triton.contracts.vllm_reader import LOGPROBS, VllmReader
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import add_input
from service.core.errors import Violation, invalid
from service.core.request import Constraint, ConstraintKind

__all__ = ["VllmContract", "sampling_parameters"]

_PARAMETERS: Final = "sampling_parameters"
_REQUIRED: Final = ("text_input", "stream", _PARAMETERS)
_NO_ECHO: Final = "exclude_input_in_output"
_LOGPROBS_SWITCH: Final = "return_logprobs"
# Outputs -> the inputs that switch them on, in every request.
_OUTPUTS: Final = {
    FINISH_REASON: RETURN_FINISH_REASON,
    "num_input_tokens": "return_num_input_tokens",
    "num_output_tokens": "return_num_output_tokens",
}
# `structured_outputs` came into the backend together with this input, which is not
# ours to set. Before, the key had another name, and an unknown one fails the request.
_SINCE_STRUCTURED_OUTPUTS: Final = "embedding_request"
# What the JSON takes whatever the model's tensors (bad_words since 25.02). A logit bias
# is none of it: JSON makes its token ids strings, and vLLM compares them with numbers.
_FEATURES: Final = frozenset(
    {
        Feature.TEMPERATURE,
        Feature.TOP_P,
        Feature.TOP_K,
        Feature.MIN_P,
        Feature.FREQUENCY_PENALTY,
        Feature.PRESENCE_PENALTY,
        Feature.REPETITION_PENALTY,
        Feature.SEED,
        Feature.MIN_OUTPUT_TOKENS,
        Feature.BAD_WORDS,
        Feature.IGNORE_EOS,
    }
)
# Fields with the same name there; 0 of top_k is "all tokens" when it is left out.
_SCALARS: Final = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
# vLLM reads -1 as "no seed", so a negative seed is sent without its sign bit.
_SEED_BITS: Final = 2**63 - 1


class VllmContract:
    """Asks the vLLM backend and reads it."""

    name = "vllm"
    takes_ids = False

    def __init__(self, settings: ContractSettings) -> None:
        self._settings = settings
        self._rule = TextRule(settings.text_mode or TextMode.DELTA, is_certain=True)

    def problems(self, facts: ModelFacts) -> list[str]:
        """Return why a model cannot be served."""
        problems = [f"input {name} is missing" for name in _REQUIRED if name not in facts.inputs]
        if TEXT not in facts.outputs:
            problems.append(f"output {TEXT} is missing")
        settings = self._settings
        for setting, value in (("lora_task_id", settings.lora_task_id), ("lora_path", settings.lora_path or None)):
            if value is not None:
                problems.append(f"{setting} is configured, and this model takes an adapter by lora_name alone")
        known = {*_REQUIRED, _NO_ECHO, *_OUTPUTS.values()}
        return problems + [f"input {name} is required and unknown" for name in sorted(facts.required - known)]

    def features(self, facts: ModelFacts) -> frozenset[Feature]:
        """Return what the JSON takes, and what depends on the backend's version."""
        features = set(_FEATURES)
        if _LOGPROBS_SWITCH in facts.inputs and LOGPROBS in facts.outputs:
            # Each generated token has an entry, with its id: the ids come from there.
            features |= {Feature.LOGPROBS, Feature.TOP_LOGPROBS, Feature.TOKEN_IDS}
        if _SINCE_STRUCTURED_OUTPUTS in facts.inputs:
            features |= {Feature.JSON_OBJECT, Feature.JSON_SCHEMA, Feature.REGEX, Feature.GRAMMAR, Feature.CHOICE}
        return frozenset(features)

    def request(self, request: EngineRequest, facts: ModelFacts) -> Any:
        """Return the request: text, JSON, and the switches that the model lists."""
        refuse(request, self.features(facts))
        message = service_pb2.ModelInferRequest(model_name=facts.name, id=request.request_id)

        def add(name: str, values: Sequence[Any]) -> None:
            add_input(message, facts.inputs[name], values)

        add("text_input", [prompt_text(request, self._settings.bos_text)])
        add("stream", [True])
        add(_PARAMETERS, [sampling_parameters(request, lora_name=self._settings.lora_name)])
        if _NO_ECHO in facts.inputs:
            add(_NO_ECHO, [True])
        message.outputs.add(name=TEXT)
        for name, switch in _OUTPUTS.items():
            if switch in facts.inputs and name in facts.outputs:
                add(switch, [True])
                message.outputs.add(name=name)
        if _wants_logprobs(request):
            add(_LOGPROBS_SWITCH, [True])
            message.outputs.add(name=LOGPROBS)
        return message

    def reader(self, request: EngineRequest, facts: ModelFacts) -> VllmReader:  # noqa: ARG002 - the same for all
        """Return the reader of one generation."""
        return VllmReader(
            self.name,
            self._rule,
            max_output_tokens=request.sampling.max_output_tokens or 0,
            max_context_tokens=self._settings.max_context_tokens,
            alternatives=request.logprobs,
            token_ids=request.token_ids,
            tokenizer=self._settings.tokenizer,
        )


def sampling_parameters(request: EngineRequest, *, lora_name: str) -> str:
    """Return the JSON for vLLM's `SamplingParams`; raises `ServiceError` for a schema that nothing satisfies."""
    sampling = request.sampling
    # vLLM's own default is 16.
    values: dict[str, Any] = {"max_tokens": sampling.max_output_tokens}
    values |= {name: value for name in _SCALARS if (value := getattr(sampling, name)) is not None}
    if sampling.top_k:
        values["top_k"] = sampling.top_k
    if sampling.seed is not None:
        values["seed"] = sampling.seed & _SEED_BITS
    if sampling.min_output_tokens:
        # More than the most is refused, and would change nothing.
        most = sampling.max_output_tokens
        values["min_tokens"] = sampling.min_output_tokens if most is None else min(sampling.min_output_tokens, most)
    if sampling.bad_words:
        values["bad_words"] = list(sampling.bad_words)
    if sampling.ignore_eos:
        values["ignore_eos"] = True
    if request.stop_sequences:
        values["stop"] = list(request.stop_sequences)
        # The service finds it in the text and says which it was; without it vLLM also holds text back.
        values["include_stop_str_in_output"] = True
    if request.stop_token_ids:
        values["stop_token_ids"] = list(request.stop_token_ids)
    if _wants_logprobs(request):
        values["logprobs"] = request.logprobs or 0
    if request.constraint is not None:
        # A JSON text inside the JSON text: the backend reads it by itself.
        values["structured_outputs"] = _dumps(_structured(request.constraint))
    if lora_name:
        values["lora_name"] = lora_name
    return _dumps(values)


def _structured(constraint: Constraint) -> dict[str, Any]:
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return {"json_object": True}
        case ConstraintKind.JSON_SCHEMA:
            schema = json.loads(constraint.source)
            if schema is False:
                raise invalid([Violation("constraint.json_schema", "false allows no output")])
            # vLLM wants an object; the empty one allows what true does.
            return {"json": {} if schema is True else schema}
        case ConstraintKind.REGEX:
            return {"regex": constraint.source}
        case ConstraintKind.GRAMMAR:
            return {"grammar": constraint.source}
        case ConstraintKind.CHOICE:
            return {"choice": json.loads(constraint.source)}


def _wants_logprobs(request: EngineRequest) -> bool:
    return request.logprobs is not None or request.token_ids


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
