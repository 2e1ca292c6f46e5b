"""The end of a JSON value and the text of a JSON string, found in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.parsing.json_values import StringReader, ValueScanner

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def end_of(text: str, *, size: int) -> tuple[int, bool]:
    """Return where the value that `text` begins with ends, in pieces of `size`, and whether it is broken."""
    scanner = ValueScanner()
    for at in range(0, len(text), size):
        end = scanner.feed(text[at : at + size], 0)
        if end >= 0:
            return at + end, scanner.is_broken
    return -1, scanner.is_broken


@given(value=values, size=st.integers(1, 5), rest=st.sampled_from([",", "}", "]", " x", "\n"]))
def test_a_value_ends_where_its_text_ends(value: object, size: int, rest: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert end_of(text + rest, size=size) == (len(text), False)


@pytest.mark.parametrize(
    ("text", "end"), [('{"a": ]', 6), ("[}", 1), ('{"a": <b>', 6), ('{"a": 1\n```', 8), ('{"a": "<```"}', -2)]
)
def test_a_bracket_that_does_not_match_and_a_tag_break_a_value(text: str, end: int) -> None:
    for size in (1, 3, 50):
        assert end_of(text, size=size) == ((len(text), False) if end == -2 else (end, True))


@given(text=st.text(max_size=30), size=st.integers(1, 7), ascii_only=st.booleans())
def test_a_string_is_read_as_json_means_it(text: str, size: int, ascii_only: bool) -> None:
    raw = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    reader = StringReader()
    pieces = [reader.feed(raw[at : at + size]) for at in range(0, len(raw), size)]
    assert "".join([*pieces, reader.flush()]) == text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\\q", "\\q"),
        ("\\u12x", "\\u12x"),
        ("\\ud83d", "\\ud83d"),
        ("\\ud83d x", "\ufffd x"),
        ("\\ude00", "\ufffd"),
        ("\\ud83d\\ud83d\\ude00", "\ufffd😀"),
        ("\\ud83d\\n", "\ufffd\n"),
        ("a\\", "a\\"),
    ],
)
def test_an_odd_escape_has_one_meaning_however_it_is_cut(raw: str, text: str) -> None:
    for size in (1, 2, 3, 50):
        reader = StringReader()
        pieces = [reader.feed(raw[at : at + size]) for at in range(0, len(raw), size)]
        assert "".join([*pieces, reader.flush()]) == text
