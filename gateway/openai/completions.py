"""The body of a legacy completion request and its translation to the contract."""

from __future__ import annotations

from typing import Annotated, Any, Final, cast

from pydantic import Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from gateway.openai.fields import INT32_MAX, GenerationFields, Unserved
from headrace.v1 import generation_pb2 as gen

__all__ = ["CompletionRequest"]

# The legacy endpoint's own default; without it old callers get a whole context.
DEFAULT_MAX_TOKENS: Final = 16
# The contract's bound.
MAX_TOKEN_IDS: Final = 2**20


def _prompt_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list):
        return None
    first = value[0] if value else 0
    return "<texts>" if isinstance(first, str) else "<token lists>" if isinstance(first, list) else "<tokens>"


_Text = Annotated[str, Field(min_length=1)]
# Fail fast: an error for each of a million items would cost seconds.
_Tokens = Annotated[
    list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True)
]
_Prompt = Annotated[
    Annotated[_Text, Tag("<text>")]
    | Annotated[_Tokens, Tag("<tokens>")]
    | Annotated[list[_Text], Field(fail_fast=True), Tag("<texts>")]
    | Annotated[list[_Tokens], Field(fail_fast=True), Tag("<token lists>")],
    Discriminator(_prompt_kind),
]


class CompletionRequest(GenerationFields):
    """POST /v1/completions, with one prompt."""

    prompt: Annotated[_Prompt, Field(description="A text, token ids, or a list with one of them.")]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = Field(
        default=None, description="Log probabilities of the generated tokens, with this many alternatives."
    )
    echo: Unserved
    suffix: Unserved
    best_of: Unserved

    @field_validator("prompt")
    @classmethod
    def _one_prompt(cls, value: str | list[int] | list[str] | list[list[int]]) -> str | list[int]:
        if isinstance(value, str):
            return value
        first = value[0]
        if isinstance(first, int):
            return value  # type: ignore[return-value]  # the discriminator looked at the first, the schema at the rest
        if len(value) > 1:
            raise PydanticCustomError(
                "unsupported_value", "Unsupported value: 'prompt' has several prompts; this server takes one a request."
            )
        return first

    def output_limit(self) -> tuple[int, str]:
        """Return the limit; the endpoint's default if the caller gave none."""
        return (DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens, "max_tokens")

    def to_proto(self) -> gen.GenerateRequest:
        """Return the request of the contract."""
        prompt = self.prompt
        return gen.GenerateRequest(
            model=self.model,
            prompt=prompt if isinstance(prompt, str) else None,
            tokens=None if isinstance(prompt, str) else gen.TokenIds(ids=cast("list[int]", prompt)),
            sampling=self.sampling_to_proto(),
            stop=self.stop_to_proto(),
            output=gen.OutputOptions(logprobs=self.logprobs is not None, top_logprobs=self.logprobs),
            choice_count=self.n,
        )
