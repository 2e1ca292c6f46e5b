"""The decoder that other tests trust, against examples by hand from the rules of the HTML standard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.whatwg_sse import Event, decode


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: one\n\n", ["one"]),
        (b"data:one\ndata:  two\n\n", ["one\n two"]),
        (b"data: a\r\ndata: b\rdata: c\n\r\n", ["a\nb\nc"]),
        (b"\xef\xbb\xbfdata: bom\n\n", ["bom"]),
        (b": note\n\ndata: after a comment\n\n", ["after a comment"]),
        (b"data\n\n", [""]),
        (b"data: cut", []),
        (b"data: cut\n", []),
        (b"event: only\n\n", []),
    ],
)
def test_data_is_what_the_standard_says(stream: bytes, expected: list[str]) -> None:
    assert [event.data for event in decode(stream)[0]] == expected


def test_an_id_stays_and_a_type_does_not() -> None:
    events, decoder = decode(b"id: 7\nevent: x\ndata: a\n\ndata: b\n\nid\ndata: c\n\n")
    assert events == [Event("x", "a", "7"), Event("message", "b", "7"), Event("message", "c", "")]
    assert decoder.oddities == []


@pytest.mark.parametrize("stream", [b"data: x", b"dato: x\n\n", b"retry: soon\ndata: x\n\n", b"id: 1\n\n"])
def test_what_a_reader_would_skip_in_silence_is_told(stream: bytes) -> None:
    assert decode(stream)[1].oddities


@given(st.data())
def test_where_the_bytes_are_cut_makes_no_difference(data: st.DataObject) -> None:
    stream = "id: é\ndata: a\r\ndata: 猫\r\revent: y\ndata: \U0001f600\n\n: c\n\n".encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1))))
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decode(*pieces)[0] == decode(stream)[0]
    assert len(decode(stream)[0]) == 2
