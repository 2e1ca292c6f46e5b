"""A list of texts as an EBNF grammar, for engines that guide by grammars. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["alternatives"]

_ESCAPES: Final = {
    **{code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F)},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord('"'): '\\"',
    ord("\\"): "\\\\",
}


def alternatives(texts: Iterable[str]) -> str:
    """Return the grammar whose output is one of `texts`."""
    return "root ::= " + " | ".join(f'"{text.translate(_ESCAPES)}"' for text in texts)
