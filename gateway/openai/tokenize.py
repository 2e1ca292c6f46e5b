"""The bodies of tokenize and detokenize: requests, answers, and their translation to the contract.

The shapes are those that other servers of open models have. A conversation is
read as a chat completion request, so that its tokens are those that the chat
endpoint would send to the model. It knows neither grpc nor the web framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gateway.openai.base import RequestModel
from gateway.openai.bodies import BodySchema
from gateway.openai.errors import ApiError, Naming, invalid_request
from gateway.openai.fields import INT32_MAX
from gateway.openai.messages import MAX_MESSAGES
from gateway.openai.parameters import Unserved
from gateway.openai.requests import Endpoint, parse
from headrace.v1 import chat_pb2, tokenize_pb2

__all__ = [
    "DetokenizeAnswer",
    "DetokenizeRequest",
    "TokenizeAnswer",
    "TokenizeCall",
    "TokenizeRequest",
    "no_tokenizer",
    "parse_detokenize",
    "parse_tokenize",
    "tokenize_document",
]

# The contract's bound.
MAX_TOKEN_IDS: Final = 2**20

_NAMES: Final[Mapping[str, str]] = {
    "model": "model",
    "input": "prompt",
    "text": "prompt",
    "skip_special_tokens": "add_special_tokens",
    "include_pieces": "return_token_strs",
    "token_ids": "tokens",
}


_Model = Annotated[str, Field(min_length=1, max_length=512, description="Model id or alias.")]


class TokenizeRequest(RequestModel):
    """POST /v1/tokenize: a text, or a chat completion request with its messages."""

    model: _Model
    prompt: str | None = Field(default=None, description="The text; may be empty.")
    messages: Annotated[list[Any], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = Field(
        default=None, description="A conversation, with tools and chat_template_kwargs as in a chat completion request."
    )
    add_special_tokens: bool | None = Field(
        default=None,
        description="Add the special tokens that begin and end a text; true if absent. A chat's template writes them.",
    )
    return_token_strs: bool | None = Field(default=None, description="Return the text of each token as well.")
    add_generation_prompt: Unserved
    continue_final_message: Unserved

    @field_validator("add_special_tokens")
    @classmethod
    def _only_for_texts(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("messages") is not None:
            raise PydanticCustomError(
                "unsupported_value",
                "Unsupported value: 'add_special_tokens' does not support true with 'messages': the chat template "
                "writes the special tokens.",
            )
        return value


class DetokenizeRequest(RequestModel):
    """POST /v1/detokenize."""

    model: _Model
    # Fail fast: an error for each of a million items would cost seconds.
    tokens: Annotated[
        list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)
    ] = Field(description="Token ids in the model's own vocabulary.")


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class TokenizeAnswer(_Answer):
    """Token ids of a text or a conversation."""

    count: int
    max_model_len: int | None = Field(description="Context window in tokens; null if it is unknown.")
    tokens: list[int]
    token_strs: list[str] | None = Field(
        description="Null unless asked for. A token that is no whole text is written as bytes:\\xNN..."
    )


class DetokenizeAnswer(_Answer):
    """The text of token ids."""

    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeCall:
    """What one tokenize request asks for: exactly one of `text` and `chat`."""

    model: str
    text: str | None
    chat: chat_pb2.ChatInput | None
    skip_special_tokens: bool
    include_pieces: bool
    naming: Naming


_TOKENIZE: Final = BodySchema(TokenizeRequest)
_DETOKENIZE: Final = BodySchema(DetokenizeRequest, ids_in="tokens")


def parse_tokenize(body: bytes) -> TokenizeCall:
    """Return what `body` asks for; ApiError (400) that names every problem if it is not a valid request."""
    asked = _TOKENIZE.read(body)
    naming = Naming(fields=_NAMES, prompt="prompt", model=asked.model)
    if (asked.prompt is None) == (asked.messages is None):
        raise _either(asked)
    chat = None
    if asked.messages is not None:
        call = parse(Endpoint.CHAT, body)
        chat = call.request.chat
        naming = Naming(fields={**call.naming.fields, **_NAMES}, prompt="messages", model=asked.model)
    return TokenizeCall(
        model=asked.model,
        text=asked.prompt,
        chat=chat,
        skip_special_tokens=asked.add_special_tokens is False and chat is None,
        include_pieces=bool(asked.return_token_strs),
        naming=naming,
    )


def parse_detokenize(body: bytes) -> tuple[DetokenizeRequest, Naming]:
    """Return what `body` asks for, and how it spells that; ApiError (400) that names every problem."""
    asked = _DETOKENIZE.read(body)
    return asked, Naming(fields=_NAMES, prompt="tokens", model=asked.model)


def no_tokenizer(model: str) -> ApiError:
    """Return the refusal (400) for a model whose tokenizer is not to be had."""
    error = invalid_request(
        f"The model `{model[:128]}` does not support tokenization: its engine keeps its tokenizer to itself, and none "
        "is configured for it.",
        param="model",
        code="unsupported_value",
    )
    error.reason = "CAPABILITY_UNSUPPORTED"
    return error


def tokenize_document(answer: tokenize_pb2.TokenizeResponse, *, with_pieces: bool) -> dict[str, Any]:
    """Return the answer to a tokenize request."""
    has_window = answer.HasField("remaining_context_tokens")
    return {
        "count": answer.token_count,
        "max_model_len": answer.token_count + answer.remaining_context_tokens if has_window else None,
        "tokens": list(answer.token_ids),
        "token_strs": [_shown(piece) for piece in answer.pieces] if with_pieces else None,
    }


def _either(asked: TokenizeRequest) -> ApiError:
    if asked.prompt is None:
        return invalid_request(
            "Missing required parameter: 'prompt' (or 'messages').", param="prompt", code="missing_required_parameter"
        )
    return invalid_request(
        "The 'messages' parameter is only allowed without 'prompt'.", param="messages", code="invalid_value"
    )


def _shown(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:  # a part of a character: as log-probs name it
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
