"""TensorRT-LLM's LLM API as a Triton model: text in, the whole text so far out.

The model is named `tensorrt_llm`, like the token-level one, and shares none of
its tensors. It has no batch dimension and no counts. What its LLM can do beyond
these tensors (repetition penalty, guided decoding, log-probs of each token)
cannot be asked for here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from tritonclient.grpc import service_pb2

from service.backends.base import EngineRequest, Feature
from service.backends.triton.contracts.contract import ContractSettings, TextMode
from service.backends.triton.contracts.demands import prompt_text, refuse
from service.backends.triton.contracts.fields import (
    Field,
    add_fields,
    is_greedy,
    listed_features,
    seed_value,
    top_k_value,
    top_p_value,
)
from service.backends.triton.contracts.finish import FINISH_REASON, RETURN_FINISH_REASON, ReasonReader
from service.backends.triton.contracts.response import TIMES
from service.backends.triton.contracts.text_reader import TEXT, TextRule
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import add_input

__all__ = ["LlmApiContract"]

_log = logging.getLogger(__name__)

_REQUIRED: Final = ("text_input", "streaming", "sampling_param_max_tokens")
_FIELDS: Final = (
    Field(Feature.TEMPERATURE, ("sampling_param_temperature",), lambda s: None if is_greedy(s) else s.temperature),
    Field(Feature.TOP_P, ("sampling_param_top_p",), top_p_value),
    # Greedy is top_k 1 here too, and only with top_p unset; 0 is "all tokens" as long as it is left out.
    Field(Feature.TOP_K, ("sampling_param_top_k",), lambda s: top_k_value(s) or None),
    Field(Feature.FREQUENCY_PENALTY, ("sampling_param_frequency_penalty",), lambda s: s.frequency_penalty),
    Field(Feature.PRESENCE_PENALTY, ("sampling_param_presence_penalty",), lambda s: s.presence_penalty),
    Field(Feature.SEED, ("sampling_param_seed",), seed_value),
)
_PERF_SWITCH: Final = "sampling_param_return_perf_metrics"
# Without the first a request that is answered in one piece repeats the prompt.
_SWITCHES: Final = ("sampling_param_exclude_input_from_output", RETURN_FINISH_REASON, _PERF_SWITCH)
_OUTPUTS: Final = {FINISH_REASON: RETURN_FINISH_REASON, **dict.fromkeys(TIMES, _PERF_SWITCH)}


class LlmApiContract:
    """Asks the LLM API and reads it.

    Stop strings are not passed on: the model hands them to its tokenizer as bytes,
    which that refuses, and an engine that stops at one takes it out of the text,
    so that nobody could tell which it was. The service finds them in the text and
    cancels, which this model notices.
    """

    name = "llmapi"
    takes_ids = False

    def __init__(self, settings: ContractSettings) -> None:
        self._settings = settings
        # The adapter: its inputs, and the settings behind them.
        self._lora: dict[str, tuple[str, int | str | None]] = {
            "lora_id": ("lora_task_id", settings.lora_task_id),
            "lora_name": ("lora_name", settings.lora_name or None),
            "lora_path": ("lora_path", settings.lora_path or None),
        }
        self._has_lora = any(value is not None for _, value in self._lora.values())
        # Versions differ: a stream may turn out to carry new texts, unless it is configured.
        self._mode = TextRule(settings.text_mode or TextMode.CUMULATIVE, is_certain=settings.text_mode is not None)
        self._has_warned = False

    def problems(self, facts: ModelFacts) -> list[str]:
        """Return why a model cannot be served."""
        problems = [f"input {name} is missing" for name in _REQUIRED if name not in facts.inputs]
        if TEXT not in facts.outputs:
            problems.append(f"output {TEXT} is missing")
        known = {*_REQUIRED, *_SWITCHES}
        if self._has_lora:
            known |= self._lora.keys()
            for name, (setting, value) in self._lora.items():
                if value is not None and name not in facts.inputs:
                    problems.append(f"input {name} is missing, and {setting} is configured")
                elif value is None and name in facts.inputs:
                    # The model refuses an adapter without one of them.
                    problems.append(f"input {name} goes with the configured adapter, and {setting} is not configured")
        return problems + [f"input {name} is required and unknown" for name in sorted(facts.required - known)]

    def features(self, facts: ModelFacts) -> frozenset[Feature]:
        """Return the features behind the model's inputs."""
        features = listed_features(_FIELDS, facts)
        # Temperature 0 is sent as top_k 1.
        if Feature.TOP_K not in features:
            features.discard(Feature.TEMPERATURE)
        return frozenset(features)

    def request(self, request: EngineRequest, facts: ModelFacts) -> Any:
        """Return the request: every required tensor, and of the others those that the model lists."""
        refuse(request, self.features(facts))
        message = service_pb2.ModelInferRequest(model_name=facts.name, id=request.request_id)

        def add(name: str, values: Sequence[Any]) -> None:
            add_input(message, facts.inputs[name], values)

        add("text_input", [prompt_text(request, self._settings.bos_text)])
        add("streaming", [True])
        add("sampling_param_max_tokens", [request.sampling.max_output_tokens])
        add_fields(message, _FIELDS, request.sampling, facts)
        for name in _SWITCHES:
            if name in facts.inputs:
                add(name, [True])
        for name, (_, value) in self._lora.items():
            if value is not None:
                add(name, [value])
        message.outputs.add(name=TEXT)
        for name, switch in _OUTPUTS.items():
            if name in facts.outputs and switch in facts.inputs:
                message.outputs.add(name=name)
        return message

    def reader(self, request: EngineRequest, facts: ModelFacts) -> ReasonReader:  # noqa: ARG002 - the same for all
        """Return the reader of one generation."""
        return ReasonReader(
            self.name,
            self._mode,
            max_output_tokens=request.sampling.max_output_tokens or 0,
            max_context_tokens=self._settings.max_context_tokens,
            on_delta=self._warn_once,
        )

    def _warn_once(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "llmapi: a response did not go on from the text before it, and was read as new text. Set text in the "
                'model\'s options: "delta" if its responses carry new text, "cumulative" if they carry the whole text'
            )
