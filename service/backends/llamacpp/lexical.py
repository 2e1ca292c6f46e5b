"""Regular expressions and lists of texts as grammars for the engine's LLGuidance. Pure.

The engine compiles these on its own loop, between two steps of everything that
decodes: what would take it seconds is refused before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

__all__ = ["RegexError", "behind_prefix", "check_size", "choice_grammar", "regex_grammar"]

_HEAD: Final = "%llguidance {}\n"
_START: Final = f"{_HEAD}start: OUTPUT\nOUTPUT: "
# 10,000 states more than were written take a tenth of a second to compile, 100,000
# ten seconds.
_MAX_REPEATED: Final = 20_000
# A run of plain characters; an escaped one, a class up to its end, a bracket, a bounded repetition, any other.
_PARTS: Final = re.compile(
    r"[^\\\[(){]+|\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z)|[()]|\{(\d{1,9})(?:,(\d{0,9}))?\}|.", re.DOTALL
)
# What stands otherwise between slashes on one line.
_SPECIAL: Final = re.compile(r"\\.|\\\Z|[/\n\r]", re.DOTALL)
_WRITTEN: Final = {"/": r"\/", "\n": r"\n", "\r": r"\r"}


class RegexError(Exception):
    """The expression cannot be used; the text says why."""


def regex_grammar(source: str) -> str:
    """Return the grammar of a text that matches all of `source`. Raises RegexError; most faults the engine finds."""
    check_size(source)
    return f"{_START}/{_SPECIAL.sub(_written, source)}/"


def choice_grammar(texts: Sequence[str]) -> str:
    """Return the grammar of one of `texts`, of which there is at least one."""
    return _START + " | ".join(map(json.dumps, texts))


def behind_prefix(grammar: str, prefix: str) -> str:
    """Return `grammar` for what follows `prefix`: it compiles where `grammar` does, and begins in one way only."""
    return grammar.replace("start: OUTPUT", f"start: {json.dumps(prefix)} OUTPUT", 1)


def _written(special: re.Match[str]) -> str:
    part = special[0]
    if part == "\\":
        raise RegexError("ends with a single backslash")
    # An escaped line end is a line end.
    return _WRITTEN.get(part) or _WRITTEN.get(part[1]) or part


def check_size(source: str) -> None:
    """Raise RegexError if its bounded repetitions, written out, are longer than the engine should be given.

    Brackets that do not match, and repetitions of nothing, are left to the engine.
    """
    # Of each open bracket: the length of what is in it so far, and of its last part.
    sizes, last = [0], 0
    for part in _PARTS.finditer(source):
        text = part[0]
        if text == "(":
            sizes.append(0)
            continue
        if text == ")" and len(sizes) > 1:
            last = sizes.pop()
        elif part[1] is not None:
            repeated = last * max(int(part[2] or part[1]), 1)
            sizes[-1] -= last
            last = repeated
        else:
            # Only the last of a run is repeated by what follows.
            last = 1
            sizes[-1] += len(text) - 1 if text[0] not in "\\[" else 0
        sizes[-1] += last
        if sizes[-1] > len(source) + _MAX_REPEATED:
            raise RegexError(f"its repetitions, written out, are more than {_MAX_REPEATED} characters")
