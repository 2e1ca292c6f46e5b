"""Echo and best-of as event filters."""

from __future__ import annotations

import pytest

from gateway.openai.completion_events import BestOf, Echo, EventFilter
from gateway.openai.content import ContractError
from headrace.v1 import generation_pb2 as gen
from tests.support.fake_service import completed, delta, finished, started

Event = gen.GenerateResponse


def run(one: EventFilter, *events: Event) -> list[Event]:
    return [shown for event in events for shown in one.feed(event)]


def token(logprob: float | None, text: str = "x") -> gen.TokenLogprob:
    return gen.TokenLogprob(text=text, logprob=logprob)


def said(events: list[Event]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in events:
        if event.HasField("delta"):
            texts[event.delta.index] = texts.get(event.delta.index, "") + event.delta.text
    return texts


def test_the_prompt_comes_before_each_choice() -> None:
    events = run(Echo("P:", 2), started(), delta("a", 1), delta("b"), finished(), finished(index=1), completed())
    assert [event.WhichOneof("event") for event in events[:3]] == ["started", "delta", "delta"]
    assert said(events) == {0: "P:b", 1: "P:a"}


def test_the_best_choices_come_best_first_by_their_mean() -> None:
    events = run(
        BestOf(2, shows_logprobs=False),
        started(),
        delta("long", 0, logprobs=[token(-1.0), token(-1.0), token(-1.0)]),
        delta("worst", 1, logprobs=[token(-2.0)]),
        delta("best", 2, logprobs=[token(-0.5)]),
        finished(index=1),
        finished("LENGTH", index=2),
        finished(index=0),
        completed(),
    )
    assert said(events) == {0: "best", 1: "long"}
    ends = [event.choice_finished for event in events if event.HasField("choice_finished")]
    assert [(end.index, end.reason) for end in ends] == [(0, gen.FINISH_REASON_LENGTH), (1, gen.FINISH_REASON_STOP)]
    assert events[0].HasField("started")
    assert events[-1].HasField("completed")
    assert not any(event.delta.logprobs for event in events)


def test_log_probs_are_shown_if_asked_for() -> None:
    events = run(
        BestOf(1, shows_logprobs=True),
        started(),
        delta("a", 0, logprobs=[token(-1.0)]),
        delta("", 1, logprobs=[token(-0.1)]),
        finished(index=0),
        finished(index=1),
        completed(),
    )
    (shown,) = [event.delta for event in events if event.HasField("delta")]
    assert (shown.index, len(shown.logprobs)) == (0, 1)
    assert shown.logprobs[0].logprob == pytest.approx(-0.1)


def test_a_choice_without_a_token_is_the_worst_and_of_equals_the_first_is_better() -> None:
    events = run(
        BestOf(2, shows_logprobs=False),
        started(),
        delta("b", 1, logprobs=[token(-9999.0)]),
        delta("c", 2, logprobs=[token(-9999.0), token(None)]),
        *(finished(index=index) for index in range(3)),
        completed(),
    )
    assert said(events) == {0: "b", 1: "c"}


def test_fewer_choices_than_are_to_be_shown_break_the_contract() -> None:
    with pytest.raises(ContractError):
        run(BestOf(2, shows_logprobs=False), started(), delta("a"), finished(), completed())
    with pytest.raises(ContractError):
        run(BestOf(1, shows_logprobs=False), started(), finished(), delta("a", 1), completed())
    with pytest.raises(ContractError):
        run(BestOf(1, shows_logprobs=False), started(), finished(), delta("a"))
