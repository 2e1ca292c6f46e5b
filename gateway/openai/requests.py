"""From the bytes of a request body to a request of the contract and how to answer it, or to one refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.openai.bodies import BodySchema
from gateway.openai.chat import ChatRequest
from gateway.openai.completions import CompletionPlan, CompletionRequest
from gateway.openai.errors import Naming
from gateway.openai.fields import served_tiers
from headrace.v1 import generation_pb2 as gen

__all__ = ["COMMON_NAMES", "Endpoint", "GenerationCall", "parse"]


class Endpoint(Enum):
    """The two shapes of a generation. The value is OpenTelemetry's operation name."""

    CHAT = "chat"
    COMPLETION = "text_completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall:
    """What one HTTP request asks for: the contract's request and how to answer."""

    endpoint: Endpoint
    request: gen.GenerateRequest
    stream: bool
    include_usage: bool
    naming: Naming
    # What the answer says of the tier; None if the caller did not ask for one.
    service_tier: str | None = None
    # What is run where that is more than `request`, which then says how the answer is shown.
    plan: CompletionPlan | None = None
    # Whether the generation can be joined again; the ids of its events then say which it is.
    is_retained: bool = False

    @property
    def choices(self) -> int:
        """Return how many choices end before the generation is complete."""
        if self.plan is not None:
            return self.plan.choices * len(self.plan.requests)
        return self.request.choice_count if self.request.HasField("choice_count") else 1


COMMON_NAMES: Final[Mapping[str, str]] = {
    "model": "model",
    "choice_count": "n",
    "priority": "service_tier",
    "end_user": "user",
    "idempotency_key": "Idempotency-Key",
    "retention": "Retain-For-Ms",
    "retention.retain_for": "Retain-For-Ms",
    "time_limit": "Time-Limit-Ms",
    "sampling": "sampling",
    "sampling.temperature": "temperature",
    "sampling.top_p": "top_p",
    "sampling.top_k": "top_k",
    "sampling.min_p": "min_p",
    "sampling.frequency_penalty": "frequency_penalty",
    "sampling.presence_penalty": "presence_penalty",
    "sampling.repetition_penalty": "repetition_penalty",
    "sampling.seed": "seed",
    "sampling.max_output_tokens": "max_tokens",
    "sampling.min_output_tokens": "min_tokens",
    "sampling.logit_bias": "logit_bias",
    "sampling.ignore_eos": "ignore_eos",
    "sampling.bad_words": "bad_words",
    "stop": "stop",
    "stop.sequences": "stop",
    "stop.token_ids": "stop_token_ids",
    "stop.include_in_output": "include_stop_str_in_output",
    "output": "logprobs",
    "output.logprobs": "logprobs",
    "output.top_logprobs": "top_logprobs",
    # Where it was asked for, the request says itself by which member.
    "constraint": "structured_outputs",
    "constraint.json_object": "structured_outputs.json_object",
    "constraint.json_schema": "guided_json",
    "constraint.regex": "guided_regex",
    "constraint.choice": "guided_choice",
    "constraint.grammar": "guided_grammar",
}
_CHAT_NAMES: Final[Mapping[str, str]] = {
    "input": "messages",
    "chat": "messages",
    "chat.messages": "messages",
    "constraint": "response_format",
    "constraint.json_object": "response_format",
    "constraint.json_schema": "response_format",
    "chat.tools": "tools",
    "chat.tool_choice": "tool_choice",
    "chat.tool_choice.function_name": "tool_choice.function.name",
    "chat.parallel_tool_calls": "parallel_tool_calls",
    "chat.template_args": "chat_template_kwargs",
    "chat.reasoning_effort": "reasoning_effort",
}
_COMPLETION_NAMES: Final[Mapping[str, str]] = {
    "input": "prompt",
    "prompt": "prompt",
    "tokens": "prompt",
    "tokens.ids": "prompt",
    "output.top_logprobs": "logprobs",
}


_CHAT: Final = BodySchema(ChatRequest)
_COMPLETION: Final = BodySchema(CompletionRequest, ids_in="prompt")


def parse(endpoint: Endpoint, body: bytes) -> GenerationCall:
    """Return what `body` asks for; ApiError (400) that names every problem if it is not a valid request."""
    asked = _CHAT.read(body) if endpoint is Endpoint.CHAT else _COMPLETION.read(body)
    own = _CHAT_NAMES if endpoint is Endpoint.CHAT else _COMPLETION_NAMES
    return GenerationCall(
        endpoint=endpoint,
        request=asked.to_proto(),
        stream=bool(asked.stream),
        include_usage=asked.wants_usage,
        naming=Naming(
            fields={**COMMON_NAMES, **own, **asked.names()},
            prompt="messages" if endpoint is Endpoint.CHAT else "prompt",
            model=asked.model,
        ),
        service_tier=None if asked.service_tier is None else served_tiers[asked.service_tier],
        plan=asked.plan() if isinstance(asked, CompletionRequest) else None,
    )
