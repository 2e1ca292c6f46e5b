"""From the bytes of a body to its checked members, or to one refusal that names every problem.

A body is parsed and checked in one pass by the schema library, which bounds the
nesting. Of two members with the same name the last counts, here and for
everything behind: nothing else reads the body.

To tell a problem costs about fifteen microseconds, in which nobody else is
served, and one body has room for a million. So a list ends at its first wrong
item. Bodies that people read are then checked again without that, and told
everything.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from gateway.openai.base import RequestModel
from gateway.openai.json_values import SchemaBudget
from gateway.openai.problems import error_from_validation
from gateway.openai.structure import check_structure, is_small

__all__ = ["BodySchema"]

_Request = TypeVar("_Request", bound=RequestModel)


class BodySchema(Generic[_Request]):
    """How bodies of one kind are read. `ids_in` is the member that may hold as many token ids as the contract takes."""

    def __init__(self, model: type[_Request], *, ids_in: str | None = None) -> None:
        self._model = model
        self._ids_in = ids_in
        schema = _without_fail_fast(TypeAdapter(model).core_schema)
        # The validators that the models have already would end lists early.
        self._thorough = SchemaValidator(schema, _use_prebuilt=False)

    def read(self, body: bytes) -> _Request:
        """Return the members of `body`. ApiError (400) if they are not those of a valid request."""
        check_structure(body, ids_in=self._ids_in)
        try:
            return self._model.model_validate_json(body, context=SchemaBudget())
        except ValidationError as error:
            # Under a name of its own an error and this frame would keep each other, and the body, alive.
            raise error_from_validation(self._all_of(body, error)) from None

    def _all_of(self, body: bytes, found: ValidationError) -> ValidationError:
        if not is_small(body):
            return found
        try:
            self._thorough.validate_json(body, context=SchemaBudget())
        except ValidationError as error:
            return error
        return found


def _without_fail_fast(schema: Any) -> Any:
    """Return a copy of a core schema whose lists are read to their end."""
    if isinstance(schema, dict):
        return {key: _without_fail_fast(value) for key, value in schema.items() if key != "fail_fast"}
    if isinstance(schema, list | tuple):
        return type(schema)(map(_without_fail_fast, schema))
    return schema
