"""The body of a request to the Responses API and its translation to the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gateway.openai.base import RequestModel
from gateway.openai.chat import MAX_SAFETY_IDENTIFIER_CHARS, reasoning_efforts
from gateway.openai.fields import INT32_MAX, MAX_USER_CHARS, GenerationFields
from gateway.openai.parameters import NO_CODE, Hint
from gateway.openai.responses.items import Input
from gateway.openai.responses.options import ReasoningOptions, TextOptions
from gateway.openai.responses.parameters import Refused
from gateway.openai.responses.tools import (
    AllowedFunctions,
    Choice,
    ChosenFunction,
    ResponseTool,
    ToolChoice,
    ToolOffer,
)
from gateway.openai.responses.turns import Conversation
from gateway.openai.template_args import TemplateFields
from gateway.openai.tools import MAX_TOOLS
from headrace.v1 import generation_pb2 as gen
from headrace.v1 import sampling_pb2

__all__ = ["ResponseRequest"]

MIN_OUTPUT_TOKENS: Final = 16
LOGPROBS: Final = "message.output_text.logprobs"
# Of what the API can include, a server without built-in tools, images and
# encryption has log-probs, and nothing to say of the rest.
Includable = Literal[
    "message.output_text.logprobs",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ResponseRequest(TemplateFields, GenerationFields):
    """POST /v1/responses."""

    input: Annotated[Input, Field(description="A text, or items in their order.")]
    instructions: str | None = Field(default=None, description="A system message before the input.")
    max_output_tokens: Annotated[int, Field(ge=MIN_OUTPUT_TOKENS, le=INT32_MAX)] | None = Field(
        default=None, description="Most tokens to generate, reasoning included."
    )
    include: Annotated[list[Includable], Field(max_length=64, fail_fast=True)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        default=None, description="Alternatives per token; above 0 it asks for log probabilities as well."
    )
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(default=None, description="False ends the turn with the first call.")
    truncation: Literal["disabled"] | None = None
    background: bool | None = Field(
        default=None,
        description="Run without the connection: the answer comes at once, and the response is asked for by its id.",
    )
    safety_identifier: Annotated[str, Field(max_length=MAX_SAFETY_IDENTIFIER_CHARS)] | None = Field(
        default=None, description="The end user, for traces and logs; counts before user."
    )

    max_tool_calls: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        default=None, description="Accepted and not used: it counts calls of built-in tools, of which there are none."
    )
    prompt_cache_key: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = Field(
        default=None, description="Accepted and not used: the engine finds common prefixes by itself."
    )
    access_programs: Hint
    image: Hint
    prompt_cache_options: Hint
    prompt_cache_retention: Hint

    background_options: Refused
    context_management: Refused
    conversation: Refused
    function_call: Refused
    functions: Refused
    max_completion_tokens: Refused
    max_tokens: Refused
    messages: Refused
    moderation: Refused
    n: Refused
    previous_response_id: Refused
    prompt: Refused
    reasoning_effort: Refused
    response_format: Refused

    @field_validator("tool_choice")
    @classmethod
    def _among_tools(cls, value: Choice, info: ValidationInfo) -> Choice:
        if value is None or value in ("none", "auto") or "tools" not in info.data:
            return value
        known = {tool.name for tool in info.data["tools"] or ()}
        if not known:
            raise PydanticCustomError(
                NO_CODE, "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
            )
        for where, name in _named(value):
            if name not in known:
                raise PydanticCustomError(
                    "invalid_value",
                    "Invalid value for '{param}': '{name}' is not among the names in 'tools'.",
                    {"param": where, "name": name},
                )
        return value

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer carries log probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def output_limit(self) -> tuple[int, str] | None:
        """Return the limit and its name; None if there is none."""
        return None if self.max_output_tokens is None else (self.max_output_tokens, "max_output_tokens")

    def end_user(self) -> tuple[str, str] | None:
        """Return who the end user is and the name under which the caller said so; None if nothing was said."""
        if self.safety_identifier is not None:
            return self.safety_identifier, "safety_identifier"
        return super().end_user()

    def constraints(self) -> Iterator[tuple[str, sampling_pb2.OutputConstraint]]:
        """Yield every constraint that was asked for, with the JSON name of the member that did."""
        constraint = self.text.constraint() if self.text else None
        if constraint is not None:
            yield "text.format", constraint
        yield from super().constraints()

    def constraint_names(self) -> Mapping[str, str]:
        """Return how this request spells the contract's paths of its constraint."""
        names = super().constraint_names()
        is_schema = names.get("constraint.json_schema") == "text.format"
        return {**names, "constraint.json_schema": "text.format.schema"} if is_schema else names

    def to_proto(self, tools: ToolOffer) -> tuple[gen.GenerateRequest, Conversation]:
        """Return the request of the contract, and where its messages came from."""
        user = self.end_user()
        request = gen.GenerateRequest(
            model=self.model,
            sampling=self.sampling_to_proto(),
            stop=self.stop_to_proto(),
            output=gen.OutputOptions(
                logprobs=self.wants_logprobs, top_logprobs=(self.top_logprobs or 0) if self.wants_logprobs else None
            ),
            constraint=self.constraint_to_proto(),
            priority=self.priority(),
            end_user=None if user is None else user[0],
        )
        chat = request.chat
        conversation = Conversation(chat.messages)
        conversation.take(self.instructions, self.input)
        tools.add_to(chat)
        self.add_template_args(chat)
        if self.parallel_tool_calls is not None:
            chat.parallel_tool_calls = self.parallel_tool_calls
        if self.reasoning is not None and self.reasoning.effort is not None:
            chat.reasoning_effort = reasoning_efforts[self.reasoning.effort]
        return request, conversation

    def echo(self, service_tier: str) -> str:
        """Return the members that the response repeats as JSON text; what the caller left to the model is null."""
        reasoning = self.reasoning or ReasoningOptions.model_construct()
        choice = self.tool_choice
        plain = {
            "background": bool(self.background),
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "safety_identifier": self.safety_identifier,
            "service_tier": service_tier,
            "temperature": self.temperature,
            "tool_choice": choice.model_dump() if isinstance(choice, RequestModel) else choice or "auto",
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }
        text = self.text.document() if self.text else TextOptions().document()
        tools = ",".join(tool.document() for tool in self.tools or ())
        return f'{json.dumps(plain, separators=(",", ":"))[1:-1]},"text":{text},"tools":[{tools}]'


def _named(choice: Choice) -> Iterator[tuple[str, str]]:
    if isinstance(choice, ChosenFunction):
        yield "tool_choice.name", choice.name
    elif isinstance(choice, AllowedFunctions):
        for at, tool in enumerate(choice.tools):
            yield f"tool_choice.tools[{at}].name", tool.name
