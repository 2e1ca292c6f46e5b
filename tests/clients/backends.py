"""The gateway over each of its backends, as a user starts it, and one conversation that all of them answer alike.

The simulator plays the tokens that the sample model would give, so that one
expectation holds for all three; what a backend cannot do is in `abilities`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

from tests.support.processes import Stack, stack
from tests.support.triton_server import running_triton

__all__ = [
    "ANSWER",
    "ANSWER_TOKENS",
    "BACKENDS",
    "COUNTED",
    "MODEL",
    "TOOLS_MODEL",
    "Ability",
    "Served",
    "scripted",
    "serving",
    "written",
]

MODEL: Final = "default"
# The one that calls tools and, where it is scripted, thinks.
TOOLS_MODEL: Final = "tools"
_NINE: Final = "Q: Count to nine.\nA: 1, 2, 3, 4, 5, 6, 7, 8, 9\n"
# What COUNT is answered with when ANSWER_TOKENS tokens are allowed: the tokens of the sample model.
COUNTED: Final = (" ", *(part for number in range(1, 10) for part in (str(number), ",", " ")))
ANSWER_TOKENS: Final = 6
ANSWER: Final = "".join(COUNTED[:ANSWER_TOKENS])


class Ability(Enum):
    """What not every backend can do."""

    SCRIPT = auto()  # plays what the prompt says
    CONSTRAINT = auto()  # JSON object and JSON Schema, and with them calls of a tool that are forced
    TOP_LOGPROBS = auto()  # alternatives beside the token's own log-prob
    CHOICES_DIFFER = auto()  # another seed is another answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running gateway with the models MODEL and TOOLS_MODEL."""

    name: str
    stack: Stack
    abilities: frozenset[Ability]

    @property
    def url(self) -> str:
        """Base address of the API, as clients want it: with /v1."""
        return f"{self.stack.url}/v1"

    def can(self, ability: Ability) -> bool:
        """Return whether the backend can do this."""
        return ability in self.abilities

    @property
    def count(self) -> list[Any]:
        """Return messages that are answered with ANSWER at temperature 0."""
        if self.can(Ability.SCRIPT):
            return [{"role": "user", "content": scripted(*COUNTED)}]
        return [
            {"role": "user", "content": "Count to nine."},
            {"role": "assistant", "content": "1, 2, 3, 4, 5, 6, 7, 8, 9"},
            {"role": "user", "content": "Count to nine."},
        ]

    @property
    def prompt(self) -> str:
        """Return a text that is continued with ANSWER at temperature 0."""
        return scripted(*COUNTED) if self.can(Ability.SCRIPT) else f"{_NINE}{_NINE}Q: Count to nine.\nA:"

    @property
    def endless(self) -> str:
        """Return a question that is answered for much longer than a test, at temperature 0 and with ignore_eos."""
        return scripted("tick ", token_ms=20) if self.can(Ability.SCRIPT) else "Count to one million."


def scripted(*tokens: str, **script: Any) -> str:
    """Return a prompt that makes the simulator say these tokens in turn, and end there if nothing else is said."""
    given = {"tokens": tokens, "output_tokens": len(tokens), **script} if tokens else script
    # The script ends with its line, and a chat template may go on behind it.
    return f"simulate: {json.dumps(given)}\n"


def _models_file(folder: Path, backend: str, *models: Mapping[str, Any], **options: Any) -> Path:
    """Write what a person would write to serve these models with one backend; `options` are the backend's."""
    lines: list[str] = []
    for model in models:
        table = {"backend": backend, "default_max_output_tokens": 32, **model}
        lines += ["[[models]]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
        lines += ["[models.options]", *(f"{name} = {json.dumps(value)}" for name, value in options.items())]
    path = folder / "models.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


# The template of a base model, and one that shows tools in the way of Hermes.
_PLAIN: Final = {"id": MODEL, "template": "qa"}
_HERMES: Final = {"id": TOOLS_MODEL, "template": "chatml"}


def written(text: str, size: int = 3, **script: Any) -> str:
    """Return a prompt that makes the simulator write `text`, in tokens of `size` bytes that cut characters and tags.

    As bytes: what marks a turn or a call in a prompt loses its meaning there.
    """
    raw = text.encode()
    parts = [raw[at : at + size] for at in range(0, len(raw), size)]
    return scripted(*("".join(f"\\x{byte:02x}" for byte in part) for part in parts), **script)


@contextmanager
def _simulator(folder: Path) -> Iterator[Served]:
    # Paced like an engine: tokens that wait for their reader are joined, and a stream of one piece shows nothing.
    models = _models_file(folder, "simulator", _PLAIN, {**_HERMES, "reasoning_parser": "think"}, token_ms=8)
    with stack(folder, models_file=models) as running:
        yield Served(name="simulator", stack=running, abilities=frozenset({Ability.SCRIPT, Ability.TOP_LOGPROBS}))


@contextmanager
def _embedded(folder: Path) -> Iterator[Served]:
    # One engine for both: a second one would load the model again. Its calls are plain JSON, as its template says.
    with stack(folder, models_file=_models_file(folder, "llamacpp", {**_PLAIN, "aliases": [TOOLS_MODEL]})) as running:
        abilities = {Ability.CONSTRAINT, Ability.TOP_LOGPROBS, Ability.CHOICES_DIFFER}
        yield Served(name="embedded", stack=running, abilities=frozenset(abilities))


@contextmanager
def _triton(folder: Path) -> Iterator[Served]:
    with running_triton(folder, "llamacpp") as server:
        models = _models_file(folder, "triton", _PLAIN, _HERMES, url=server.url, model="ensemble")
        with stack(folder, models_file=models) as running:
            abilities = {Ability.CONSTRAINT, Ability.CHOICES_DIFFER}
            yield Served(name="triton", stack=running, abilities=frozenset(abilities))


_SERVING: Final = {"simulator": _simulator, "embedded": _embedded, "triton": _triton}
BACKENDS: Final = tuple(_SERVING)


@contextmanager
def serving(name: str, folder: Path) -> Iterator[Served]:
    """Run service and gateway over the backend for the length of the block; skips where there is no Triton."""
    with _SERVING[name](folder) as served:
        yield served
