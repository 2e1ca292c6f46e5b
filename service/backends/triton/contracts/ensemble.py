"""TensorRT-LLM's `ensemble` and `tensorrt_llm_bls`: text in, text out, with the same tensors.

They differ in what a response carries and in how far a cancel goes. The
contract has no finish reason, no token ids and no alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tritonclient.grpc import service_pb2

from service.backends.base import EngineRequest, Feature
from service.backends.triton.contracts.contract import ContractSettings, TextMode
from service.backends.triton.contracts.demands import prompt_text, refuse
from service.backends.triton.contracts.inflight import (
    TEXT_FIELDS,
    add_outputs,
    add_shared,
    lora_problems,
    shared_features,
)
from service.backends.triton.contracts.text_reader import TEXT, TextReader, TextRule
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import add_input

__all__ = ["BlsContract", "EnsembleContract", "accumulates"]

_REQUIRED: Final = ("text_input", "max_tokens")


class EnsembleContract:
    """Asks the ensemble and reads it: the text of a response is new, and decoded by itself."""

    name = "ensemble"
    takes_ids = False
    default_mode = TextMode.DELTA

    def __init__(self, settings: ContractSettings) -> None:
        self._settings = settings
        self._rule = TextRule(settings.text_mode or self.default_mode, is_certain=True)

    def problems(self, facts: ModelFacts) -> list[str]:
        """Return why a model cannot be served."""
        problems = [f"input {name} is missing" for name in (*_REQUIRED, "stream") if name not in facts.inputs]
        if TEXT not in facts.outputs:
            problems.append(f"output {TEXT} is missing")
        known = {*_REQUIRED, "stream"}
        problems += [f"input {name} is required and unknown" for name in sorted(facts.required - known)]
        return problems + lora_problems(facts, self._settings.lora_task_id)

    def features(self, facts: ModelFacts) -> frozenset[Feature]:
        """Return the features behind the model's inputs."""
        features = shared_features(TEXT_FIELDS, facts)
        if "bad_words" in facts.inputs:
            features.add(Feature.BAD_WORDS)
        return frozenset(features)

    def request(self, request: EngineRequest, facts: ModelFacts) -> Any:
        """Return the request: every required tensor, and of the others those that the model lists."""
        refuse(request, self.features(facts))
        message = service_pb2.ModelInferRequest(model_name=facts.name, id=request.request_id)

        def add(name: str, values: Sequence[Any]) -> None:
            add_input(message, facts.inputs[name], values)

        add("text_input", [prompt_text(request, self._settings.bos_text)])
        add("max_tokens", [request.sampling.max_output_tokens])
        add("stream", [True])
        add_shared(message, TEXT_FIELDS, request, facts, lora_task_id=self._settings.lora_task_id)
        if request.stop_sequences and "stop_words" in facts.inputs:
            add("stop_words", request.stop_sequences)
        if request.sampling.bad_words:
            add("bad_words", request.sampling.bad_words)
        add_outputs(message, (TEXT,), request, facts)
        return message

    def reader(self, request: EngineRequest, facts: ModelFacts) -> TextReader:
        """Return the reader of one generation."""
        return TextReader(
            self.name,
            self.mode(facts),
            max_output_tokens=request.sampling.max_output_tokens or 0,
            max_context_tokens=self._settings.max_context_tokens,
            logprobs=request.logprobs is not None,
        )

    def mode(self, facts: ModelFacts) -> TextRule:  # noqa: ARG002 - the BLS model's parameters decide there
        """Return what a response carries."""
        return self._rule


class BlsContract(EnsembleContract):
    """The same tensors, served by a Python model that calls the others; deployed with `accumulate_tokens`
    every response carries the whole text so far.
    """

    name = "bls"

    def mode(self, facts: ModelFacts) -> TextRule:
        """Return what a response carries: the model's own parameter says, the setting overrides."""
        if self._settings.text_mode is None:
            return TextRule(TextMode.CUMULATIVE if accumulates(facts) else TextMode.DELTA, is_certain=True)
        return self._rule


def accumulates(facts: ModelFacts) -> bool:
    """Return whether the model was deployed with `accumulate_tokens`, by the words that the model itself takes."""
    return facts.parameters.get("accumulate_tokens", "").lower() in ("true", "yes", "1", "t")
