"""TensorRT-LLM's guide types as grammars of llama.cpp.

llama.cpp answers a JSON schema that it cannot compile with unconstrained
text, so every guide is compiled here first.
"""

from __future__ import annotations

import json
import re

from .jobs import EngineError

__all__ = ["grammar_for_guide"]


def grammar_for_guide(kind: str, guide: str) -> str:
    """Return the grammar for a guide type and its guide; EngineError says what is wrong with it.

    `json` means a JSON object. `ebnf_grammar` is llama.cpp's GBNF, which is
    compiled by the engine.
    """
    if kind == "json":
        return _checked(kind, '%llguidance {}\nstart: %json {"type": "object"}')
    if kind == "json_schema":
        try:
            schema = json.loads(guide)
        except ValueError as error:
            raise EngineError(f"guided_decoding_guide is not JSON: {error}") from None
        return _checked(kind, "%llguidance {}\nstart: %json " + json.dumps(schema))
    if kind == "regex":
        return _checked(kind, "%llguidance {}\nstart: /" + re.sub(r"(?<!\\)/", r"\\/", guide) + "/")
    if kind == "ebnf_grammar":
        return _checked(kind, guide) if guide.startswith("%llguidance") else guide
    raise EngineError(
        f"guided_decoding_guide_type {kind!r} is unknown; json, json_schema, regex and ebnf_grammar are supported"
    )


def _checked(kind: str, grammar: str) -> str:
    from llguidance import LLMatcher

    problem = LLMatcher.validate_grammar(grammar)
    if problem:
        # The first line names the fault; the rest quotes the grammar.
        raise EngineError(f"guided_decoding_guide of type {kind} does not compile: {problem.splitlines()[0]}")
    return grammar
