"""Public bug reports about the chunks of a stream: roles, reasons, indexes, usage, the end, the size of an event."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import cycle
from typing import Any, cast

import openai
import pytest
import pytest_asyncio

from tests.support.gateway_harness import read_events
from tests.support.report_replay import Answer, Replay, replays, script, strict_json
from tests.support.service import eventually
from tests.support.tracing import install_exporter
from tests.support.triton_fake import Final, Says, Step

pytestmark = pytest.mark.asyncio(loop_scope="module")

EMPTY = 'FIN+""'
# Every way in which a good answer ends.
ENDS = ['"Hi",FIN(eos)', '"Hi",FIN+""', '"Hi",FIN+"!"', EMPTY, '"Hi","!",FIN(length)']
Choice = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replay() -> AsyncIterator[Replay]:
    async with replays() as running:
        yield running


def choices_of(answer: Answer) -> Iterator[Choice]:
    """Yield the choices of all chunks in order."""
    for chunk in answer.chunks:
        yield from chunk["choices"]


class InTurn:
    """A script that gives each generation the next of several."""

    def __init__(self, *notations: str) -> None:
        self._scripts = cycle([script(notation).steps for notation in notations])

    def __iter__(self) -> Iterator[Step]:
        return iter(next(self._scripts))


@pytest.mark.report("C01")
@pytest.mark.parametrize("notation", ENDS)
async def test_the_role_comes_first_and_once(replay: Replay, notation: str) -> None:
    first, *rest = choices_of(await replay.stream(notation))
    assert first["delta"]["role"] == "assistant"
    assert all("role" not in choice["delta"] for choice in rest)


@pytest.mark.report("C01")
@pytest.mark.parametrize(("notation", "text"), [('"Hi",FIN(eos)', "Hi"), (EMPTY, "")])
async def test_the_sdk_builds_a_message_of_the_assistant(replay: Replay, notation: str, text: str) -> None:
    replay.will(notation)
    async with (
        openai.AsyncOpenAI(base_url=f"{replay.gateway.url}/v1", api_key="k", max_retries=0) as client,
        client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "hi"}]) as stream,
    ):
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert (message.role, message.content or "", final.choices[0].finish_reason) == ("assistant", text, "stop")


@pytest.mark.report("C03")
async def test_the_usage_has_a_chunk_of_its_own_without_choices(replay: Replay) -> None:
    answer = await replay.stream('"a","b",FIN(eos)')
    *others, last = answer.chunks
    assert last["choices"] == []
    usage = last["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 2, 9)
    assert all(type(usage[name]) is int for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    assert all("usage" in chunk and chunk["usage"] is None and chunk["choices"] for chunk in others)


@pytest.mark.report("C06")
@pytest.mark.parametrize("notation", ENDS)
async def test_every_end_has_one_reason_behind_the_text_and_before_the_usage(replay: Replay, notation: str) -> None:
    answer = await replay.stream(notation)
    assert len(answer.finish_reasons) == 1
    *_, reason, usage = answer.chunks
    assert reason["choices"][0]["finish_reason"] == answer.finish_reasons[0]
    assert usage["usage"]
    assert answer.response is not None
    assert read_events(answer.response.body)[-1] == "[DONE]"


@pytest.mark.report("C07", "C12")
@pytest.mark.parametrize("notation", ENDS)
async def test_required_members_are_always_there_and_others_only_with_a_value(replay: Replay, notation: str) -> None:
    answer = await replay.stream(notation)
    assert answer.response is not None
    for event in read_events(answer.response.body)[:-1]:
        chunk = strict_json(event)
        assert chunk["id"].startswith("chatcmpl-")
        assert chunk["object"] == "chat.completion.chunk"
        assert type(chunk["created"]) is int
        assert chunk["model"] == "m"
        for choice in chunk["choices"]:
            assert {"index", "delta", "finish_reason"} <= choice.keys()
            assert type(choice["index"]) is int
            # The API itself says that nothing was refused; what would be an array or an object is never null.
            assert {name for name, value in choice["delta"].items() if value is None} <= {"refusal"}
            assert not {"tool_calls", "function_call"} & choice["delta"].keys()


@pytest.mark.report("C08")
async def test_text_that_comes_with_the_end_has_a_chunk_of_its_own(replay: Replay) -> None:
    (answer, _, _) = await replay.everywhere('"a",FIN+"b"', max_tokens=2)
    assert answer.text == "ab"
    *texts, last = choices_of(answer)
    assert last["finish_reason"] == "length"
    assert not last["delta"].get("content")
    assert [choice["finish_reason"] for choice in texts] == [None] * len(texts)


@pytest.mark.report("C09")
@pytest.mark.parametrize("usage", [False, True])
async def test_done_ends_the_body_and_the_connection_serves_again(replay: Replay, usage: bool) -> None:
    endings = [*ENDS, '"a STOP b",HANG']
    async with replay.gateway.connect() as client:
        for notation in endings:
            body = replay.will(notation, {"stop": ["STOP"]})
            if usage:
                body["stream_options"] = {"include_usage": True}
            began_s = time.monotonic()
            response = await client.post({**body, "stream": True})
            assert response.is_whole
            assert response.body.endswith(b"\n\ndata: [DONE]\n\n")
            assert response.body.count(b"[DONE]") == 1
            assert time.monotonic() - began_s < 2


@pytest.mark.report("C11")
async def test_the_index_is_the_choice_and_not_a_count(replay: Replay) -> None:
    answer = await replay.stream('"a","b","c",FIN(eos)')
    assert {choice["index"] for choice in choices_of(answer)} == {0}


@pytest.mark.report("C11")
async def test_choices_of_different_lengths_end_under_their_own_index(replay: Replay) -> None:
    in_turn = cast("Sequence[Step]", InTurn('"one",FIN(eos)', '"two"," and"," three",FIN(eos)'))
    answer = await replay.stream(in_turn, n=2)
    texts, ends, roles = {0: "", 1: ""}, [], []
    for choice in choices_of(answer):
        texts[choice["index"]] += choice["delta"].get("content") or ""
        ends += [choice["index"]] if choice["finish_reason"] else []
        roles += [choice["index"]] if "role" in choice["delta"] else []
    assert sorted(texts.values()) == ["one", "two and three"]
    assert sorted(ends) == sorted(roles) == [0, 1]
    assert answer.output_tokens == 4


@pytest.mark.report("C14")
async def test_one_giant_token_is_cut_into_events_of_a_bounded_size(replay: Replay) -> None:
    answers = await replay.everywhere('"x"*300000,FIN(eos)')
    assert answers[0].text == "x" * 300_000
    assert answers[0].response is not None
    for piece in answers[0].response.pieces:
        assert piece.startswith((b"id: ", b"data: "))
        assert piece.endswith(b"\n\n")
        assert max(map(len, piece.split(b"\n"))) < 65_536


@pytest.mark.report("C15")
@pytest.mark.parametrize(
    ("played", "tokens", "text"),
    [
        (r'"\xf0\x9f","\x98\xb8","!",FIN(eos)', 3, "\U0001f638!"),
        ([Says(b"three at once", tokens=3), Says(b" and one"), Final()], 4, "three at once and one"),
        ([Says(b"two", tokens=2), Says(b"", tokens=1, is_final=True)], 3, "two"),
    ],
    ids=["held back", "several at once", "without text"],
)
async def test_tokens_are_counted_by_the_engine(replay: Replay, played: Any, tokens: int, text: str) -> None:
    exporter = install_exporter()
    answers = await replay.everywhere(played)
    assert (answers[0].text, answers[0].output_tokens) == (text, tokens)

    def counts() -> list[Any]:
        spans = exporter.get_finished_spans()
        return [(span.attributes or {}).get("gen_ai.usage.output_tokens") for span in spans if span.name == "chat m"]

    await eventually(lambda: len(counts()) == 3)
    assert counts() == [tokens] * 3
