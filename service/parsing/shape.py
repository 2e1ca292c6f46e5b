"""How calls stand in what a model writes: the facts about a format that `CallParser` goes by."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How calls stand in the output.

    `opener` and `closer` mark them; `is_bare`: the answer may also begin with a
    call, unmarked; `has_fences`: and that in a Markdown fence. `is_strict`: marked
    or not, an object is a call only if it has nothing but a call's keys, as it has to
    be without marks in any format. `has_prefixed_names`:
    `name{...}` may stand behind the opener. `separators` may stand between calls,
    besides whitespace. `is_whole`: there is nothing but the calls.
    """

    opener: str = ""
    closer: str = ""
    separators: str = ","
    is_bare: bool = False
    has_fences: bool = False
    is_strict: bool = False
    has_prefixed_names: bool = False
    is_whole: bool = False
