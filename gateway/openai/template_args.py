"""Further variables for a chat template: an extension of every request that is a conversation."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from gateway.openai.base import RequestModel
from gateway.openai.json_values import least_size, struct_from_json
from headrace.v1 import chat_pb2

__all__ = ["TemplateFields"]

# Variables of a template are switches and small tables.
MAX_TEMPLATE_ARGS: Final = 64
MAX_TEMPLATE_ARGS_BYTES: Final = 16 * 1024


class TemplateFields(RequestModel):
    """The member that carries them."""

    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="Extension. Further variables for the chat template."
    )

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _small(cls, value: Any) -> Any:
        if isinstance(value, dict) and (
            len(value) > MAX_TEMPLATE_ARGS
            or least_size(value, MAX_TEMPLATE_ARGS_BYTES) > MAX_TEMPLATE_ARGS_BYTES
            or len(json.dumps(value, ensure_ascii=False).encode()) > MAX_TEMPLATE_ARGS_BYTES
        ):
            raise PydanticCustomError(
                "invalid_value",
                "Invalid 'chat_template_kwargs': expected at most {members} members and {size} bytes of JSON.",
                {"members": MAX_TEMPLATE_ARGS, "size": MAX_TEMPLATE_ARGS_BYTES},
            )
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def _representable(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            try:
                struct_from_json(value)
            except ValueError as error:
                raise PydanticCustomError(
                    "invalid_value", "Invalid 'chat_template_kwargs': {problem}", {"problem": str(error)}
                ) from error
        return value

    def add_template_args(self, chat: chat_pb2.ChatInput) -> None:
        """Put the variables into `chat`, if there are any."""
        if self.chat_template_kwargs:
            chat.template_args.CopyFrom(struct_from_json(self.chat_template_kwargs))
