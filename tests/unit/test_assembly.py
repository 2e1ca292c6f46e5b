"""Text assembly: valid UTF-8, whatever the engine's grouping, and token details that keep up."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.assembly import Assembled, TextAssembler
from service.core.events import TokenLogprob


def run(assembler: TextAssembler, pieces: list[bytes]) -> list[Assembled]:
    out = []
    for piece in pieces:
        out.append(assembler.feed(piece))
        if out[-1].is_stopped:
            return out
    return [*out, assembler.flush()]


def joined(out: list[Assembled]) -> str:
    return "".join(one.text for one in out)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@pytest.mark.report("A01", "A05")
@given(st.binary(max_size=40), st.lists(st.integers(0, 4), max_size=40))
def test_bytes_cut_anywhere_give_the_same_text(data: bytes, sizes: list[int]) -> None:
    assert joined(run(TextAssembler(), cut(data, sizes))) == data.decode("utf-8", "replace")


@given(st.text(max_size=20), st.lists(st.integers(0, 3), max_size=60))
def test_every_delta_is_whole_characters(text: str, sizes: list[int]) -> None:
    out = run(TextAssembler(), cut(text.encode(), sizes))
    assert joined(out) == text
    assert "\ufffd" in text or not any("\ufffd" in one.text for one in out)


@pytest.mark.report("A01")
def test_a_character_split_over_tokens_comes_whole() -> None:
    out = run(TextAssembler(), [b"\xe8\x81", b"\xaa", b"\xe6\x98", b"\x8e"])
    assert [one.text for one in out] == ["", "聪", "", "明", ""]


@pytest.mark.report("A06")
def test_a_character_cut_by_the_end_becomes_one_replacement() -> None:
    assert joined(run(TextAssembler(), [b"ok", b"\xf0\x9f"])) == "ok\ufffd"


@pytest.mark.report("A05")
def test_real_replacement_characters_and_garbage_pass_at_once() -> None:
    assembler = TextAssembler()
    assert assembler.feed("a\ufffd".encode()).text == "a\ufffd"
    held = [assembler.feed(b"\xff").text for _ in range(4)]
    assert "".join(held) == "\ufffd" * 4


@pytest.mark.report("A05")
def test_cost_is_linear_in_a_stream_of_garbage() -> None:
    def run_s(count: int) -> float:
        begin = time.process_time()
        joined(run(TextAssembler(("END",)), [b"\xff"] * count))
        return time.process_time() - begin

    run_s(2000)
    assert min(run_s(40_000) for _ in range(3)) < 8 * min(run_s(10_000) for _ in range(3))


def logprob(token_id: int, raw: bytes) -> TokenLogprob:
    return TokenLogprob(token_id, -0.5, raw)


def test_details_wait_for_the_text_of_their_token() -> None:
    assembler = TextAssembler(("STOP",))
    first = assembler.feed(b"\xe8\x81", (1,), (logprob(1, b"\xe8\x81"),))
    second = assembler.feed(b"\xaa S", (2,), (logprob(2, b"\xaa S"),))
    third = assembler.feed(b"T", (3,), (logprob(3, b"T"),))
    last = assembler.feed(b"x", (4,), (logprob(4, b"x"),))
    assert (first.text, first.token_ids) == ("", ())
    assert (second.text, second.token_ids) == ("聪 ", (1, 2))
    assert (third.text, third.token_ids) == ("", ())
    assert (last.text, last.token_ids) == ("STx", (3, 4))
    assert [one.token_id for one in last.logprobs] == [3, 4]


def test_tokens_wholly_inside_a_match_are_dropped_with_it() -> None:
    assembler = TextAssembler(("END",))
    assembler.feed(b"a E", (1,), ())
    out = assembler.feed(b"ND", (2,), ())
    assert (out.text, out.token_ids, out.stop_sequence) == ("", (), "END")


def test_tokens_without_text_are_not_lost() -> None:
    assembler = TextAssembler()
    assert assembler.feed(b"", (7,), ()).token_ids == ()
    assert assembler.flush().token_ids == (7,)


@pytest.mark.report("A08")
@pytest.mark.parametrize("has_logprobs", [True, False])
def test_a_stop_token_ends_the_text_before_it(has_logprobs: bool) -> None:
    assembler = TextAssembler((), (9,))
    assert assembler.feed(b"a", (1,), (logprob(1, b"a"),) if has_logprobs else ()).text == "a"
    out = assembler.feed(b"</s>", (9,), (logprob(9, b"</s>"),) if has_logprobs else ())
    assert (out.text, out.stop_token_id, out.is_stopped) == ("", 9, True)


def test_a_stop_token_inside_a_group_keeps_what_came_before() -> None:
    assembler = TextAssembler((), (9,))
    out = assembler.feed(b"ab</s>", (1, 2, 9), tuple(logprob(i, r) for i, r in ((1, b"a"), (2, b"b"), (9, b"</s>"))))
    assert (out.text, out.token_ids, out.stop_token_id) == ("ab", (1, 2), 9)
