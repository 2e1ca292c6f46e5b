"""Strict schemas of what OpenAI documents for chunks, answers and errors: no member more, no null where none belongs.

Written from the API reference and not from the gateway's own document, so
that the two can be held against each other.
"""

from __future__ import annotations

from typing import Any, Final

from jsonschema import Draft202012Validator

__all__ = ["CHAT_ANSWER", "CHAT_CHUNK", "COMPLETION_ANSWER", "COMPLETION_CHUNK", "ERROR"]

Schema = dict[str, Any]

_STRING: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_NUMBER: Final[Schema] = {"type": "number", "maximum": 0}
_NULL: Final[Schema] = {"type": "null"}


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    """Return the schema of an object with these members and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": sorted(required),
        "additionalProperties": False,
    }


def _validator(required: Schema, optional: Schema | None = None) -> Draft202012Validator:
    """Return what checks documents against such an object."""
    schema = _object(required, optional)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _array(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL]}


_USAGE: Final = _object(
    {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
    {
        "prompt_tokens_details": _object({}, {"cached_tokens": _COUNT}),
        "completion_tokens_details": _object({}, {"reasoning_tokens": _COUNT}),
    },
)
_TOKEN: Final[Schema] = {"token": _STRING, "logprob": _NUMBER, "bytes": _or_null(_array({"type": "integer"}))}
_CHAT_LOGPROBS: Final = _object(
    {"content": _array(_object({**_TOKEN, "top_logprobs": _array(_object(_TOKEN))}), minItems=1), "refusal": _NULL}
)
_COLUMNS: Final = _object(
    {
        "tokens": _array(_STRING, minItems=1),
        "token_logprobs": _array(_or_null(_NUMBER)),
        "top_logprobs": _or_null(_array(_or_null({"type": "object", "additionalProperties": _NUMBER}))),
        "text_offset": _array(_COUNT),
    }
)
_CHAT_REASON: Final[Schema] = {"enum": ["stop", "length", "tool_calls", "content_filter"]}
_TEXT_REASON: Final[Schema] = {"enum": ["stop", "length", "content_filter"]}
_CALL_PART: Final = _object(
    {"index": _COUNT},
    {
        "id": {"type": "string", "minLength": 1},
        "type": {"const": "function"},
        "function": _object({}, {"name": {"type": "string", "minLength": 1}, "arguments": _STRING}),
    },
)
_DELTA: Final = _object(
    {},
    {
        "role": {"const": "assistant"},
        # Null where the first delta opens a message of tool calls or of reasoning.
        "content": _or_null(_STRING),
        "refusal": _NULL,
        "reasoning_content": _STRING,
        "tool_calls": _array(_CALL_PART, minItems=1),
    },
)
_CALL: Final = _object(
    {
        "id": {"type": "string", "minLength": 1},
        "type": {"const": "function"},
        "function": _object({"name": {"type": "string", "minLength": 1}, "arguments": _STRING}),
    }
)
_MESSAGE: Final = _object(
    {"role": {"const": "assistant"}, "content": _or_null(_STRING)},
    {
        "refusal": _NULL,
        "reasoning_content": _STRING,
        "tool_calls": _array(_CALL, minItems=1),
        "annotations": {"type": "array", "maxItems": 0},
    },
)


def _document(kind: str, id_prefix: str, choice: Schema, usage: Schema) -> Draft202012Validator:
    return _validator(
        {
            "id": {"type": "string", "pattern": f"^{id_prefix}."},
            "object": {"const": kind},
            "created": {"type": "integer", "minimum": 1_600_000_000},
            "model": {"type": "string", "minLength": 1},
            "choices": _array(choice),
        },
        {
            "system_fingerprint": {"type": "string", "minLength": 1},
            "service_tier": _STRING,
            "usage": usage,
            # Headrace's own, beside the usage.
            "timing": {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}},
        },
    )


def _choice(body: Schema, logprobs: Schema, reason: Schema) -> Schema:
    return _object({"index": _COUNT, **body, "logprobs": _or_null(logprobs), "finish_reason": reason})


CHAT_CHUNK: Final = _document(
    "chat.completion.chunk",
    "chatcmpl-",
    _choice({"delta": _DELTA}, _CHAT_LOGPROBS, _or_null(_CHAT_REASON)),
    _or_null(_USAGE),
)
CHAT_ANSWER: Final = _document(
    "chat.completion", "chatcmpl-", _choice({"message": _MESSAGE}, _CHAT_LOGPROBS, _CHAT_REASON), _USAGE
)
COMPLETION_CHUNK: Final = _document(
    "text_completion", "cmpl-", _choice({"text": _STRING}, _COLUMNS, _or_null(_TEXT_REASON)), _or_null(_USAGE)
)
COMPLETION_ANSWER: Final = _document(
    "text_completion", "cmpl-", _choice({"text": _STRING}, _COLUMNS, _TEXT_REASON), _USAGE
)
ERROR: Final = _validator(
    {
        "error": _object(
            {
                "message": {"type": "string", "minLength": 1},
                "type": _STRING,
                "param": _or_null(_STRING),
                "code": _or_null(_STRING),
            }
        )
    }
)
