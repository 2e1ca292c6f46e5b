"""Text that grows from response to response, cut anywhere, and never lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.backends.triton.contracts.cumulative import CumulativeText

UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def prefixes(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return what an engine sends that decodes all its bytes so far, for every cut and at the end."""
    places = [*sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[:place].decode(errors="replace").encode() for place in places]


@given(st.text(), st.lists(st.integers(0, 60), max_size=12))
def test_any_text_cut_anywhere_comes_back_whole(text: str, cuts: list[int]) -> None:
    growing = CumulativeText()
    pieces = []
    for so_far in prefixes(text.encode(), cuts):
        assert not growing.contradicts(so_far)
        pieces.append(growing.feed(so_far))
    assert b"".join([*pieces, growing.rest()]).decode() == text


@given(st.binary(), st.lists(st.integers(0, 60), max_size=12))
def test_bytes_that_are_no_text_come_back_as_the_engine_decodes_them(data: bytes, cuts: list[int]) -> None:
    growing = CumulativeText()
    pieces = [growing.feed(so_far) for so_far in prefixes(data, cuts)]
    assert b"".join([*pieces, growing.rest()]).decode() == data.decode(errors="replace")


@given(st.text(alphabet="aé✓🙂" + UNKNOWN), st.lists(st.integers(0, 60), max_size=8))
def test_only_what_may_still_change_is_held_back(text: str, cuts: list[int]) -> None:
    growing = CumulativeText()
    given_out = b""
    for so_far in prefixes(text.encode(), cuts):
        given_out += growing.feed(so_far)
        assert given_out.decode() == so_far.decode().rstrip(UNKNOWN)


def test_a_character_that_was_never_completed_is_given_at_the_end() -> None:
    growing = CumulativeText()
    assert growing.feed(f"a{UNKNOWN}".encode()) == b"a"
    assert growing.rest() == UNKNOWN.encode()
    assert growing.rest() == b""


def test_a_held_character_is_given_once_it_is_complete() -> None:
    growing = CumulativeText()
    growing.feed(f"a{UNKNOWN}".encode())
    assert growing.feed("a✓".encode()) == "✓".encode()
    assert growing.rest() == b""


def test_text_that_was_taken_back_gives_nothing_and_no_bytes_of_a_character() -> None:
    growing = CumulativeText()
    growing.feed(f"abc{UNKNOWN}".encode())
    assert growing.feed(f"ab{UNKNOWN}".encode()) == b""
    assert growing.rest() == b""
    assert growing.feed(b"abcd") == b"d"


@pytest.mark.parametrize(
    ("seen", "text", "is_new_text"),
    [
        ("Hello", " world", True),
        ("Hello", "Hello world", False),
        ("Hello", "Hello", False),
        ("Hello there", "Hello The end", False),
        ("", "anything", False),
        # Taken back by the engine, to the beginning or altogether.
        ("Hello", "He", False),
        ("Hello", "", False),
    ],
)
def test_only_a_text_that_does_not_begin_like_the_last_one_is_new_by_itself(
    seen: str, text: str, *, is_new_text: bool
) -> None:
    growing = CumulativeText()
    growing.feed(seen.encode())
    assert growing.contradicts(text.encode()) is is_new_text
