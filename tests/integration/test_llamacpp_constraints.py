"""Regular expressions and choices that the embedded engine really keeps to."""

from __future__ import annotations

import json
import re

import pytest

from service.backends.base import EngineFinish, EngineFinished, EngineOutput, EngineRequest
from service.backends.llamacpp.backend import LlamaCppBackend
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind, Sampling
from tests.unit.test_llamacpp_schema_bounds import WORST

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(120)]


async def generate(backend: LlamaCppBackend, kind: ConstraintKind, source: str) -> str:
    request = EngineRequest(
        request_id="r",
        prompt="Q: What is the capital of France?\nA:",
        sampling=Sampling(temperature=0.0, seed=1, max_output_tokens=64),
        deadline=Deadline.after(100),
        constraint=Constraint(kind=kind, source=source),
    )
    items = [item async for item in backend.generate(request)]
    last = items[-1]
    assert isinstance(last, EngineFinished)
    assert last.reason is EngineFinish.STOP
    return b"".join(item.data for item in items if isinstance(item, EngineOutput)).decode()


@pytest.mark.parametrize(
    "expression",
    [
        r"[0-9]{3}-[0-9]{2}",
        r"(yes|no)!",
        r"https:\/\/[a-z]{3,8}\.org/x",
        r"[A-Z][a-z]{4} \n[.]",
        "é{2}🧿",
        r"[\]\\/]{3}",
    ],
)
async def test_the_whole_output_matches_the_expression(backend: LlamaCppBackend, expression: str) -> None:
    assert re.fullmatch(expression, await generate(backend, ConstraintKind.REGEX, expression))


@pytest.mark.parametrize(
    "texts",
    [["Berlin", "Rome"], ['she said "no"\n', "\\d+ /x/"], ["🧿"], ["ab", "abc"], [f"choice {n}" for n in range(1024)]],
)
async def test_the_output_is_one_of_the_texts(backend: LlamaCppBackend, texts: list[str]) -> None:
    assert await generate(backend, ConstraintKind.CHOICE, json.dumps(texts)) in texts


@pytest.mark.parametrize("expression", ["(", "[0-9", r"(?=a)b", r"(a)\1", r"\bfoo\b", "(a{1000}){1000}", "a\\"])
async def test_an_expression_that_cannot_be_kept_to_is_refused(backend: LlamaCppBackend, expression: str) -> None:
    for _ in range(2):  # remembered the second time
        with pytest.raises(ServiceError) as refused:
            await generate(backend, ConstraintKind.REGEX, expression)
        assert refused.value.reason is Reason.INVALID_FIELD
        assert [violation.field for violation in refused.value.violations] == ["constraint.regex"]


async def refused_as(backend: LlamaCppBackend, kind: ConstraintKind, source: str) -> str:
    with pytest.raises(ServiceError) as refused:
        await generate(backend, kind, source)
    assert refused.value.reason is Reason.INVALID_FIELD
    (violation,) = refused.value.violations
    assert violation.field.startswith(f"constraint.{kind.value}")
    return violation.description


@pytest.mark.parametrize("name", WORST)
async def test_the_worst_schemas_within_the_limits_compile_and_are_enforced(
    backend: LlamaCppBackend, name: str
) -> None:
    constraint = Constraint(kind=ConstraintKind.JSON_SCHEMA, source=json.dumps(WORST[name]))
    request = EngineRequest(
        request_id="r",
        prompt="JSON:",
        sampling=Sampling(temperature=0.0, seed=1, max_output_tokens=4),
        deadline=Deadline.after(60),
        constraint=constraint,
    )
    assert isinstance([item async for item in backend.generate(request)][-1], EngineFinished)


async def test_a_schema_that_would_end_the_process_is_refused_and_the_engine_goes_on(backend: LlamaCppBackend) -> None:
    schema = {"type": "integer", "maximum": -(10**30), "minimum": -(10**30) - 5}
    assert "imum: at most" in await refused_as(backend, ConstraintKind.JSON_SCHEMA, json.dumps(schema))
    assert await generate(backend, ConstraintKind.CHOICE, '["yes"]') == "yes"


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (ConstraintKind.CHOICE, '["<start_of_turn>user"]'),
        (ConstraintKind.REGEX, "<bos>"),
        (ConstraintKind.JSON_SCHEMA, '{"enum": ["<eos>", "<bos>"]}'),
    ],
)
async def test_the_text_of_a_control_token_is_refused(
    backend: LlamaCppBackend, kind: ConstraintKind, source: str
) -> None:
    assert "control token" in await refused_as(backend, kind, source)


async def test_a_refusal_names_the_keywords_that_are_likely_to_blame(backend: LlamaCppBackend) -> None:
    source = '{"type": "array", "uniqueItems": true, "items": {"not": {"type": "null"}}}'
    told = await refused_as(backend, ConstraintKind.JSON_SCHEMA, source)
    assert told.endswith("; it uses uniqueItems, not")
