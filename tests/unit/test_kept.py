"""Answers held against their constraints."""

from __future__ import annotations

import pytest

from service.core.request import Constraint, ConstraintKind, GenerationRequest, Prompt, StopCriteria
from service.generation.kept import is_broken, is_checked

ANY_OBJECT = Constraint(kind=ConstraintKind.JSON_OBJECT)
SCHEMA = Constraint(kind=ConstraintKind.JSON_SCHEMA, source="{}")
CHOICE = Constraint(kind=ConstraintKind.CHOICE, source='["yes", "né"]')


@pytest.mark.parametrize(
    ("constraint", "answer", "want"),
    [
        (ANY_OBJECT, '{"a": 1}', False),
        (ANY_OBJECT, ' {"a": 1}\n', False),
        (ANY_OBJECT, "[1]", True),
        (ANY_OBJECT, '{"a": 1} and more', True),
        (ANY_OBJECT, "", True),
        (SCHEMA, "7", False),
        (SCHEMA, "[" * 100_000 + "]" * 100_000, False),
        (SCHEMA, '{"name": "x"}Paris', True),
        (SCHEMA, '{"name": "x', True),
        (CHOICE, "né", False),
        (CHOICE, "né ", True),
        (CHOICE, "y", True),
    ],
)
def test_an_answer_is_whole_json_or_one_of_the_choices(constraint: Constraint, answer: str, want: bool) -> None:
    assert is_broken(constraint, answer) is want


def test_what_a_stop_criterion_may_have_cut_is_not_checked() -> None:
    def request(constraint: Constraint | None, **stop: tuple[str, ...] | tuple[int, ...]) -> GenerationRequest:
        return GenerationRequest(
            model="m",
            input=Prompt(text="x"),
            constraint=constraint,
            stop=StopCriteria(**stop),  # type: ignore[arg-type]
        )

    assert is_checked(request(SCHEMA))
    assert not is_checked(request(None))
    assert not is_checked(request(SCHEMA, sequences=("}",)))
    assert not is_checked(request(CHOICE, token_ids=(1,)))
    assert not is_checked(request(Constraint(kind=ConstraintKind.REGEX, source="a+")))
