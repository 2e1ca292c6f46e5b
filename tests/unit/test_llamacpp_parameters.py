"""The service's words to llama.cpp's."""

from __future__ import annotations

from typing import Any

import pytest

from service.backends.base import EngineRequest
from service.backends.llamacpp.options import LlamaCppOptions
from service.backends.llamacpp.parameters import completion_body, engine_seed
from service.core.deadline import Deadline
from service.core.errors import ServiceError
from service.core.request import Constraint, ConstraintKind, Sampling


def body(sampling: Sampling | None = None, **fields: Any) -> dict[str, Any]:
    request = EngineRequest(
        request_id="r", prompt="p", sampling=sampling or Sampling(), deadline=Deadline(1.0), **fields
    )
    return completion_body(request)


ALWAYS = {"stream": True, "return_progress": True, "timings_per_token": True, "cache_prompt": True}


def test_what_is_unset_is_not_sent() -> None:
    assert body() == ALWAYS


@pytest.mark.parametrize(
    ("sampling", "sent"),
    [
        (Sampling(temperature=0.0), {"temperature": 0.0}),
        (Sampling(top_p=0.5), {"top_p": 0.5}),
        (Sampling(top_k=0), {"top_k": 0}),
        (Sampling(min_p=0.0), {"min_p": 0.0}),
        (Sampling(frequency_penalty=1.0), {"frequency_penalty": 1.0, "repeat_last_n": 65536}),
        (Sampling(presence_penalty=-1.0), {"presence_penalty": -1.0, "repeat_last_n": 65536}),
        (Sampling(repetition_penalty=1.2), {"repeat_penalty": 1.2, "repeat_last_n": 65536}),
        (Sampling(seed=7), {"seed": 7}),
        (Sampling(max_output_tokens=3), {"n_predict": 3}),
        (Sampling(logit_bias={5: -100.0, 9: 1.5}), {"logit_bias": [[5, -100.0], [9, 1.5]]}),
        (Sampling(ignore_eos=True), {"ignore_eos": True}),
    ],
)
def test_every_sampling_field_has_its_key(sampling: Sampling, sent: dict[str, Any]) -> None:
    assert body(sampling) == ALWAYS | sent


@pytest.mark.parametrize(("seed", "sent"), [(0, 0), (2**32 + 5, 5), (-1, 2**32 - 2), (2**32 - 1, 2**32 - 2)])
def test_no_seed_becomes_the_one_that_llamacpp_reads_as_random(seed: int, sent: int) -> None:
    assert engine_seed(seed) == sent


@pytest.mark.parametrize(
    ("logprobs", "token_ids", "sent"), [(0, False, 1), (5, False, 5), (None, True, 1), (20, True, 20)]
)
def test_details_of_tokens_cost_at_least_one_alternative(logprobs: int | None, token_ids: bool, sent: int) -> None:
    assert body(logprobs=logprobs, token_ids=token_ids)["n_probs"] == sent


def test_stop_strings_stay_with_the_service() -> None:
    assert body(stop_sequences=("x",), stop_token_ids=(1,)) == ALWAYS


def test_constraints_are_a_schema_or_a_grammar() -> None:
    space = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    any_object = body(constraint=Constraint(kind=ConstraintKind.JSON_OBJECT))["json_schema"]
    assert any_object == {"type": "object", "x-guidance": space}
    schema = Constraint(kind=ConstraintKind.JSON_SCHEMA, source='{"type": "array"}')
    assert body(constraint=schema)["json_schema"] == {"type": "array", "x-guidance": space}
    own = Constraint(kind=ConstraintKind.JSON_SCHEMA, source='{"x-guidance": {"lenient": true}}')
    assert body(constraint=own)["json_schema"] == {"x-guidance": space}
    assert body(constraint=Constraint(kind=ConstraintKind.GRAMMAR, source='root ::= "a"'))["grammar"] == 'root ::= "a"'


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (ConstraintKind.JSON_SCHEMA, "{"),
        (ConstraintKind.JSON_SCHEMA, "[]"),
        (ConstraintKind.JSON_SCHEMA, "true"),
        (ConstraintKind.JSON_SCHEMA, "[" * 200_000),
        (ConstraintKind.JSON_SCHEMA, '{"properties": {"a": {"items": {"pattern": "(a{1,9999}b){1,9999}"}}}}'),
        (ConstraintKind.JSON_SCHEMA, '{"patternProperties": {"(a{1,9999}b){1,9999}": {}}}'),
        (ConstraintKind.GRAMMAR, " \n"),
        (ConstraintKind.GRAMMAR, "root ::= " + "(" * 501 + '"a"' + ")" * 501),
        (ConstraintKind.GRAMMAR, ' %llguidance {}\nstart: "a"'),
        (ConstraintKind.GRAMMAR, 'root ::= "a"{2,1}'),
        (ConstraintKind.GRAMMAR, 'root ::= [{] "a"{ 10, 9 }'),
        (ConstraintKind.JSON_SCHEMA, '{"type": "integer", "maximum": -1000000000000000000000000000000}'),
    ],
)
def test_a_constraint_that_cannot_be_enforced_is_refused(kind: ConstraintKind, source: str) -> None:
    with pytest.raises(ServiceError) as caught:
        body(constraint=Constraint(kind=kind, source=source))
    assert [violation.field for violation in caught.value.violations] == [f"constraint.{kind.value}"]


@pytest.mark.parametrize(
    "source",
    ['root ::= "a"{1,2}', 'root ::= "{2,1}" # {2,1}', "root ::= [{2,1}]", 'root ::= "a"{2,}', 'root ::= "\\"{2,1}"'],
)
def test_repetitions_that_end_behind_their_beginning_are_left_to_the_engine(source: str) -> None:
    assert body(constraint=Constraint(kind=ConstraintKind.GRAMMAR, source=source))["grammar"] == source


@pytest.mark.parametrize(
    ("kind", "source", "field"),
    [
        (ConstraintKind.CHOICE, '["yes", "a<bos>b"]', "constraint.choice.choices[1]"),
        (ConstraintKind.REGEX, "[a-z]<bos>", "constraint.regex"),
        (ConstraintKind.REGEX, r"\<bos\>", "constraint.regex"),
        (ConstraintKind.JSON_SCHEMA, '{"const": "\\u003cbos>"}', "constraint.json_schema"),
    ],
)
def test_the_text_of_a_control_token_cannot_be_asked_for(kind: ConstraintKind, source: str, field: str) -> None:
    request = EngineRequest(
        request_id="r",
        prompt="p",
        sampling=Sampling(),
        deadline=Deadline(1.0),
        constraint=Constraint(kind=kind, source=source),
    )
    assert completion_body(request, ["<eos>"])
    with pytest.raises(ServiceError) as caught:
        completion_body(request, ["<eos>", "<bos>"])
    (violation,) = caught.value.violations
    assert violation.field == field
    assert "'<bos>'" in violation.description


def test_options_report_every_problem_at_once() -> None:
    with pytest.raises(ValueError, match=r"slots must be.*threads must be.*log_verbosity must be"):
        LlamaCppOptions(slots=0, threads=0, log_verbosity=9)
