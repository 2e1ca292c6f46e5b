"""From the bytes of a request body to a call, and how its parts are named when something is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.openai.bodies import BodySchema
from gateway.openai.errors import Naming
from gateway.openai.fields import served_tiers
from gateway.openai.requests import COMMON_NAMES, Endpoint, GenerationCall
from gateway.openai.responses.request import ResponseRequest
from gateway.openai.responses.tools import ToolOffer
from gateway.openai.responses.turns import Conversation

__all__ = ["ResponseNaming", "ResponsesCall", "parse"]

_TOOL: Final = re.compile(r"chat\.tools\[(\d+)\](?:\.function)?(.*)", re.DOTALL)
_OWN_NAMES: Final[Mapping[str, str]] = {
    "input": "input",
    "chat": "input",
    "chat.messages": "input",
    "chat.template_args": "chat_template_kwargs",
    "chat.tools": "tools",
    "chat.tool_choice": "tool_choice",
    "chat.parallel_tool_calls": "parallel_tool_calls",
    "chat.reasoning_effort": "reasoning.effort",
    "output": "include",
    "output.logprobs": "include",
    "chat.tool_choice.function_name": "tool_choice.name",
    "sampling.max_output_tokens": "max_output_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCall(GenerationCall):
    """A call whose answer is a response object; `echo` is what that repeats of the request, members as JSON text.

    A stream that is read again begins behind the event with number `starting_after`.
    """

    echo: str
    background: bool
    starting_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseNaming(Naming):
    """Names of this request: of its items, where several may be one message, and of its flat tools."""

    conversation: Conversation
    tools: Sequence[int]

    def json_name(self, path: str) -> str:
        """Return the JSON name of a contract path; the path itself if it is unknown."""
        found = _TOOL.fullmatch(path)
        if found is not None and int(found[1]) < len(self.tools):
            rest = found[2].replace(".parameters_json_schema", ".parameters", 1)
            return f"tools[{self.tools[int(found[1])]}]{rest}"
        return self.conversation.json_name(path) or Naming.json_name(self, path)


_RESPONSE: Final = BodySchema(ResponseRequest)


def parse(body: bytes) -> ResponsesCall:
    """Return what `body` asks for; ApiError (400) that names every problem if it is not a valid request."""
    asked = _RESPONSE.read(body)
    tools = ToolOffer(asked.tools or (), asked.tool_choice)
    request, conversation = asked.to_proto(tools)
    tier = served_tiers[asked.service_tier or "auto"]
    return ResponsesCall(
        endpoint=Endpoint.CHAT,
        request=request,
        stream=bool(asked.stream),
        include_usage=True,
        naming=ResponseNaming(
            fields={**COMMON_NAMES, **_OWN_NAMES, **asked.names()},
            prompt="input",
            model=asked.model,
            conversation=conversation,
            tools=tools.places,
        ),
        service_tier=tier,
        echo=asked.echo(tier),
        background=bool(asked.background),
    )
