"""The body of a legacy completion request and its translation to the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from gateway.openai.constraints import FormatFields
from gateway.openai.fields import INT32_MAX, GenerationFields, Unserved
from gateway.openai.parameters import OfChat
from headrace.v1 import generation_pb2 as gen

__all__ = ["CompletionPlan", "CompletionRequest"]

# The legacy endpoint's own default; without it old callers get a whole context.
DEFAULT_MAX_TOKENS: Final = 16
# The contract's bound.
MAX_TOKEN_IDS: Final = 2**20
# Over all prompts of a request, those that best_of throws away included.
MAX_CHOICES: Final = 128
MAX_BEST_OF: Final = 20


def _prompt_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list):
        return None
    first = value[0] if value else 0
    return "<texts>" if isinstance(first, str) else "<token lists>" if isinstance(first, list) else "<tokens>"


def _few_prompts(value: Any) -> Any:
    # Before the prompts are looked at. It also has the body's part built once, and not for each check anew.
    if isinstance(value, list) and len(value) > MAX_CHOICES and isinstance(value[0], str | list):
        raise PydanticKnownError(
            "too_long", {"field_type": "List", "max_length": MAX_CHOICES, "actual_length": len(value)}
        )
    return value


_Text = Annotated[str, Field(min_length=1)]
# Fail fast: an error for each of a million items would cost seconds.
_Tokens = Annotated[
    list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True)
]
_Prompt = Annotated[
    Annotated[_Text, Tag("<text>")]
    | Annotated[_Tokens, Tag("<tokens>")]
    | Annotated[list[_Text], Field(max_length=MAX_CHOICES, fail_fast=True), Tag("<texts>")]
    | Annotated[list[_Tokens], Field(max_length=MAX_CHOICES, fail_fast=True), Tag("<token lists>")],
    Discriminator(_prompt_kind),
    BeforeValidator(_few_prompts),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPlan:
    """How a request is served that is more than one generation shown as it comes.

    `requests` has one for each prompt, in order, and each is shown as `choices`
    choices: all of its own, or the best of them if `picks_best`. `echo` puts the
    prompt before each.
    """

    requests: tuple[gen.GenerateRequest, ...]
    choices: int
    echo: bool
    picks_best: bool


class CompletionRequest(FormatFields, GenerationFields):
    """POST /v1/completions."""

    prompt: Annotated[_Prompt, Field(description="A text, token ids, or a list of either.")]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = Field(
        default=None, description="Log probabilities of the generated tokens, with this many alternatives."
    )
    echo: bool | None = Field(default=None, description="Put the prompt before the completion; not with logprobs.")
    suffix: Unserved
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = Field(
        default=None,
        description="Generate so many choices and return the n with the highest mean log probability per token; not "
        "with stream. All of them count in the usage.",
    )
    audio: OfChat
    chat_template: OfChat
    chat_template_kwargs: OfChat
    documents: OfChat
    function_call: OfChat
    functions: OfChat
    max_completion_tokens: OfChat
    messages: OfChat
    modalities: OfChat
    reasoning_effort: OfChat
    tool_choice: OfChat
    tools: OfChat
    top_logprobs: OfChat
    web_search_options: OfChat

    @field_validator("echo")
    @classmethod
    def _without_logprobs(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("logprobs") is not None:
            raise PydanticCustomError(
                "unsupported_value",
                "Unsupported value: 'echo' does not support true with 'logprobs': a prompt has no log probabilities "
                "here.",
            )
        return value

    @field_validator("prompt")
    @classmethod
    def _few_choices(cls, value: Any, info: ValidationInfo) -> Any:
        _check_choices("n", info.data.get("n"), len(_prompts(value)))
        return value

    @field_validator("best_of")
    @classmethod
    def _enough(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None:
            return value
        wanted = info.data.get("n") or 1
        if value < wanted:
            raise PydanticCustomError(
                "invalid_value",
                "Invalid 'best_of': expected at least 'n', which is {n}, but got {got} instead.",
                {"n": wanted, "got": value},
            )
        if value > 1 and info.data.get("stream"):
            raise PydanticCustomError(
                "invalid_value", "Invalid 'best_of': it is only allowed when 'stream' is disabled."
            )
        if "prompt" in info.data:
            _check_choices("best_of", value, len(_prompts(info.data["prompt"])))
        return value

    def output_limit(self) -> tuple[int, str]:
        """Return the limit; the endpoint's default if the caller gave none."""
        return (DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens, "max_tokens")

    @property
    def picks_best(self) -> bool:
        """Whether more choices are generated than shown."""
        return self.best_of is not None and self.best_of > (self.n or 1)

    def names(self) -> dict[str, str]:
        """Return how this request spells what the contract calls otherwise."""
        names = super().names()
        if self.picks_best:
            names["choice_count"] = "best_of"
            if self.logprobs is None:
                names |= {"output": "best_of", "output.logprobs": "best_of"}
        return names

    def plan(self) -> CompletionPlan | None:
        """Return how the request is served; None if `to_proto` is all of it."""
        prompts = _prompts(self.prompt)
        if len(prompts) == 1 and not self.echo and not self.picks_best:
            return None
        return CompletionPlan(
            requests=tuple(self._run(prompt) for prompt in prompts),
            choices=self.n or 1,
            echo=bool(self.echo),
            picks_best=self.picks_best,
        )

    def to_proto(self) -> gen.GenerateRequest:
        """Return the first prompt's request of the contract, with what is shown of it."""
        return self._request(_prompts(self.prompt)[0])

    def _run(self, prompt: str | list[int]) -> gen.GenerateRequest:
        request = self._request(prompt)
        if self.picks_best and self.best_of is not None:
            request.choice_count = self.best_of
            request.output.logprobs = True
        return request

    def _request(self, prompt: str | list[int]) -> gen.GenerateRequest:
        end_user = self.end_user()
        return gen.GenerateRequest(
            model=self.model,
            prompt=prompt if isinstance(prompt, str) else None,
            tokens=None if isinstance(prompt, str) else gen.TokenIds(ids=prompt),
            sampling=self.sampling_to_proto(),
            stop=self.stop_to_proto(),
            output=gen.OutputOptions(logprobs=self.logprobs is not None, top_logprobs=self.logprobs),
            constraint=self.constraint_to_proto(),
            choice_count=self.n,
            priority=self.priority(),
            end_user=None if end_user is None else end_user[0],
        )


def _prompts(value: Any) -> Sequence[str | list[int]]:
    """Return the prompts of a valid `prompt` member."""
    return [value] if isinstance(value, str) or isinstance(value[0], int) else value


def _check_choices(name: str, each: int | None, prompts: int) -> None:
    total = (each or 1) * prompts
    if total > MAX_CHOICES:
        raise PydanticCustomError(
            "invalid_value",
            "Invalid '{name}': {prompts} prompts with {each} choices each are more than the {most} choices that one "
            "request may have.",
            {"param": name, "name": name, "prompts": prompts, "each": each, "most": MAX_CHOICES},
        )
