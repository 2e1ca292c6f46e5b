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

__all__ = ["error_from_validation", "param_name"]

_MAX_PROBLEMS: Final = 20
_MAX_QUOTE_CHARS: Final = 64

Ctx = Mapping[str, Any]
# (code, text) of one problem.
Wording = Callable[[str, Ctx, Any], tuple[str, str]]


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
    text = " ".join(text for _, text in worded)
    if len(found) > _MAX_PROBLEMS:
        text += f" And {len(found) - _MAX_PROBLEMS} more."
    return invalid_request(text, param=param_name(found[0]["loc"]) or None, code=worded[0][0])


def _without_consequences(found: list[ErrorDetails]) -> list[ErrorDetails]:
    # What is of another type than any that is served does not lack their members.
    untyped = {
        problem["loc"][:-1] for problem in found if problem["type"] == "literal_error" and problem["loc"][-1] == "type"
    }
    return [problem for problem in found if problem["type"] != "missing" or problem["loc"][:-1] not in untyped]


def param_name(loc: tuple[int | str, ...]) -> str:
    """Return the JSON path of a location: `messages[0].content[1].type`.

    Marks that the schema library adds for the branch of a union (`<parts>`)
    and for a key (`[key]`) are no part of the caller's document.
    """
    name = ""
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part not in _MARKS:
            name += f".{part[:_MAX_QUOTE_CHARS]}" if name else part[:_MAX_QUOTE_CHARS]
    return name


_MARKS: Final = frozenset({"[key]", "<text>", "<parts>", "<tokens>", "<texts>", "<token lists>", "<list>"})


def _word(problem: ErrorDetails) -> tuple[str, str]:
    name = param_name(problem["loc"])
    ctx: Ctx = problem.get("ctx") or {}
    wording = _WORDINGS.get(problem["type"])
    if wording is not None:
        return wording(name, ctx, problem["input"])
    if problem["type"] in _OWN_CODES:
        return problem["type"], problem["msg"]
    return "invalid_value", f"Invalid '{name}': {problem['msg'][:1].lower()}{problem['msg'][1:]}."


# Raised by validators of this package, with their text.
_OWN_CODES: Final = frozenset({"unsupported_value", "invalid_value", "invalid_parameter", "missing_required_parameter"})


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
    return "invalid_value", f"Invalid value for '{name}': {_quote(got)}. Supported values are: {ctx['expected']}."


def _not_finite(name: str, _ctx: Ctx, _got: Any) -> tuple[str, str]:
    return "invalid_value", f"Invalid '{name}': expected a finite number."


def _unsupported(name: str, _ctx: Ctx, _got: Any) -> tuple[str, str]:
    return "unsupported_parameter", f"Unsupported parameter: '{name}' is not supported by this server."


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
    # Every union of this schema is a string or an array of something.
    "union_tag_not_found": _wrong_type("a string or an array"),
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
