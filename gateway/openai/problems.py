"""From what the schema library found wrong to one error object in OpenAI's wording.

Every problem of a request is in the message; `param` and `code` are those of
the first. Values are quoted short: a caller's megabyte is not sent back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.openai.errors import ApiError, invalid_request
from gateway.openai.parameters import NO_CODE, UNSERVED_VALUES

__all__ = ["error_from_validation", "param_name"]

_MAX_PROBLEMS: Final = 20
_MAX_QUOTE_CHARS: Final = 64
_OTHER_KIND: Final = frozenset({"literal_error", "unsupported_value"})

Ctx = Mapping[str, Any]
# (code, text) of one problem; not every problem has a code.
Wording = Callable[[str, Ctx, Any], tuple[str | None, str]]


def error_from_validation(error: ValidationError) -> ApiError:
    """Return the 400 that names every problem in `error`."""
    found = error.errors(include_url=False)
    if found[0]["type"] == "json_invalid":
        unparsed = invalid_request(
            "We could not parse the JSON body of your request. "
            f"({found[0]['ctx']['error']}. HINT: the body must be one JSON object with content type application/json.)"
        )
        unparsed.reason = "INVALID_JSON"
        return unparsed
    found = _without_consequences(found)
    worded = [_word(problem) for problem in found[:_MAX_PROBLEMS]]
    text = " ".join(dict.fromkeys(text for _, text in worded))
    if len(found) > _MAX_PROBLEMS:
        text += f" And {len(found) - _MAX_PROBLEMS} more."
    return invalid_request(text, param=_name(found[0]) or None, code=worded[0][0])


def _without_consequences(found: list[ErrorDetails]) -> list[ErrorDetails]:
    # What is of another type than any that is served does not lack their members.
    untyped = {
        problem["loc"][:-1] for problem in found if problem["type"] in _OTHER_KIND and problem["loc"][-1:] == ("type",)
    }
    return [problem for problem in found if problem["type"] != "missing" or problem["loc"][:-1] not in untyped]


def param_name(loc: tuple[int | str, ...]) -> str:
    """Return the JSON path of a location: `messages[0].content[1].type`.

    Marks that the schema library adds for the branch of a union (`<parts>`, and
    the role of a message) and for a key (`[key]`) are no part of the caller's
    document.
    """
    if len(loc) > 2 and loc[0] == "messages" and isinstance(loc[1], int):
        loc = loc[:2] + loc[3:]
    name = ""
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part != "[key]" and not (part.startswith("<") and part.endswith(">")):
            name += f".{part[:_MAX_QUOTE_CHARS]}" if name else part[:_MAX_QUOTE_CHARS]
    return name


def _name(problem: ErrorDetails) -> str:
    """Return the JSON path of the member at fault."""
    ctx = problem.get("ctx") or {}
    # A check of several members says itself which of them it means.
    if named := ctx.get("param"):
        return str(named)
    name = param_name(problem["loc"])
    member = _discriminator(ctx)
    return f"{name}.{member}" if member else name


def _discriminator(ctx: Ctx) -> str | None:
    """Return the member by which a union is told apart; None for a function."""
    quoted: str = ctx.get("discriminator", "")
    return quoted[1:-1] if quoted.startswith("'") else None


def _word(problem: ErrorDetails) -> tuple[str | None, str]:
    name = _name(problem)
    ctx: Ctx = problem.get("ctx") or {}
    wording = _WORDINGS.get(problem["type"])
    if wording is not None:
        return wording(name, ctx, problem["input"])
    if problem["type"] in _OWN_CODES:
        return problem["type"], problem["msg"]
    if problem["type"] == NO_CODE:
        return None, problem["msg"]
    return "invalid_value", f"Invalid '{name}': {problem['msg'][:1].lower()}{problem['msg'][1:]}."


# Raised by validators of this package, with their text.
_OWN_CODES: Final = frozenset({"unsupported_value", "unknown_parameter", "invalid_value", "missing_required_parameter"})


def _missing(name: str, _ctx: Ctx, _got: Any) -> tuple[str, str]:
    return "missing_required_parameter", f"Missing required parameter: '{name}'."


def _wrong_type(expected: str) -> Wording:
    def word(name: str, _ctx: Ctx, got: Any) -> tuple[str, str]:
        where = f"Invalid type for '{name}'" if name else "Invalid body"
        return "invalid_type", f"{where}: expected {expected}, but got {_kind(got)} instead."

    return word


def _out_of_range(key: str, sign: str, side: str) -> Wording:
    def word(name: str, ctx: Ctx, got: Any) -> tuple[str, str]:
        bound = ctx[key]
        number = "decimal" if isinstance(bound, float) else "integer"
        code = f"{number}_{'below_min' if side == 'below minimum' else 'above_max'}_value"
        expected = (
            f"Expected a value {sign} {bound:g}" if isinstance(bound, float) else f"Expected a value {sign} {bound}"
        )
        return code, f"Invalid '{name}': {number} {side} value. {expected}, but got {_quote(got)} instead."

    return word


def _length(what: str, key: str, *, too_long: bool) -> Wording:
    side, bound = ("long", "maximum") if too_long else ("short", "minimum")

    def word(name: str, ctx: Ctx, got: Any) -> tuple[str, str]:
        noun = "object" if isinstance(got, Mapping) else what
        article = "a" if noun == "string" else "an"
        code = f"{noun}_{'above_max' if too_long else 'below_min'}_length"
        problem = f"{noun} too {side}"
        size = f"{article} {noun} with length {ctx.get('actual_length') or len(got)}"
        if not got:
            size = f"an empty {noun}"
            if noun == "array":
                code, problem = "empty_array", "empty array"
        expected = f"Expected {article} {noun} with {bound} length {ctx[key]}, but got {size} instead."
        return code, f"Invalid '{name}': {problem}. {expected}"

    return word


def _not_among(name: str, ctx: Ctx, got: Any) -> tuple[str, str]:
    expected = ctx["expected"].replace(" or ", " and ")
    if isinstance(got, str) and got in UNSERVED_VALUES:
        problem = f"'{name}' does not support {_quote(got)} with this model"
        return "unsupported_value", f"Unsupported value: {problem}. Supported values are: {expected}."
    return "invalid_value", f"Invalid value for '{name}': {_quote(got)}. Supported values are: {expected}."


def _not_a_branch(name: str, ctx: Ctx, got: Any) -> tuple[str, str]:
    return _not_among(name, {"expected": ctx["expected_tags"]}, got.get(_discriminator(ctx)))


def _no_branch(name: str, ctx: Ctx, got: Any) -> tuple[str | None, str]:
    if _discriminator(ctx):
        return _missing(name, ctx, got)
    # Every other union of these schemas is a string or an array of something.
    return _wrong_type("a string or an array")(name, ctx, got)


def _no_match(name: str, ctx: Ctx, _got: Any) -> tuple[str, str]:
    expected = f"Expected a string that matches the pattern '{ctx['pattern']}'."
    return "invalid_value", f"Invalid '{name}': string does not match pattern. {expected}"


def _not_finite(name: str, _ctx: Ctx, _got: Any) -> tuple[str, str]:
    return "invalid_value", f"Invalid '{name}': expected a finite number."


def _unsupported(name: str, ctx: Ctx, _got: Any) -> tuple[str, str]:
    text = f"Unsupported parameter: '{name}' is not supported with this model. {ctx.get('hint', '')}"
    return "unsupported_parameter", text.rstrip()


def _not_a_token_id(name: str, _ctx: Ctx, _got: Any) -> tuple[str, str]:
    return "invalid_value", f"Invalid '{name}': expected a token id, a whole number in decimal digits."


_WORDINGS: Final[Mapping[str, Wording]] = {
    "missing": _missing,
    "string_type": _wrong_type("a string"),
    "int_type": _wrong_type("an integer"),
    "float_type": _wrong_type("a decimal"),
    "bool_type": _wrong_type("a boolean"),
    "list_type": _wrong_type("an array"),
    "dict_type": _wrong_type("an object"),
    "model_type": _wrong_type("an object"),
    "model_attributes_type": _wrong_type("an object"),
    "union_tag_invalid": _not_a_branch,
    "union_tag_not_found": _no_branch,
    "string_pattern_mismatch": _no_match,
    "greater_than_equal": _out_of_range("ge", ">=", "below minimum"),
    "greater_than": _out_of_range("gt", ">", "below minimum"),
    "less_than_equal": _out_of_range("le", "<=", "above maximum"),
    "less_than": _out_of_range("lt", "<", "above maximum"),
    "too_short": _length("array", "min_length", too_long=False),
    "too_long": _length("array", "max_length", too_long=True),
    "string_too_short": _length("string", "min_length", too_long=False),
    "string_too_long": _length("string", "max_length", too_long=True),
    "literal_error": _not_among,
    "finite_number": _not_finite,
    "unsupported_parameter": _unsupported,
    "int_parsing": _not_a_token_id,
    "int_parsing_size": _not_a_token_id,
}


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _quote(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of many digits"
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE_CHARS else text[:_MAX_QUOTE_CHARS] + "..."
