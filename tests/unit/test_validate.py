"""Bounds: both sides of each, and all violations at once."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from service.core.request import (
    Chat,
    Constraint,
    ConstraintKind,
    GenerationRequest,
    OutputOptions,
    Prompt,
    Sampling,
    StopCriteria,
    TokenIds,
)
from service.core.validate import violations

GOOD = GenerationRequest(model="m", input=Prompt(text="hi"))


def fields(**changes: Any) -> list[str]:
    return [violation.field for violation in violations(dataclasses.replace(GOOD, **changes))]


def test_a_plain_request_is_right() -> None:
    assert fields() == []


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", (0.0, -0.0, 2.0), (-0.1, 2.01, math.nan, math.inf)),
        ("top_p", (1.0, 0.01), (0.0, 1.01, math.nan)),
        ("top_k", (0, 1), (-1,)),
        ("min_p", (0.0, 1.0), (-0.1, 1.1, math.nan)),
        ("frequency_penalty", (-2.0, 2.0), (-2.1, 2.1, -math.inf)),
        ("presence_penalty", (-2.0, 2.0), (-2.1, 2.1, math.nan)),
        ("repetition_penalty", (0.01, 5.0), (0.0, -1.0, math.inf)),
        ("max_output_tokens", (1,), (0, -1)),
        ("min_output_tokens", (0,), (-1,)),
        ("seed", (-(2**63), 2**63 - 1, 0), ()),
    ],
)
def test_sampling_bounds(name: str, good: tuple[float, ...], bad: tuple[float, ...]) -> None:
    for value in good:
        assert fields(sampling=Sampling(**{name: value})) == []
    for value in bad:
        assert fields(sampling=Sampling(**{name: value})) == [f"sampling.{name}"]


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"model": ""}, ["model"]),
        ({"input": Prompt(text="")}, ["prompt"]),
        ({"input": TokenIds(ids=())}, ["tokens.ids"]),
        ({"input": TokenIds(ids=(1, -1))}, ["tokens.ids[1]"]),
        ({"input": Chat(messages=())}, ["chat.messages"]),
        ({"choice_count": 0}, ["choice_count"]),
        ({"time_limit_s": 0.0}, ["time_limit"]),
        ({"sampling": Sampling(min_output_tokens=5, max_output_tokens=4)}, ["sampling.min_output_tokens"]),
        ({"sampling": Sampling(logit_bias={-1: 1.0})}, ["sampling.logit_bias[-1]"]),
        ({"sampling": Sampling(logit_bias={3: 101.0})}, ["sampling.logit_bias[3]"]),
        ({"sampling": Sampling(logit_bias={3: math.nan})}, ["sampling.logit_bias[3]"]),
        ({"sampling": Sampling(logit_bias=dict.fromkeys(range(1025), 1.0))}, ["sampling.logit_bias"]),
        ({"stop": StopCriteria(sequences=("",))}, ["stop.sequences[0]"]),
        ({"stop": StopCriteria(sequences=("ok", "é" * 129))}, ["stop.sequences[1]"]),
        ({"stop": StopCriteria(sequences=("x",) * 17)}, ["stop.sequences"]),
        ({"stop": StopCriteria(token_ids=(-1,))}, ["stop.token_ids[0]"]),
        ({"stop": StopCriteria(token_ids=(1,) * 17)}, ["stop.token_ids"]),
        ({"output": OutputOptions(logprobs=True, top_logprobs=21)}, ["output.top_logprobs"]),
        ({"output": OutputOptions(top_logprobs=1)}, ["output.top_logprobs"]),
        ({"constraint": Constraint(kind=ConstraintKind.GRAMMAR, source=" ")}, ["constraint.grammar"]),
        ({"constraint": Constraint(kind=ConstraintKind.JSON_SCHEMA, source="{")}, ["constraint.json_schema"]),
        ({"constraint": Constraint(kind=ConstraintKind.JSON_SCHEMA, source="3")}, ["constraint.json_schema"]),
        (
            {"constraint": Constraint(kind=ConstraintKind.JSON_SCHEMA, source="[" * 100_000)},
            ["constraint.json_schema"],
        ),
        (
            {"constraint": Constraint(kind=ConstraintKind.JSON_SCHEMA, source='{"a":' * 70 + "1" + "}" * 70)},
            ["constraint.json_schema"],
        ),
        ({"constraint": Constraint(kind=ConstraintKind.GRAMMAR, source="x" * 300_000)}, ["constraint.grammar"]),
    ],
)
def test_everything_else(changes: dict[str, Any], want: list[str]) -> None:
    assert fields(**changes) == want


def test_good_edges() -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert (
        fields(
            stop=StopCriteria(sequences=("x" * 256,) * 16, token_ids=(0,) * 16),
            output=OutputOptions(logprobs=True, top_logprobs=20),
            constraint=Constraint(kind=ConstraintKind.JSON_SCHEMA, source=schema),
        )
        == []
    )


def test_every_violation_is_named_at_once() -> None:
    found = fields(
        model="",
        input=Prompt(text=""),
        sampling=Sampling(temperature=3.0, top_p=0.0),
        stop=StopCriteria(sequences=("",)),
        choice_count=0,
    )
    assert found == ["model", "prompt", "sampling.temperature", "sampling.top_p", "stop.sequences[0]", "choice_count"]


def test_a_violation_says_what_was_sent_and_what_is_accepted() -> None:
    (violation,) = violations(dataclasses.replace(GOOD, sampling=Sampling(temperature=3.0)))
    assert violation.description == "must be from 0 to 2, got 3"
