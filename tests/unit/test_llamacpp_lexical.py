"""Regular expressions and choices as grammars of the embedded engine: written right, and bounded."""

from __future__ import annotations

import time

import pytest

from service.backends.base import EngineRequest
from service.backends.llamacpp.lexical import RegexError, behind_prefix, choice_grammar, regex_grammar
from service.backends.llamacpp.parameters import completion_body
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind, Sampling


def literal(source: str) -> str:
    """Return what stands between the slashes."""
    grammar = regex_grammar(source)
    head, _, rest = grammar.partition("OUTPUT: ")
    assert head == "%llguidance {}\nstart: OUTPUT\n"
    assert "\n" not in rest
    assert (rest[0], rest[-1]) == ("/", "/")
    return rest[1:-1]


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (r"[0-9]{3}", r"[0-9]{3}"),
        ("a/b", r"a\/b"),
        (r"a\/b", r"a\/b"),
        (r"a\\/b", r"a\\\/b"),
        ("[/]", r"[\/]"),
        ("a\nb\rc", r"a\nb\rc"),
        ("a\\\nb", r"a\nb"),
        (r"\\", r"\\"),
        ("é🧿", "é🧿"),
        ("a/ | /b", r"a\/ | \/b"),
    ],
)
def test_an_expression_stays_within_its_slashes(source: str, written: str) -> None:
    assert literal(source) == written


@pytest.mark.parametrize("source", ["\\", "a\\", r"\\" + "\\", "a\\\\\\"])
def test_a_single_backslash_at_the_end_is_refused(source: str) -> None:
    with pytest.raises(RegexError, match="backslash"):
        regex_grammar(source)


@pytest.mark.parametrize(
    "source",
    ["(a{1000}){1000}", "a{100000}", "((a{100}){100}){100}", "(a{0,30000})", "a{20000}b{20000}", "(?:[a-z]{300}){300}",
     "(ab{200}){200}", "(x{500}|y){100}", "a{999999999}"],
)  # fmt: skip
def test_repetitions_that_would_hold_up_the_engine_are_refused(source: str) -> None:
    with pytest.raises(RegexError, match="repetitions"):
        regex_grammar(source)


@pytest.mark.parametrize(
    "source",
    [r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "a{10000}", r"(\w{100}){100}", "(.*a){20}", r"\{1000000\}",
     "[{1000000}]", "(a{0}){1000}", "x{5000}y{5000}", "a{,5}", "a{b", "(", ")", "{99999}"],
)  # fmt: skip
def test_others_are_left_to_the_engine(source: str) -> None:
    assert literal(source) == source


@pytest.mark.parametrize("source", ["[" * 2**18, "(" * 2**18, "\\a" * 2**17, "a" * 2**18, "a{2}" * 2**12, "{" * 2**18])
def test_reading_a_long_expression_takes_no_time_to_speak_of(source: str) -> None:
    begin_s = time.perf_counter()
    regex_grammar(source)
    assert time.perf_counter() - begin_s < 2


def test_choices_are_alternatives_with_every_character_escaped() -> None:
    grammar = choice_grammar(["yes", 'a "b"\\\n', "é🧿", "\x00"])
    assert grammar.endswith('OUTPUT: "yes" | "a \\"b\\"\\\\\\n" | "\\u00e9\\ud83e\\uddff" | "\\u0000"')


def test_a_prefix_comes_first() -> None:
    assert behind_prefix(regex_grammar("start: OUTPUT"), "A") == (
        '%llguidance {}\nstart: "A" OUTPUT\nOUTPUT: /start: OUTPUT/'
    )


def body(kind: ConstraintKind, source: str) -> dict[str, object]:
    return completion_body(
        EngineRequest(
            request_id="r",
            prompt="x",
            sampling=Sampling(max_output_tokens=1, seed=1),
            deadline=Deadline.after(10),
            constraint=Constraint(kind=kind, source=source),
        )
    )


def test_the_engine_gets_them_as_grammars() -> None:
    assert body(ConstraintKind.REGEX, "a+")["grammar"] == regex_grammar("a+")
    assert body(ConstraintKind.CHOICE, '["a", "b"]')["grammar"] == choice_grammar(["a", "b"])


def test_an_expression_that_cannot_be_used_names_its_field() -> None:
    with pytest.raises(ServiceError) as refused:
        body(ConstraintKind.REGEX, "(a{1000}){1000}")
    assert refused.value.reason is Reason.INVALID_FIELD
    assert [violation.field for violation in refused.value.violations] == ["constraint.regex"]
