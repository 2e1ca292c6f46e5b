"""Constraints of the contracts as grammars of llama.cpp.

llama.cpp answers a JSON schema that it cannot compile with unconstrained
text, so every constraint is compiled here first.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .jobs import EngineError

__all__ = ["grammar_for_choice", "grammar_for_gbnf", "grammar_for_guide", "grammar_for_json", "grammar_for_regex"]


def grammar_for_guide(kind: str, guide: str) -> str:
    """Return the grammar for a guide type of TensorRT-LLM and its guide; EngineError says what is wrong with it.

    `json` means a JSON object.
    """
    where = f"guided_decoding_guide of type {kind}"
    if kind == "json":
        return grammar_for_json({"type": "object"}, where)
    if kind == "json_schema":
        try:
            schema = json.loads(guide)
        except ValueError as error:
            raise EngineError(f"guided_decoding_guide is not JSON: {error}") from None
        return grammar_for_json(schema, where)
    if kind == "regex":
        return grammar_for_regex(guide, where)
    if kind == "ebnf_grammar":
        return grammar_for_gbnf(guide, where)
    raise EngineError(
        f"guided_decoding_guide_type {kind!r} is unknown; json, json_schema, regex and ebnf_grammar are supported"
    )


def grammar_for_json(schema: Any, where: str) -> str:
    """Return the grammar of a JSON schema; `where` names the field for the error."""
    return _checked("%llguidance {}\nstart: %json " + json.dumps(schema), where)


def grammar_for_regex(pattern: str, where: str) -> str:
    """Return the grammar of a regular expression that the whole text has to match."""
    return _checked("%llguidance {}\nstart: /" + re.sub(r"(?<!\\)/", r"\\/", pattern) + "/", where)


def grammar_for_choice(texts: list[str], where: str) -> str:
    """Return the grammar of one of several texts."""
    return _checked("%llguidance {}\nstart: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, texts)), where)


def grammar_for_gbnf(grammar: str, where: str) -> str:
    """Return llama.cpp's own grammar, which is compiled by the engine."""
    if not grammar.strip():  # would be taken for none
        raise EngineError(f"{where} does not compile: it is blank")
    return _checked(grammar.lstrip(), where) if grammar.lstrip().startswith("%llguidance") else grammar


def _checked(grammar: str, where: str) -> str:
    from llguidance import LLMatcher

    problem = LLMatcher.validate_grammar(grammar)
    if problem:
        # The first line names the fault; the rest quotes the grammar.
        raise EngineError(f"{where} does not compile: {problem.splitlines()[0]}")
    return grammar
