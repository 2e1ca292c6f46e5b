"""The reader of a storm's answers finds every planted fault, and none where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.v1 import generation_pb2 as gen
from tests.support.chaos_events import ChunkCheck, DocumentCheck, EventCheck
from tests.support.chaos_plan import Plan, Way, plan_of
from tests.support.chaos_script import Script

Events = list[gen.GenerateResponse]

PIECES = tuple(f"<{at}>".encode() for at in range(5))


def plan(**members: Any) -> Plan:
    members.setdefault("script", Script(pieces=PIECES, output_tokens=8, limit=100))
    members.setdefault("way", Way.RAW)
    return Plan(seed=1, number=2, **members)


def answer(asked: Plan, *, joined: int = 1, tokens: int | None = None, reason: int | None = None) -> Events:
    """Return a right answer, `joined` tokens a delta."""
    script = asked.script
    own = script.own_end or ("STOP", script.reach)
    count = own[1] if tokens is None else tokens
    shown = count - 1 if count == script.stop_at else count
    finish = gen.FinishReason.Value(f"FINISH_REASON_{own[0]}") if reason is None else reason
    events = [gen.GenerateResponse(started=gen.GenerationStarted(generation_id="gen_1", model=asked.model))]
    for index in range(asked.choices):
        for at in range(0, shown, joined):
            delta = gen.ChoiceDelta(index=index)
            for token in range(at, min(at + joined, shown)):
                piece = script.pieces[token % len(script.pieces)]
                delta.text += piece.decode(errors="replace")
                if asked.wants_details:
                    delta.token_ids.append(token % len(script.pieces))
                    delta.logprobs.add(token_id=token % len(script.pieces), logprob=-0.5, raw_bytes=piece)
            events.append(gen.GenerateResponse(delta=delta))
        stop = script.stop if count == script.stop_at else None
        end = gen.ChoiceFinished(index=index, reason=finish, output_token_count=count, stop_sequence=stop)
        events.append(gen.GenerateResponse(choice_finished=end))
    completed = gen.GenerationCompleted()
    completed.usage.output_token_count = count * asked.choices
    completed.usage.prompt_token_count = script.prompt_tokens
    events.append(gen.GenerateResponse(completed=completed))
    return numbered(events)


def numbered(events: Events) -> Events:
    for number, event in enumerate(events, 1):
        event.sequence = number
    return events


def read(asked: Plan, events: Events) -> EventCheck:
    check = EventCheck(asked)
    for event in events:
        check.feed(event)
    return check


@pytest.mark.parametrize("joined", [1, 3, 100])
@pytest.mark.parametrize(
    "asked",
    [
        plan(),
        plan(choices=3),
        plan(wants_details=True, choices=2),
        plan(script=Script(pieces=PIECES, output_tokens=8, limit=3)),
        plan(script=Script(pieces=PIECES, output_tokens=8, limit=100, stop="<3>")),
    ],
    ids=["plain", "choices", "details", "limit", "stop"],
)
def test_a_right_answer_has_no_problem_however_its_deltas_are_joined(asked: Plan, joined: int) -> None:
    check = read(asked, answer(asked, joined=joined))
    assert check.problems == []
    assert check.is_complete


def test_an_answer_that_is_cut_in_a_character_ends_with_one_replacement() -> None:
    script = Script(pieces=(b"a", b"\xc3", b"\xa9", b"b"), output_tokens=4, limit=100)
    asked = plan(script=script)
    events = answer(asked, joined=100, tokens=2, reason=gen.FINISH_REASON_CANCELLED)
    assert events[1].delta.text == "a\ufffd"
    assert read(asked, events).problems == []
    events[1].delta.text = "a"
    assert read(asked, events).problems


def _swap(events: Events) -> None:
    events[2], events[3] = events[3], events[2]


def _drop(events: Events) -> None:
    del events[2]


def _drop_and_number(events: Events) -> None:
    del events[2]
    numbered(events)


def _repeat(events: Events) -> None:
    events.insert(2, events[2])


def _repeat_and_number(events: Events) -> None:
    copy = gen.GenerateResponse()
    copy.CopyFrom(events[2])
    events.insert(2, copy)
    numbered(events)


def _foreign_text(events: Events) -> None:
    events[2].delta.text = "<9>"


def _lost_id(events: Events) -> None:
    del events[2].delta.token_ids[0]


def _lost_logprob(events: Events) -> None:
    del events[2].delta.logprobs[0]


def _foreign_logprob(events: Events) -> None:
    events[2].delta.logprobs[0].raw_bytes = b"<9>"


def _wrong_value(events: Events) -> None:
    events[2].delta.logprobs[0].logprob = -0.4


def _no_end_of_choice(events: Events) -> None:
    del events[-2]
    numbered(events)


def _two_ends_of_choice(events: Events) -> None:
    copy = gen.GenerateResponse()
    copy.CopyFrom(events[-2])
    events.insert(-1, copy)
    numbered(events)


def _wrong_reason(events: Events) -> None:
    events[-2].choice_finished.reason = gen.FINISH_REASON_LENGTH


def _wrong_count(events: Events) -> None:
    events[-2].choice_finished.output_token_count = 7


def _wrong_usage(events: Events) -> None:
    events[-1].completed.usage.output_token_count += 1


def _no_usage(events: Events) -> None:
    events[-1].completed.usage.ClearField("output_token_count")


def _wrong_prompt(events: Events) -> None:
    events[-1].completed.usage.prompt_token_count += 1


def _no_start(events: Events) -> None:
    del events[0]
    numbered(events)


def _two_starts(events: Events) -> None:
    copy = gen.GenerateResponse()
    copy.CopyFrom(events[0])
    events.insert(1, copy)
    numbered(events)


def _alias(events: Events) -> None:
    events[0].started.model = "default"


def _queued_unasked(events: Events) -> None:
    events.insert(0, gen.GenerateResponse(queued=gen.GenerationQueued(generation_id="gen_1")))
    numbered(events)


def _behind_the_end(events: Events) -> None:
    events.append(gen.GenerateResponse(delta=gen.ChoiceDelta(text="<3>")))
    numbered(events)


def _other_choice(events: Events) -> None:
    events[2].delta.index = 5


def _unknown(events: Events) -> None:
    events.insert(2, gen.GenerateResponse())
    numbered(events)


@pytest.mark.parametrize(
    "plant",
    [
        *(_swap, _drop, _drop_and_number, _repeat, _repeat_and_number, _foreign_text, _lost_id, _lost_logprob),
        *(_foreign_logprob, _wrong_value, _no_end_of_choice, _two_ends_of_choice, _wrong_reason, _wrong_count),
        *(_wrong_usage, _no_usage, _wrong_prompt, _no_start, _two_starts, _alias, _queued_unasked, _behind_the_end),
        *(_other_choice, _unknown),
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[Events], None]) -> None:
    asked = plan(wants_details=True)
    events = answer(asked)
    plant(events)
    assert read(asked, events).problems


def test_a_failing_engine_must_not_seem_to_end_well() -> None:
    asked = plan(script=Script(pieces=PIECES, output_tokens=8, limit=100, fault="cut", fault_after=8))
    assert read(asked, answer(asked)).problems


def test_queued_events_name_the_generation_that_starts() -> None:
    asked = plan(queue_events=True)
    queued = gen.GenerateResponse(queued=gen.GenerationQueued(generation_id="gen_1", ahead_count=2))
    assert read(asked, numbered([queued, *answer(asked)])).problems == []
    queued.queued.generation_id = "gen_2"
    assert read(asked, numbered([queued, *answer(asked)])).problems


Chunks = list[tuple[str, dict[str, Any] | str]]


def chunks(asked: Plan) -> Chunks:
    """Return a right stream of chat chunks as (id, document), a token a chunk."""
    script = asked.script
    assert script.own_end is not None

    def chunk(**choice: Any) -> dict[str, Any]:
        return {"id": "chatcmpl-gen_1", "choices": [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]}

    made: Chunks = [("2.1", chunk(delta={"role": "assistant", "content": ""}))]
    for at in range(script.own_end[1]):
        made.append((str(at + 2), chunk(delta={"content": script.pieces[at % len(script.pieces)].decode()})))
    last = script.own_end[1] + 2
    made.append((str(last), chunk(delta={}, finish_reason=script.own_end[0].lower())))
    usage = {"prompt_tokens": 9, "completion_tokens": script.own_end[1]}
    made += [(str(last + 1), {"id": "chatcmpl-gen_1", "choices": [], "usage": usage}), (str(last + 1), "[DONE]")]
    return made


def read_chunks(asked: Plan, made: Chunks) -> ChunkCheck:
    check = ChunkCheck(asked)
    for event_id, document in made:
        check.feed(document if isinstance(document, str) else json.dumps(document), event_id)
    return check


STREAM = plan(way=Way.STREAM, is_chat=True)


def test_a_right_stream_has_no_problem() -> None:
    check = read_chunks(STREAM, chunks(STREAM))
    assert check.problems == []
    assert check.is_complete


@pytest.mark.parametrize("at", range(12))
def test_a_chunk_that_is_lost_is_found(at: int) -> None:
    made = chunks(STREAM)
    lost = made.pop(at)
    check = read_chunks(STREAM, made)
    # The opening chunk says nothing, and without [DONE] it is not complete.
    assert check.problems or lost[0] == "2.1" or not check.is_complete


@pytest.mark.parametrize("at", range(1, 12))
def test_a_chunk_that_comes_twice_is_found(at: int) -> None:
    made = chunks(STREAM)
    made.insert(at, made[at])
    assert read_chunks(STREAM, made).problems


def test_a_stream_that_a_time_limit_ends_has_the_text_of_the_tokens_in_its_usage() -> None:
    asked = plan(way=Way.STREAM, is_chat=True, time_limit_s=1.0)
    made = chunks(asked)[:4]
    end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    end["native_finish_reason"] = "time_limit"
    made.append(("5", {"id": "chatcmpl-gen_1", "choices": [end]}))
    usage: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 3}
    made += [("6", {"id": "chatcmpl-gen_1", "choices": [], "usage": usage}), ("6", "[DONE]")]
    check = read_chunks(asked, made)
    assert (check.problems, check.finishes) == ([], ["TIME_LIMIT"])
    usage["completion_tokens"] = 4
    assert read_chunks(asked, made).problems


@pytest.mark.parametrize("has_text", [False, True])
def test_an_answer_without_usage_is_right_only_where_a_time_limit_ended_it_before_any_text(has_text: bool) -> None:
    asked = plan(way=Way.STREAM, is_chat=True, time_limit_s=1.0)
    made = chunks(asked)[: 2 if has_text else 1]
    end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "native_finish_reason": "time_limit"}
    made += [("3" if has_text else "2", {"id": "chatcmpl-gen_1", "choices": [end]})]
    made += [("4", {"id": "chatcmpl-gen_1", "choices": [], "usage": None}), ("4", "[DONE]")]
    assert bool(read_chunks(asked, made).problems) is has_text


def test_a_stream_of_another_generation_is_found() -> None:
    made = chunks(STREAM)
    made[4][1]["id"] = "chatcmpl-gen_2"  # type: ignore[index]
    assert read_chunks(STREAM, made).problems


def test_an_error_event_is_kept_and_ends_the_stream() -> None:
    made = [*chunks(STREAM)[:4], ("4", {"error": {"code": "backend_error", "message": "x"}})]
    check = read_chunks(STREAM, made)
    assert check.problems == []
    assert check.error == {"code": "backend_error", "message": "x"}
    assert read_chunks(STREAM, [*made, ("", "[DONE]")]).problems


def document(**members: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "<0><1><2><3><4><0><1><2>", "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": STREAM.script.prompt_tokens, "completion_tokens": 8}
    return {"id": "cmpl-gen_1", "choices": [choice | members], "usage": usage}


def test_a_right_document_has_no_problem() -> None:
    check = DocumentCheck(plan(way=Way.WHOLE))
    check.feed(document())
    assert check.problems == []


@pytest.mark.parametrize(
    "members", [{"text": "<0><1>"}, {"finish_reason": "length"}, {"index": 1}, {"text": "<0><1><2><3><4><0><1><3>"}]
)
def test_a_wrong_document_is_found(members: dict[str, Any]) -> None:
    check = DocumentCheck(plan(way=Way.WHOLE))
    check.feed(document(**members))
    assert check.problems


def test_a_plan_is_the_same_for_the_same_seed_and_number_and_another_for_others() -> None:
    assert plan_of(7, 11) == plan_of(7, 11)
    assert len({str(plan_of(7, number)) for number in range(200)}) == 200
    assert str(plan_of(8, 11)) != str(plan_of(7, 11))
