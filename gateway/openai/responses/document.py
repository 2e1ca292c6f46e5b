"""The response object: one document for the end of a stream, its beginning, and a whole answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.openai.errors import ApiError
from gateway.openai.usage import timing_document
from headrace.v1 import usage_pb2

__all__ = ["ResponseHead", "ResponseStatus", "failure_document", "response_id", "usage_document"]

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
_NOTHING_STORED: Final = {"previous_response_id": None, "store": False}


def response_id(generation_id: str) -> str:
    """Return the id of the response that a generation is."""
    return f"resp_{generation_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """What is the same in every document of one response. `echo` is the request's own members as JSON text."""

    generation_id: str
    created_s: int
    model: str
    echo: str

    def document(
        self,
        status: ResponseStatus,
        output: str = "[]",
        *,
        error: dict[str, Any] | None = None,
        incomplete_because: str | None = None,
        native_finish_reason: str | None = None,
        usage: usage_pb2.Usage | None = None,
        timing: usage_pb2.Timing | None = None,
    ) -> str:
        """Return the response as JSON text; `output` is the array of its items."""
        top: dict[str, Any] = {
            "id": response_id(self.generation_id),
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "completed_at": self._completed_at(status, timing),
            "error": error,
            "incomplete_details": None if incomplete_because is None else {"reason": incomplete_because},
            "model": self.model,
            **_NOTHING_STORED,
        }
        end: dict[str, Any] = {}
        if native_finish_reason is not None:
            end["native_finish_reason"] = native_finish_reason
        end["usage"] = usage_document(usage)
        if timing is not None:
            end["timing"] = timing_document(timing)
        return f'{_text(top)[:-1]},{self.echo},"output":{output},{_text(end)[1:]}'

    def _completed_at(self, status: ResponseStatus, timing: usage_pb2.Timing | None) -> int | None:
        # Both times are the service's own.
        if status != "completed" or timing is None:
            return None
        return self.created_s + round(timing.total_duration.ToTimedelta().total_seconds())


def failure_document(error: ApiError) -> dict[str, Any]:
    """Return the `error` member, whose API has few words for what went wrong."""
    if error.http_status == 429:
        code = "rate_limit_exceeded"
    else:
        # 499 is a call that was cancelled.
        code = "invalid_prompt" if error.http_status < 499 else "server_error"
    return {"code": code, "message": error.message}


def usage_document(usage: usage_pb2.Usage | None) -> dict[str, Any] | None:
    """Return the `usage` member; None if a total is unknown.

    The details are required by the API: a part that the engine does not tell
    apart counts as 0 there.
    """
    if usage is None or not (usage.HasField("prompt_token_count") and usage.HasField("output_token_count")):
        return None
    return {
        "input_tokens": usage.prompt_token_count,
        "input_tokens_details": {"cached_tokens": usage.cached_prompt_token_count, "cache_write_tokens": 0},
        "output_tokens": usage.output_token_count,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_token_count},
        "total_tokens": usage.prompt_token_count + usage.output_token_count,
    }


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
