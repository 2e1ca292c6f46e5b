"""Which contract a model has, told by its tensors and never by its name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from service.backends.triton.contracts.contract import Contract, ContractSettings
from service.backends.triton.contracts.ensemble import BlsContract, EnsembleContract
from service.backends.triton.contracts.llmapi import LlmApiContract
from service.backends.triton.contracts.raw import RawContract
from service.backends.triton.contracts.vllm import VllmContract
from service.backends.triton.facts import ModelFacts

__all__ = ["CONTRACTS", "MisfitError", "make_contract", "recognise"]

CONTRACTS: Final[Mapping[str, Callable[[ContractSettings], Contract]]] = {
    "ensemble": EnsembleContract,
    "bls": BlsContract,
    "raw": RawContract,
    "llmapi": LlmApiContract,
    "vllm": VllmContract,
}


@dataclass(frozen=True, slots=True)
class _Signature:
    """Tensors that together occur in one contract only."""

    contract: str
    inputs: frozenset[str]
    outputs: frozenset[str]

    def missing(self, facts: ModelFacts) -> list[str]:
        return [
            *(f"input {name}" for name in sorted(self.inputs - facts.inputs.keys())),
            *(f"output {name}" for name in sorted(self.outputs - facts.outputs.keys())),
        ]


# The ensemble and BLS have the same tensors: what runs them tells the two apart.
_SIGNATURES: Final = (
    _Signature("vllm", frozenset({"text_input", "sampling_parameters"}), frozenset({"text_output"})),
    _Signature("llmapi", frozenset({"text_input", "sampling_param_max_tokens"}), frozenset({"text_output"})),
    _Signature(
        "raw",
        frozenset({"input_ids", "input_lengths", "request_output_len"}),
        frozenset({"output_ids", "sequence_length"}),
    ),
    _Signature("ensemble", frozenset({"text_input", "max_tokens"}), frozenset({"text_output"})),
)


class MisfitError(Exception):
    """The model has none of the contracts; the text says what was found and what was missing."""


def recognise(facts: ModelFacts) -> str:
    """Return the name of the model's contract; raises `MisfitError`."""
    for signature in _SIGNATURES:
        if not signature.missing(facts):
            if signature.contract == "ensemble" and not facts.is_ensemble:
                return "bls"
            return signature.contract
    missing = "; ".join(f"{one.contract} misses {', '.join(one.missing(facts))}" for one in _SIGNATURES)
    raise MisfitError(
        f"it fits no contract: inputs {_listed(facts.inputs)}, outputs {_listed(facts.outputs)}; {missing}"
    )


def make_contract(name: str, settings: ContractSettings) -> Contract:
    """Return the contract `name`, with the settings of one model."""
    return CONTRACTS[name](settings)


def _listed(names: Mapping[str, object]) -> str:
    return f"[{', '.join(sorted(names))}]" if names else "(none)"
