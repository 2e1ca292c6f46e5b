"""Stop strings: nothing of a match is sent, nothing else is lost, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.stops import StopMatcher

TEXT = st.text(alphabet="ab", max_size=14)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3, unique=True).map(tuple)
CUTS = st.lists(st.integers(1, 3), max_size=20)


def run(stops: tuple[str, ...], pieces: list[str], *, include: bool = False) -> tuple[str, str | None, list[str]]:
    matcher = StopMatcher(stops, include_in_output=include)
    sent: list[str] = []
    for piece in pieces:
        scan = matcher.feed(piece)
        sent.append(scan.text)
        if scan.matched is not None:
            return "".join(sent), scan.matched, sent
    scan = matcher.flush()
    sent.append(scan.text)
    return "".join(sent), scan.matched, sent


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    return [*pieces, text[at:]]


@pytest.mark.report("B05")
@given(TEXT, STOPS, CUTS)
def test_the_text_ends_where_the_whole_text_would(text: str, stops: tuple[str, ...], sizes: list[int]) -> None:
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    out, matched, _ = run(stops, cut(text, sizes))
    assert out == (text[: min(found)] if found else text)
    assert (matched is not None) == bool(found)


@given(TEXT, STOPS, CUTS)
def test_included_matches_end_the_text(text: str, stops: tuple[str, ...], sizes: list[int]) -> None:
    out, matched, _ = run(stops, cut(text, sizes), include=True)
    plain, _, _ = run(stops, cut(text, sizes))
    assert out == plain + (matched or "")


@given(st.text(max_size=30), CUTS)
def test_without_stop_strings_nothing_is_held(text: str, sizes: list[int]) -> None:
    _, matched, sent = run((), cut(text, sizes))
    assert matched is None
    assert sent[:-1] == cut(text, sizes)


@pytest.mark.report("B01", "B03", "B05")
@pytest.mark.parametrize(
    ("stops", "pieces", "want", "matched"),
    [
        (("two three",), ["one ", "two", " th", "ree", " four"], "one ", "two three"),
        (("gamma\ndelta",), ["alpha", " beta", " gam", "ma"], "alpha beta gamma", None),
        (("\n", "Bob:"), [" Bob", "!", " Hi"], " Bob! Hi", None),
        (("aab",), ["a", "a", "a", "b", "c"], "a", "aab"),
        (("\U0001f431",), ["x\U0001f431y"], "x", "\U0001f431"),
    ],
)
def test_known_hard_cases(stops: tuple[str, ...], pieces: list[str], want: str, matched: str | None) -> None:
    out, found, _ = run(stops, pieces)
    assert (out, found) == (want, matched)


def test_text_that_cannot_begin_a_match_is_sent_at_once() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.feed("hello E").text == "hello "
    assert matcher.feed("at").text == "Eat"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("",))
