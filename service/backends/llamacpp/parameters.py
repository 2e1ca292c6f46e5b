"""What the service asks for, in the words of llama.cpp's completion API. Pure.

A sampling field that is unset is not sent: llama.cpp's own default holds
(temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, no penalties).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from service.backends.base import EngineRequest
from service.backends.llamacpp.lexical import RegexError, choice_grammar, regex_grammar
from service.backends.llamacpp.schema_bounds import SchemaBoundError, check_schema, control_text_in
from service.core.errors import ServiceError, Violation, invalid
from service.core.request import Constraint, ConstraintKind, Sampling

__all__ = ["completion_body", "constraint_fields", "engine_seed"]

_MASK_32: Final = 0xFFFF_FFFF
# llama.cpp reads this seed as "draw one at random".
_RANDOM_SEED: Final = 0xFFFF_FFFF
# All that was said, as other engines count it; llama.cpp's own window is 64 tokens.
# It sets aside 4 bytes for each.
_PENALTY_WINDOW_TOKENS: Final = 65_536

# Field of `Sampling` to key of the completion API, for those that are a plain copy.
_COPIED: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repeat_penalty",
    "max_output_tokens": "n_predict",
}
# A text, a class and a comment, which are passed over; a bracket; a repetition.
_GRAMMAR_PARTS: Final = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[()]|\{\s*(\d{1,18})\s*,\s*(\d{1,18})\s*\}'
)
_ESCAPED_SIGN: Final = re.compile(r"\\([^0-9A-Za-z])")
# llama.cpp's parser recurses: 200,000 open brackets overflow its stack and end the process.
_MAX_NESTING: Final = 500
# LLGuidance's own member of a schema; a caller's is replaced, for it could switch checks off. White space as JSON is
# mostly written, on one line: left free, small models write it for ever where a brace should be.
_ONE_LINE: Final = {
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
}
_PENALTIES: Final = ("frequency_penalty", "presence_penalty", "repetition_penalty")


def completion_body(request: EngineRequest, control_texts: Sequence[str] = ()) -> dict[str, Any]:
    """Return the body of one streamed completion, but for its prompt.

    `control_texts` are the texts of the model's control tokens. Raises INVALID_FIELD
    on a constraint that cannot be read, or that the engine must not be given.
    """
    body: dict[str, Any] = {
        "stream": True,
        # Progress comes once per engine step: the only chance to stop a prefill.
        "return_progress": True,
        # Carries the exact token count: a chunk may stand for several tokens.
        "timings_per_token": True,
        "cache_prompt": True,
    }
    body.update(_sampling_fields(request.sampling))
    body.update(constraint_fields(request.constraint, control_texts))
    # With 0 llama.cpp leaves out the chosen token as well; the one alternative
    # of `n_probs: 1` is dropped again in `chunks`. Ids come with it and only so.
    if request.logprobs is not None or request.token_ids:
        body["n_probs"] = max(1, request.logprobs or 0)
    if request.marks:
        body["preserved_tokens"] = list(request.marks)
    # Stop strings are not sent: the service matches them for every engine alike,
    # and llama.cpp would hold text back for them a second time.
    return body


def engine_seed(seed: int) -> int:
    """Return an int64 seed as llama.cpp's 32 bits, never the one that means random."""
    folded = seed & _MASK_32
    return folded if folded != _RANDOM_SEED else _RANDOM_SEED - 1


def constraint_fields(constraint: Constraint | None, control_texts: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a constraint. Raises INVALID_FIELD for a source that cannot be used."""
    if constraint is None:
        return {}
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return {"json_schema": {"type": "object", **_ONE_LINE}}
        case ConstraintKind.JSON_SCHEMA:
            return {"json_schema": {**_schema(constraint.source, control_texts), **_ONE_LINE}}
        case ConstraintKind.GRAMMAR:
            _check_grammar(constraint.source)
            return {"grammar": constraint.source}
        case ConstraintKind.REGEX:
            plain = _ESCAPED_SIGN.sub(r"\1", constraint.source)
            _check_literals(["constraint.regex"], [plain], control_texts)
            try:
                return {"grammar": regex_grammar(constraint.source)}
            except RegexError as error:
                raise _refused("constraint.regex", str(error)) from None
        case ConstraintKind.CHOICE:
            texts = json.loads(constraint.source)
            _check_literals([f"constraint.choice.choices[{at}]" for at in range(len(texts))], texts, control_texts)
            return {"grammar": choice_grammar(texts)}


def _check_literals(fields: Sequence[str], texts: Sequence[str], control_texts: Sequence[str]) -> None:
    # The engine would let anything pass in their place.
    if (found := control_text_in(texts, control_texts)) is not None:
        at, control = found
        raise _refused(fields[at], f"must not contain {control!r}, the text of a control token of this model")


def _check_grammar(source: str) -> None:
    if not source.strip():  # llama.cpp would take it for no constraint
        raise _refused("constraint.grammar", "must not be blank")
    if source.lstrip().startswith("%llguidance"):
        # This dialect fails open in llama.cpp: a faulty grammar would be ignored.
        raise _refused("constraint.grammar", "must be GBNF; %llguidance grammars are not accepted")
    depth = 0
    for part in _GRAMMAR_PARTS.finditer(source):
        if part[1] is not None and int(part[2]) < int(part[1]):
            # llama.cpp writes such a repetition out until there is no memory left.
            raise _refused("constraint.grammar", f"the repetition {part[0]} must not end below its beginning")
        depth += {"(": 1, ")": -1}.get(part[0], 0)
        if depth > _MAX_NESTING:
            raise _refused("constraint.grammar", f"must not nest deeper than {_MAX_NESTING} brackets")


def _schema(source: str, control_texts: Sequence[str]) -> dict[str, Any]:
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise _refused("constraint.json_schema", f"must be JSON: {error}") from None
    if not isinstance(schema, dict):
        raise _refused("constraint.json_schema", "must be a JSON object")
    try:
        check_schema(schema, control_texts)
    except SchemaBoundError as error:
        raise _refused("constraint.json_schema", str(error)) from None
    return schema


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, key in _COPIED.items():
        value = getattr(sampling, name)
        if value is not None:
            fields[key] = value
    if any(getattr(sampling, name) is not None for name in _PENALTIES):
        fields["repeat_last_n"] = _PENALTY_WINDOW_TOKENS
    if sampling.seed is not None:
        fields["seed"] = engine_seed(sampling.seed)
    if sampling.logit_bias:
        fields["logit_bias"] = [[token_id, bias] for token_id, bias in sampling.logit_bias.items()]
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    return fields


def _refused(field: str, description: str) -> ServiceError:
    return invalid([Violation(field, description)])
