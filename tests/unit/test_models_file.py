"""The models file: everything wrong with it at once, each with its line."""

from __future__ import annotations

import pytest

from service.backends.simulator import SimulatorOptions
from service.catalog.file import ModelsFileError, parse_models
from service.catalog.lines import line_of

GOOD = """\
# Two models.
[[models]]
id = "a"
aliases = ["first", "default"]
backend = "simulator"
template = "chatml"
stop = ["END"]
max_output_tokens = 100

[models.sampling]
temperature = 0.5

[models.options]
token_ms = 5
tokens = ["x", "y"]

[[models]]
id = "b"
backend = "simulator"
"""


def test_a_good_file_is_read_whole() -> None:
    first, second = parse_models(GOOD, "models.toml")
    assert (first.id, first.aliases, first.stop) == ("a", ("first", "default"), ("END",))
    assert first.sampling.temperature == 0.5
    assert first.backend_options() == SimulatorOptions(token_ms=5, tokens=("x", "y"))
    assert second.backend_options() == SimulatorOptions()


def problems(text: str) -> list[str]:
    with pytest.raises(ModelsFileError) as refused:
        parse_models(text, "m.toml")
    return refused.value.problems


def test_every_problem_is_named_with_its_line() -> None:
    found = problems(
        """\
[[models]]
id = ""
backend = "nope"
typo = 1

[[models]]
id = "b"
backend = "simulator"
max_output_tokens = 0
[models.sampling]
temperature = 3
[models.options]
token_mss = 1
queue_ms = "x"

[[models]]
id = "b"
backend = "llamacpp"
"""
    )
    assert [":".join(line.split(":")[:3]) for line in found] == [
        "m.toml:2: models[0].id",
        "m.toml:3: models[0].backend",
        "m.toml:4: models[0].typo",
        "m.toml:9: models[1].max_output_tokens",
        "m.toml:11: models[1].sampling.temperature",
        "m.toml:13: models[1].options.token_mss",
        "m.toml:14: models[1].options.queue_ms",
        "m.toml:17: models[2].id",
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[[models]\n", "not TOML"),
        ("", "models"),
        ("models = []\n", "models"),
        ("nope = 1\n[[models]]\nid='a'\nbackend='simulator'\n", "m.toml:1: nope"),
        (
            "[[models]]\nid='a'\naliases=['b']\nbackend='simulator'\n[[models]]\nid='b'\nbackend='simulator'\n",
            "m.toml:6: models[1].id: 'b' is taken",
        ),
    ],
)
def test_broken_files_get_a_clear_line(text: str, part: str) -> None:
    assert any(part in line for line in problems(text))


def test_files_that_are_not_there_are_named_beside_the_other_problems() -> None:
    found = problems(
        """\
[[models]]
id = "a"
backend = "triton"
template = "lama3"
tokenizer = "/no/such/tokenizer.json"
max_running = 0
[models.options]
url = "dns:///foo"
"""
    )
    assert [problem.split(": ")[1] for problem in found] == [
        "models[0].template",
        "models[0].tokenizer",
        "models[0].max_running",
        "models[0].options",
    ]
    assert "no such file: /no/such/tokenizer.json" in found[1]
    assert "dns:///name:port" in found[3]


def test_lines_are_found_in_nested_and_dotted_keys() -> None:
    text = 'x = 1\n[[models]]\nid = "a"\noptions.token_ms = 3\n[[models]]\n[models.options]\n"token_ms" = 4\n'
    assert line_of(text, ("x",)) == 1
    assert line_of(text, ("models", 0, "id")) == 3
    assert line_of(text, ("models", 0, "options", "token_ms")) == 4
    assert line_of(text, ("models", 1, "options", "token_ms")) == 7
    assert line_of(text, ("models", 1, "options", "missing")) == 6
    assert line_of(text, ("models", 1, "missing")) == 5
    assert line_of(text, ("nowhere",)) == 1
