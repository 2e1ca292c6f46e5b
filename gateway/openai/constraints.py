"""What the output has to look like: `response_format`, and the ways of other servers to say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gateway.openai.base import RequestModel
from gateway.openai.json_values import ObjectText, SchemaText
from gateway.openai.parameters import Hint, Unserved
from headrace.v1 import sampling_pb2

__all__ = ["ConstraintFields", "FormatFields", "ResponseFormat"]

# The contract's bounds.
MAX_CHOICES: Final = 1024
MAX_CHOICE_BYTES: Final = 4096
# Of members that nobody knows, in a message.
MAX_UNKNOWN: Final = 5
MAX_NAME_CHARS: Final = 64

_Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_BYTES)]],
    Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
]
_Source = Annotated[str, Field(min_length=1)]


class JsonSchemaFormat(RequestModel):
    """A JSON Schema that the answer has to satisfy."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]
    schema_: Annotated[ObjectText, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = Field(default=None, description="The schema is enforced with either value.")


class ResponseFormat(RequestModel):
    """What the answer has to look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[JsonSchemaFormat | None, Field(validate_default=True)] = None

    @field_validator("json_schema")
    @classmethod
    def _with_schema(cls, value: JsonSchemaFormat | None, info: ValidationInfo) -> JsonSchemaFormat | None:
        if value is None and info.data.get("type") == "json_schema":
            raise PydanticCustomError("missing", "required")
        return value

    def to_proto(self) -> sampling_pb2.OutputConstraint | None:
        """Return the constraint; None for free text."""
        if self.type == "json_object":
            return sampling_pb2.OutputConstraint(json_object=sampling_pb2.JsonObjectConstraint())
        if self.type == "json_schema" and self.json_schema is not None:
            return sampling_pb2.OutputConstraint(json_schema=self.json_schema.schema_)
        return None


class StructuredOutputs(RequestModel):
    """Exactly one member with a value. A member that nobody knows is refused: it was to constrain the output."""

    model_config = ConfigDict(extra="allow")

    json_: SchemaText | None = Field(default=None, alias="json", description="A JSON Schema, or its text.")
    regex: _Source | None = Field(default=None, description="The whole output matches.")
    choice: _Choices | None = Field(default=None, description="The output is one of these.")
    grammar: _Source | None = Field(default=None, description="In the engine's own dialect.")
    json_object: bool | None = Field(default=None, description="Any JSON object.")
    structural_tag: Unserved

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        expected = "'json', 'regex', 'choice', 'grammar' or 'json_object'"
        unknown = [name for name, value in (self.model_extra or {}).items() if value not in (None, False)]
        if unknown:
            name = f"structured_outputs.{unknown[0][:MAX_NAME_CHARS]}"
            shown = ", ".join(f"'structured_outputs.{other[:MAX_NAME_CHARS]}'" for other in unknown[:MAX_UNKNOWN])
            raise PydanticCustomError(
                "unknown_parameter",
                "Unknown parameter: {shown}. Expected one of {expected}.",
                {"param": name, "shown": shown, "expected": expected},
            )
        if all(value is None for value in (self.json_, self.regex, self.choice, self.grammar)) and not self.json_object:
            raise PydanticCustomError(
                "invalid_value",
                "Invalid 'structured_outputs': expected one of {expected}, but got none of them.",
                {"expected": expected},
            )
        return self


# One way to ask for a constraint: how the caller spells it, and what it is.
_Asked = tuple[str, sampling_pb2.OutputConstraint]


class ConstraintFields(RequestModel):
    """Members that constrain the output; at most one of them is given."""

    guided_json: SchemaText | None = Field(default=None, description="Extension. A JSON Schema, or its text.")
    guided_regex: _Source | None = Field(default=None, description="Extension. The whole output matches.")
    guided_choice: _Choices | None = Field(default=None, description="Extension. The output is one of these.")
    guided_grammar: _Source | None = Field(
        default=None, description="Extension. In the engine's own dialect: GBNF for llama.cpp, EBNF for TensorRT-LLM."
    )
    structured_outputs: StructuredOutputs | None = Field(default=None, description="Extension. One member of it.")
    guided_decoding_backend: Hint
    guided_whitespace_pattern: Unserved

    @model_validator(mode="after")
    def _only_one_constraint(self) -> Self:
        names = [name for name, _ in self.constraints()]
        if len(names) > 1:
            raise PydanticCustomError(
                "invalid_value",
                "Invalid '{param}': only one constraint on the output is possible, but got {names}.",
                {"param": names[1], "names": " and ".join(f"'{name}'" for name in names)},
            )
        return self

    def constraints(self) -> Iterator[_Asked]:
        """Yield every constraint that was asked for, with the JSON name of the member that did."""
        yield from _constraints("guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        if (asked := self.structured_outputs) is not None:
            prefix = "structured_outputs."
            yield from _constraints(prefix, asked.json_, asked.regex, asked.choice, asked.grammar)
            if asked.json_object:
                yield f"{prefix}json_object", _ANY_OBJECT

    def constraint_to_proto(self) -> sampling_pb2.OutputConstraint | None:
        """Return the constraint; None if there is none."""
        return next((constraint for _, constraint in self.constraints()), None)

    def constraint_names(self) -> Mapping[str, str]:
        """Return how this request spells the contract's paths of its constraint."""
        for name, constraint in self.constraints():
            kind = constraint.WhichOneof("kind")
            within = ".json_schema.schema" if name == "response_format" and kind == "json_schema" else ""
            paths = {"constraint": name, f"constraint.{kind}": name + within}
            return {**paths, "constraint.choice.choices": name} if kind == "choice" else paths
        return {}


class FormatFields(ConstraintFields):
    """The same for endpoints that have `response_format`."""

    response_format: ResponseFormat | None = None

    def constraints(self) -> Iterator[_Asked]:
        """Yield every constraint that was asked for, with the JSON name of the member that did."""
        if self.response_format is not None and (constraint := self.response_format.to_proto()) is not None:
            yield "response_format", constraint
        yield from super().constraints()


_ANY_OBJECT: Final = sampling_pb2.OutputConstraint(json_object=sampling_pb2.JsonObjectConstraint())


def _constraints(
    prefix: str, json_schema: str | None, regex: str | None, choices: list[str] | None, grammar: str | None
) -> Iterator[_Asked]:
    if json_schema is not None:
        yield f"{prefix}json", sampling_pb2.OutputConstraint(json_schema=json_schema)
    if regex is not None:
        yield f"{prefix}regex", sampling_pb2.OutputConstraint(regex=regex)
    if choices is not None:
        yield f"{prefix}choice", sampling_pb2.OutputConstraint(choice=sampling_pb2.ChoiceConstraint(choices=choices))
    if grammar is not None:
        yield f"{prefix}grammar", sampling_pb2.OutputConstraint(grammar=grammar)
