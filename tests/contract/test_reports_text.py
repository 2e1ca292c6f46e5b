"""Public bug reports about text: characters cut over tokens, odd bytes, ends that are tokens, stop strings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from service.tokens import TokenCodec
from tests.support.http_stream import open_stream
from tests.support.report_replay import Answer, Replay, replays, says_ids
from tests.support.small_tokenizers import byte_level, sentencepiece
from tests.support.triton_fake import Final

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replay() -> AsyncIterator[Replay]:
    async with replays() as running:
        yield running


def pieces(answer: Answer) -> list[str]:
    """Return the pieces of a stream over either wire."""
    events = [event.delta.text for event in answer.events if event.HasField("delta")]
    return [text for text in events if text] if answer.events else answer.deltas


@pytest.mark.report("A01")
async def test_a_character_cut_over_two_tokens_arrives_whole(replay: Replay) -> None:
    answers = await replay.everywhere(r'"\xe8\x81","\xaa","\xe6\x98","\x8e",FIN(eos)')
    assert answers[0].text == "聪明"
    for text in pieces(answers[0]) + pieces(answers[2]):
        assert "\ufffd" not in text
        assert text.encode()


@pytest.mark.report("A03")
async def test_the_spaces_of_text_pieces_are_neither_lost_nor_doubled(replay: Replay) -> None:
    answers = await replay.everywhere('"The"," fast","est"," cat",","," up"," to"," 70",FIN(eos)')
    assert answers[0].text == "The fastest cat, up to 70"


@pytest.mark.report("A03")
@pytest.mark.parametrize("has_prefix", [False, True], ids=["gemma", "llama 2"])
async def test_the_spaces_of_token_ids_are_those_of_the_whole_decoded_text(tmp_path: Path, has_prefix: bool) -> None:
    tokenizer = sentencepiece(has_prefix=has_prefix)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode("The fastest cat, up to 70", add_special_tokens=False).ids
    assert len(ids) > 6
    codec = TokenCodec(tmp_path / "tokenizer.json")
    async with replays(options={"model": "tensorrt_llm"}, tokenizer=codec) as raw:
        answers = await raw.everywhere([*map(says_ids, ids), Final()])
    # The space that the tokenizer itself put before the text may stay.
    assert answers[0].text.removeprefix(" ") == tokenizer.decode(ids) == "The fastest cat, up to 70"
    assert answers[0].output_tokens == len(ids)


@pytest.mark.report("A05")
@pytest.mark.parametrize("token", [r"\xef\xbf\xbd", r"\xff"], ids=["well-formed", "invalid"])
async def test_replacement_characters_flow(replay: Replay, token: str) -> None:
    answers = await replay.everywhere(f'"a","{token}"x2000,"b",FIN(length)')
    assert answers[0].text == "a" + "\ufffd" * 2000 + "b"
    assert answers[0].finish_reasons == ["length"]
    assert answers[0].output_tokens == 2002


@pytest.mark.report("A05")
@pytest.mark.parametrize("token", [r"\xef\xbf\xbd", r"\xff", r"\xf0"])
async def test_an_odd_byte_is_held_for_at_most_four_tokens(replay: Replay, token: str) -> None:
    body = replay.will(f'"a","{token}"x4,HANG')
    async with open_stream(replay.gateway.port, body) as stream:
        text = ""
        async for piece in stream.texts():
            text += piece
            if len(text) > 1:
                break
    assert text.startswith("a\ufffd")


@pytest.mark.report("A06")
async def test_a_character_cut_off_by_the_limit_is_one_replacement_character(replay: Replay) -> None:
    answers = await replay.everywhere(r'"ok","\xf0\x9f",FIN(length)', max_tokens=2)
    assert answers[0].text == "ok\ufffd"
    assert answers[0].finish_reasons == ["length"]
    assert answers[0].output_tokens == 2


@pytest.mark.report("A08")
async def test_an_end_of_turn_written_as_text_is_none_of_the_answer(replay: Replay) -> None:
    answers = await replay.everywhere('"Hi","<|im_end|>",FIN(eos)')
    assert answers[0].text == "Hi"
    assert answers[0].finish_reasons == ["stop"]


@pytest.mark.report("A08")
async def test_the_token_that_ends_the_text_is_counted_and_has_no_text(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    spelled = tokenizer.encode("return '</s>'").ids
    async with replays(options={"model": "tensorrt_llm"}, tokenizer=TokenCodec(tmp_path / "tokenizer.json")) as raw:
        hello = tokenizer.encode("Hi").ids
        ended = await raw.everywhere([*map(says_ids, [*hello, end]), Final()])
        assert (ended[0].text, ended[0].finish_reasons) == ("Hi", ["stop"])
        assert ended[0].output_tokens == len(hello) + 1
        literal = await raw.everywhere([*map(says_ids, [*spelled, end]), Final()])
        assert literal[0].text == "return '</s>'"


@pytest.mark.report("A08")
async def test_text_that_only_looks_like_an_end_stays(replay: Replay) -> None:
    answers = await replay.everywhere('"use ","<","/","s",">"," here",FIN(eos)')
    assert answers[0].text == "use </s> here"


async def each_wire(replay: Replay, notation: str, **members: Any) -> AsyncIterator[Answer]:
    for ask in (replay.stream, replay.whole, replay.call):
        yield await ask(notation, **members)


@pytest.mark.report("B01")
async def test_no_part_of_a_stop_string_is_sent_and_the_engine_is_stopped_behind_it(replay: Replay) -> None:
    async for answer in each_wire(replay, '"one ","two"," th","ree"," four",HANG', stop=["two three"]):
        assert answer.text == "one "
        assert answer.finish_reasons == ["stop"]
        assert not [piece for piece in pieces(answer) if "t" in piece]
        await replay.within(replay.fake.cancelled)
        await replay.within(replay.fake.stopped)


@pytest.mark.report("B03")
@pytest.mark.parametrize("why", ["eos", "length"])
async def test_a_beginning_of_a_stop_string_is_sent_when_no_more_comes(replay: Replay, why: str) -> None:
    answers = await replay.everywhere(f'"alpha"," beta"," gam","ma",FIN({why})', stop=["gamma\ndelta"])
    assert answers[0].text == "alpha beta gamma"
    assert answers[0].finish_reasons == ["stop" if why == "eos" else "length"]
    (last,) = [c["choices"][0] for c in answers[0].chunks if c["choices"] and c["choices"][0]["finish_reason"]]
    assert not last["delta"].get("content"), "the rest of the text has a chunk of its own before it"


@pytest.mark.report("B05")
@pytest.mark.parametrize(
    ("stop", "notation", "text"),
    [
        (["\n", "Bob:"], '" Bob","!"," Hi",FIN(eos)', " Bob! Hi"),
        (["aab"], '"a","a","a","b","c",FIN(eos)', "a"),
    ],
)
async def test_a_false_alarm_repeats_nothing(replay: Replay, stop: list[str], notation: str, text: str) -> None:
    async for answer in each_wire(replay, notation, stop=stop):
        assert answer.text == text
        assert answer.finish_reasons == ["stop"]


@pytest.mark.report("B06")
@pytest.mark.parametrize("stop", [[], None])
async def test_no_stop_strings_stop_nothing(replay: Replay, stop: list[str] | None) -> None:
    answers = await replay.everywhere('"one"," two",FIN(eos)', stop=stop)
    assert answers[0].text == "one two"


@pytest.mark.report("B06")
@pytest.mark.parametrize("stop", ["", [""], ["", "END"]])
async def test_an_empty_stop_string_is_refused(replay: Replay, stop: str | list[str]) -> None:
    for ask in (replay.stream, replay.whole):
        answer = await ask('"one"," two",FIN(eos)', stop=stop)
        assert answer.status == 400
        assert (answer.error["type"], answer.error["param"]) == (
            "invalid_request_error",
            "stop" if stop == "" else "stop[0]",
        )
    answer = await replay.call('"one"," two",FIN(eos)', stop=stop)
    assert answer.failure is not None
    assert answer.failure.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.failure.fields == ["stop.sequences[0]"]
    assert replay.fake.requests == []
