"""Sampling fields as tensors: one row per field, so that what a contract passes on is a table.

A field is sent when it is set and the model lists its tensor. What a model has no
tensor for, `demands.refuse` refuses before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.backends.base import Feature
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import add_input, to_uint64
from service.core.errors import Reason, ServiceError, Violation
from service.core.request import Sampling

__all__ = [
    "Field",
    "add_fields",
    "is_greedy",
    "listed",
    "listed_features",
    "seed_value",
    "top_k_value",
    "top_p_value",
    "unsupported",
]

# Below it the likeliest token is all but certain, and an engine that divides by it may overflow.
_GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Field:
    """One sampling field: its feature, the names of its tensor (newest first), its value.

    `value` returns None for "not set".
    """

    feature: Feature
    names: tuple[str, ...]
    value: Callable[[Sampling], float | int | None]


def is_greedy(sampling: Sampling) -> bool:
    """Return whether the likeliest token is always taken."""
    return sampling.temperature is not None and sampling.temperature < _GREEDY_BELOW


def seed_value(sampling: Sampling) -> int | None:
    """Return the seed as the unsigned tensor takes it: the bits of the signed one."""
    return None if sampling.seed is None else to_uint64(sampling.seed)


def top_k_value(sampling: Sampling) -> int | None:
    """Return top_k; greedy is sent as 1, since TensorRT-LLM divides by the temperature."""
    return 1 if is_greedy(sampling) else sampling.top_k


def top_p_value(sampling: Sampling) -> float | None:
    """Return top_p. TensorRT-LLM is greedy with neither top_k nor top_p: 1 makes it sample."""
    if is_greedy(sampling):
        return None
    if sampling.top_p is None and not sampling.top_k and sampling.temperature is not None:
        return 1.0
    return sampling.top_p


def listed(names: Sequence[str], facts: ModelFacts) -> str | None:
    """Return the first of `names` that the model lists as an input."""
    return next((name for name in names if name in facts.inputs), None)


def listed_features(fields: Iterable[Field], facts: ModelFacts) -> set[Feature]:
    """Return the features of the fields whose tensor the model lists."""
    return {field.feature for field in fields if listed(field.names, facts) is not None}


def add_fields(message: Any, fields: Iterable[Field], sampling: Sampling, facts: ModelFacts) -> None:
    """Append the tensors of the fields that are set and listed."""
    for field in fields:
        value, name = field.value(sampling), listed(field.names, facts)
        if value is not None and name is not None:
            add_input(message, facts.inputs[name], [value])


def unsupported(feature: Feature) -> ServiceError:
    """Return the refusal of a request field that the model cannot honour."""
    return ServiceError(
        Reason.CAPABILITY_UNSUPPORTED,
        f"The model does not take {feature.value}; leave it out.",
        violations=[Violation(feature.value, "not supported")],
        metadata={"capability": feature.value},
    )
