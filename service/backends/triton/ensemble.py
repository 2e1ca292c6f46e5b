"""The `ensemble` of TensorRT-LLM's inflight_batcher_llm: text in, text out.

Old and new tensor names are served: what is sent is what the model lists.
The contract has no finish reason, no token ids and no alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tritonclient.grpc import service_pb2

from service.backends.base import EngineRequest, Feature
from service.backends.triton.ensemble_reader import OUTPUTS, TEXT, EnsembleReader
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import add_input, to_uint64
from service.core.errors import Reason, ServiceError
from service.core.request import ConstraintKind, Sampling

__all__ = ["EnsembleContract"]

_REQUIRED: Final = ("text_input", "max_tokens")
_GUIDE_TYPES: Final = {
    ConstraintKind.JSON_OBJECT: "json",
    ConstraintKind.JSON_SCHEMA: "json_schema",
    ConstraintKind.GRAMMAR: "ebnf_grammar",
}
# Switches that make the outputs of OUTPUTS appear.
_SWITCHES: Final = ("return_num_input_tokens", "return_num_output_tokens", "return_perf_metrics")


@dataclass(frozen=True, slots=True)
class _Field:
    """One sampling field: its feature, the names of its tensor (newest first), its value.

    A value that changes nothing (`neutral`) needs no tensor.
    """

    feature: Feature
    names: tuple[str, ...]
    value: Callable[[Sampling], float | int | None]
    neutral: float | None = None


def _is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature == 0


def _top_p(sampling: Sampling) -> float | None:
    """Return the tensor's value. TensorRT-LLM is greedy with neither top_k nor top_p: 1 makes it sample."""
    if _is_greedy(sampling):
        return None
    if sampling.top_p is None and not sampling.top_k and sampling.temperature is not None:
        return 1.0
    return sampling.top_p


_FIELDS: Final = (
    _Field(Feature.FREQUENCY_PENALTY, ("frequency_penalty",), lambda s: s.frequency_penalty, neutral=0),
    _Field(Feature.PRESENCE_PENALTY, ("presence_penalty",), lambda s: s.presence_penalty, neutral=0),
    _Field(Feature.REPETITION_PENALTY, ("repetition_penalty",), lambda s: s.repetition_penalty, neutral=1),
    # The tensor is unsigned, a seed of the service is signed.
    _Field(Feature.SEED, ("seed", "random_seed"), lambda s: None if s.seed is None else to_uint64(s.seed)),
    _Field(Feature.MIN_OUTPUT_TOKENS, ("min_tokens", "min_length"), lambda s: s.min_output_tokens, neutral=0),
    _Field(Feature.TEMPERATURE, ("temperature",), lambda s: None if _is_greedy(s) else s.temperature),
    _Field(Feature.TOP_K, ("top_k",), lambda s: 1 if _is_greedy(s) else s.top_k, neutral=0),
    _Field(Feature.TOP_P, ("top_p",), _top_p, neutral=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleContract:
    """Asks an ensemble and reads it. `max_context_tokens` and `bos_text` are those of `TritonOptions`."""

    max_context_tokens: int | None = None
    bos_text: str = ""

    def problems(self, facts: ModelFacts) -> list[str]:
        """Return why a model is no such ensemble."""
        problems = [f"input {name} is missing" for name in _REQUIRED if name not in facts.inputs]
        if TEXT not in facts.outputs:
            problems.append(f"output {TEXT} is missing")
        problems += [f"input {name} is required and unknown" for name in sorted(facts.required - set(_REQUIRED))]
        if "stream" not in facts.inputs:
            problems.append("input stream is missing")
        return problems

    def features(self, facts: ModelFacts) -> frozenset[Feature]:
        """Return the features behind the model's inputs; log-probs lack token ids here and are none of them."""
        features = {field.feature for field in _FIELDS if _listed(field.names, facts) is not None}
        # Temperature 0 is sent as top_k 1: with neither top_k nor top_p the model ignores the temperature.
        if Feature.TOP_K not in features:
            features.discard(Feature.TEMPERATURE)
        if {"guided_decoding_guide_type", "guided_decoding_guide"} <= facts.inputs.keys():
            features |= {Feature.JSON_OBJECT, Feature.JSON_SCHEMA, Feature.GRAMMAR}
        return frozenset(features)

    def request(self, request: EngineRequest, facts: ModelFacts) -> Any:
        """Return the request: every required tensor, and of the others those that the model lists."""
        message = service_pb2.ModelInferRequest(model_name=facts.name, id=request.request_id)
        message.parameters["triton_enable_empty_final_response"].bool_param = True

        def add(name: str, values: Sequence[Any]) -> None:
            add_input(message, facts.inputs[name], values)

        add("text_input", [self._text(request)])
        add("max_tokens", [request.sampling.max_output_tokens])
        add("stream", [True])
        if "exclude_input_in_output" in facts.inputs:
            add("exclude_input_in_output", [True])
        for field in _FIELDS:
            value = field.value(request.sampling)
            name = _listed(field.names, facts)
            if value is not None and name is not None:
                add(name, [value])
            elif value is not None and value != field.neutral and field.feature is not Feature.SEED:
                # A seed is always set, also when the caller did not ask for one.
                raise _unsupported(field.feature)
        if request.stop_sequences and "stop_words" in facts.inputs:
            add("stop_words", request.stop_sequences)
        if request.constraint is not None:
            kind = request.constraint.kind
            if "guided_decoding_guide_type" not in facts.inputs:
                raise _unsupported(Feature(f"constraint.{kind.value}"))
            add("guided_decoding_guide_type", [_GUIDE_TYPES[kind]])
            # The model wants both tensors, also where the type says it all.
            add("guided_decoding_guide", [request.constraint.source or "{}"])
        for name in _SWITCHES:
            if name in facts.inputs:
                add(name, [True])
        for name, switch in OUTPUTS.items():
            if name in facts.outputs and (switch is None or switch in facts.inputs):
                message.outputs.add(name=name)
        return message

    def reader(self, request: EngineRequest) -> EnsembleReader:
        """Return the reader of one generation."""
        return EnsembleReader(
            max_output_tokens=request.sampling.max_output_tokens or 0, max_context_tokens=self.max_context_tokens
        )

    def _text(self, request: EngineRequest) -> str:
        if not isinstance(request.prompt, str):
            raise _unsupported(Feature.TOKEN_INPUT)
        if not request.add_special_tokens and self.bos_text:
            return request.prompt.removeprefix(self.bos_text)
        return request.prompt


def _listed(names: tuple[str, ...], facts: ModelFacts) -> str | None:
    return next((name for name in names if name in facts.inputs), None)


def _unsupported(feature: Feature) -> ServiceError:
    return ServiceError(
        Reason.CAPABILITY_UNSUPPORTED,
        f"The model does not take {feature.value}; leave it out.",
        metadata={"capability": feature.value},
    )
