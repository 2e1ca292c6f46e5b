"""Members that only this endpoint refuses, and what to do instead. `docs` quotes the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

__all__ = ["REFUSED", "Refused"]

_STATELESS: Final = "Nothing is stored here: send the whole conversation in 'input'."

REFUSED: Final[Mapping[str, str]] = {
    "background_options": "A response in the background begins as soon as there is room for it.",
    "context_management": "Shorten the input instead.",
    "conversation": _STATELESS,
    "moderation": "Nothing is moderated here.",
    "previous_response_id": _STATELESS,
    "prompt": "Nothing is stored here: send the text of the prompt in 'instructions' and 'input'.",
    # Members of the other endpoints.
    "function_call": "In this API it is 'tool_choice'.",
    "functions": "Functions are members of 'tools' in this API.",
    "max_completion_tokens": "In this API it is 'max_output_tokens'.",
    "max_tokens": "In this API it is 'max_output_tokens'.",
    "messages": "In this API it is 'input'.",
    "n": "A response has one answer.",
    "reasoning_effort": "In this API it is 'reasoning.effort'.",
    "response_format": "In this API it is 'text.format'.",
}
# Values that ask for what happens anyway.
_HARMLESS: Final[Mapping[str, object]] = {
    "background_options": {"completion_window": "soonest"},
    "function_call": "auto",
    "n": 1,
}


def _refuse(value: Any, info: ValidationInfo) -> None:
    name = info.field_name or ""
    if value or isinstance(value, int):
        if value is False or value == _HARMLESS.get(name):
            return
        raise PydanticCustomError("unsupported_parameter", "This parameter is not supported.", {"hint": REFUSED[name]})


Refused = Annotated[SkipJsonSchema[Any], BeforeValidator(_refuse), Field(default=None)]
