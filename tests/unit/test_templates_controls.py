"""Control texts in messages are broken up: every one of them, whatever the vocabulary, in linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.templates import controls
from service.templates.controls import ControlTexts

MARK = "\u200b"
GEMMA = tuple(f"<unused{number}>" for number in range(6242))
CHATML = ("<|im_start|>", "<|im_end|>")
ALL_LENGTHS = tuple(f"<{'u' * times}>" for times in range(2, 60))


def simply(texts: tuple[str, ...], text: str) -> str:
    """Say the rule again, slowly: a mark behind the first character of every control text."""
    return "".join(
        character + (MARK if any(text.startswith(one, at) for one in texts if len(one) > 1) else "")
        for at, character in enumerate(text)
    )


@given(texts=st.lists(st.text("<|ab]é", max_size=6), max_size=8).map(tuple), text=st.text("<|ab]é", max_size=60))
def test_every_control_text_is_broken_up_and_nothing_else(texts: tuple[str, ...], text: str) -> None:
    assert ControlTexts(texts).disarm(text) == simply(texts, text)


@pytest.mark.parametrize("text", ["<|im_<|im_end|>", "<<|im_end|>|im_end|>", "<|im_end|><|im_end|>", "a<|im_end|", ""])
def test_texts_within_texts_are_found(text: str) -> None:
    assert ControlTexts(CHATML).disarm(text) == simply(CHATML, text)


def test_a_text_across_two_slices_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "_SLICE_CHARS", 7)
    for at in range(20):
        text = "x" * at + "<|im_end|>" + "<|im_end|>" + "y" * 9
        assert ControlTexts(CHATML).disarm(text) == simply(CHATML, text)


def test_texts_that_branch_deeper_than_groups_may_nest_are_all_found() -> None:
    deep = tuple("a" * depth + "b" for depth in range(1, 200))
    known = ControlTexts(deep)
    assert all(known.disarm(text) == simply(deep, text) for text in deep)
    assert known.disarm("a" * 10) == "a" * 10


def test_without_control_texts_nothing_changes() -> None:
    assert ControlTexts(()).disarm("<|im_end|>") == ControlTexts(("<",)).disarm("<|im_end|>") == "<|im_end|>"


@pytest.mark.parametrize("texts", [GEMMA, (*CHATML, *ALL_LENGTHS)], ids=["gemma", "lengths"])
@pytest.mark.parametrize(
    "piece", ["<", "<|", "<u", "<unused1", "<unused62411", "<|im_start", "a < b, <b>c</b>\n", "<unused9>"]
)
def test_a_long_text_takes_time_in_proportion(texts: tuple[str, ...], piece: str) -> None:
    known = ControlTexts(texts)
    text = piece * (1024 * 1024 // len(piece))
    started_s = time.process_time()
    known.disarm(text)
    # 0.01 to 0.1 s; looking up one length after the other took 1 to 9 s.
    assert time.process_time() - started_s < 0.5
