"""The scripted engine behind deploy/triton: its prompt's words, its text and its faults."""

from __future__ import annotations

import pytest

from tests.support.triton_parts import LIB

assert LIB
from headrace_triton.jobs import EngineError, Job, NoOutputError, ProcessDiedError, Step, ThreadDiedError  # noqa: E402
from headrace_triton.scripted import ScriptedEngine  # noqa: E402
from headrace_triton.scripts import FAULTS, SCRIPT, Script, read_script  # noqa: E402
from headrace_triton.settings import Settings  # noqa: E402


def test_a_prompt_s_words_are_its_script() -> None:
    prompt = b"<user>prefill_ms=300 token_ms=5 text=a%C3%A9%20b chunk=3\nend_after=7 fault=hang fault_after=2<end>"
    assert read_script(prompt, prefill_s=1, token_s=1) == Script(
        "aé b".encode(), prefill_s=0.3, token_s=0.005, chunk=3, end_after=7, fault="hang", fault_after=2
    )
    assert read_script(b"context=1 no words", prefill_s=1, token_s=2) == Script(SCRIPT, 1, 2)


@pytest.mark.parametrize("prompt", [b"fault=nonsense", b"chunk=0"])
def test_a_script_that_cannot_be_played_is_refused(prompt: bytes) -> None:
    with pytest.raises(EngineError, match=prompt.split(b"=")[0].decode()):
        read_script(prompt, prefill_s=0, token_s=0)


def played(prompt: str, limit: int = 6) -> tuple[list[Step], type[Exception] | None]:
    """Return the steps of the scripted engine, and what it raised."""
    steps: list[Step] = []

    def listen(step: Step | None) -> bool:
        if step is not None:
            steps.append(step)
        return sum(len(step.ids) for step in steps if step.is_counted) >= limit or len(steps) > 20

    try:
        job = Job(prompt_ids=list(f"token_ms=0 text=abcd {prompt}".encode()), max_tokens=limit)
        ScriptedEngine(Settings()).generate(job, listen)
    except Exception as error:
        return steps, type(error)
    return steps, None


def test_the_scripted_engine_cuts_its_text_and_ends_it() -> None:
    assert [bytes(step.ids) for step in played("chunk=4")[0]] == [b"abcd", b"ab"]
    ended = played("chunk=4 end_after=5")[0]
    assert [(bytes(step.ids), step.is_last) for step in ended] == [(b"abcd", False), (b"a", True)]
    assert not any(step.is_last for step in played("end_after=9")[0])


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        ("kill", ProcessDiedError),
        ("error", EngineError),
        ("error_then_final", EngineError),
        ("raise", ThreadDiedError),
        ("no_output", NoOutputError),
    ],
)
def test_a_fault_that_ends_a_generation_comes_after_exactly_so_many_tokens(fault: str, raised: type[Exception]) -> None:
    steps, error = played(f"chunk=2 fault={fault} fault_after=3")
    assert (b"".join(bytes(step.ids) for step in steps), error) == (b"abc", raised)


def test_a_fault_in_the_middle_goes_on_with_the_text() -> None:
    steps, _ = played("fault=error_then_content fault_after=2")
    assert [step.error != "" for step in steps] == [False, False, True, False, False, False, False]
    assert b"".join(bytes(step.ids) for step in steps) == b"abcdab"
    big = played("fault=big fault_after=2")[0]
    assert [len(step.ids) for step in big] == [1, 1, 5 * 1024 * 1024, 1, 1, 1, 1]
    assert [step.is_counted for step in big] == [True, True, False, True, True, True, True]


def test_an_engine_that_hangs_gives_signs_of_life_until_it_is_stopped() -> None:
    steps, _ = played("fault=hang")
    assert len(steps) == 21
    assert not any(step.ids for step in steps)


def test_every_fault_is_played() -> None:
    assert set(FAULTS) == {
        *("error", "error_then_final", "error_then_content", "raise", "kill", "hang"),
        *("no_output", "separate_final", "big"),
    }
    engine = ScriptedEngine(Settings())
    separate = {name for name in FAULTS if engine.separates_final(Job(list(f"fault={name}".encode()), 1))}
    assert separate == {"error_then_final", "separate_final"}
