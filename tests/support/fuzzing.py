"""Requests that nobody would write on purpose, made from ones that somebody would; the same for the same seed.

Three kinds: a valid document with members changed, a document's bytes damaged,
and odd HTTP around it. It knows the shapes of the API, and nothing of how it
is served.
"""

# ruff: noqa: E501, SIM905 - tables of words, read better when they are dense
from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["FuzzedRequest", "fuzzed"]

_WEATHER: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_BIG: Final = "x" * 3000
_EVIL: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 3, 0.5, -0.0, 1e308, -1e-308, 2**31, 2**31 - 1, -(2**31), 2**63, 2**64, 10**40, "", " ",
    "a", "\u0000", "\ud800", "😸", "聪明", "null", "[DONE]", "data: x\n\n", "<|im_end|>", "<tool_call>", "{", '{"a":1}',
    _BIG, [], [[]], [None], ["a"], [1], [-1], ["a", 1], [{}], {}, {"type": "x"}, {"a": {"b": [1, {"c": None}]}},
    {"": ""}, {"type": "function"}, {"type": "text", "text": "hi"}, {"1": 5}, {"-1": 5}, {"99999999": 1},
)  # fmt: skip
_NAMES: Final = (
    "model messages prompt input stream stream_options n best_of temperature top_p top_k min_p max_tokens "
    "max_completion_tokens max_output_tokens stop seed logit_bias logprobs top_logprobs response_format tools tool_choice "
    "parallel_tool_calls reasoning_effort reasoning text metadata user safety_identifier service_tier store echo suffix "
    "functions function_call modalities audio chat_template_kwargs guided_json guided_regex guided_choice guided_grammar "
    "structured_outputs instructions include truncation previous_response_id background presence_penalty "
    "frequency_penalty repetition_penalty min_tokens ignore_eos stop_token_ids bad_words tokens add_special_tokens role "
    "content name tool_calls tool_call_id refusal type id function arguments parameters strict schema json_schema "
    "include_usage format effort foo __proto__ $ref"
).split()
_TOOL: Final = {"type": "function", "function": {"name": "f", "description": "d", "parameters": _WEATHER}}
_MESSAGES: Final = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "result"},
    {"role": "user", "content": "and now?"},
]
_SEEDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}),
    (
        "/v1/chat/completions",
        {
            "messages": _MESSAGES, "max_completion_tokens": 4, "stream": True, "stream_options": {"include_usage": True},
            "n": 2, "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["END", "\n\n\n"], "logprobs": True,
            "top_logprobs": 2, "logit_bias": {"5": -3}, "presence_penalty": 0.1, "frequency_penalty": 0.2, "user": "u",
            "metadata": {"a": "b"}, "service_tier": "flex", "reasoning_effort": "low",
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": _MESSAGES, "max_tokens": 4, "tools": [_TOOL], "tool_choice": "auto", "parallel_tool_calls": False,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _WEATHER, "strict": True}},
        },
    ),
    ("/v1/completions", {"prompt": "once", "max_tokens": 3}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2, "stream": True, "echo": True, "n": 2}),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2, "logprobs": 2, "best_of": 2, "stop": "x"}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ],
            "instructions": "Be brief.", "max_output_tokens": 16, "stream": True, "reasoning": {"effort": "low"},
            "tools": [{"type": "function", "name": "f", "parameters": _WEATHER}], "text": {"format": {"type": "text"}},
        },
    ),
    ("/v1/tokenize", {"prompt": "hello there"}),
    ("/v1/tokenize", {"messages": _MESSAGES}),
    ("/v1/detokenize", {"tokens": [1, 2, 3]}),
)  # fmt: skip
_PATHS: Final = (
    "/", "/v1", "/v1/models", "/v1/models/default", "/v1/models/no/such", "/v1/embeddings", "/healthz", "/readyz",
    "/v1/chat/completions/", "//v1/chat/completions", "/v1/%00", "/openapi.json", "/v1/responses/resp_1", "/v1/files",
)  # fmt: skip
_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")
_HEADERS: Final[tuple[dict[str, str], ...]] = (
    {"content-type": "text/plain"}, {"content-type": "application/json; charset=utf-8"}, {"content-type": "APPLICATION/JSON"},
    {"authorization": "Bearer None"}, {"authorization": "Basic eDp5"}, {"authorization": "\xff\xfe"},
    {"x-request-id": "a b"}, {"x-request-id": "x" * 500}, {"request-timeout-ms": "0"}, {"request-timeout-ms": "abc"},
    {"request-timeout-ms": "9" * 30}, {"accept": "text/html"}, {"accept-encoding": "gzip, br"}, {"content-encoding": "gzip"},
    {"origin": "http://localhost"}, {"traceparent": "00-zz"}, {"x-stainless-read-timeout": "nan"},
    {"expect": "100-continue"}, {"connection": "close"}, {"range": "bytes=0-1"}, {"if-none-match": "*"},
)  # fmt: skip


@dataclass(slots=True)
class FuzzedRequest:
    """One request. `leaves_after` is None, or the number of reads after which the client goes away."""

    method: str
    path: str
    body: bytes | None
    headers: dict[str, str] = field(default_factory=dict)
    leaves_after: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.method} {self.path} {self.headers} {(self.body or b'')[:2000]!r} leaves after {self.leaves_after}"
        )


def fuzzed(seed: int) -> FuzzedRequest:
    """Return the request of this number."""
    chance = random.Random(seed)
    if chance.random() < 0.05:
        return FuzzedRequest(chance.choice(_METHODS), chance.choice(_PATHS), None, dict(chance.choice(_HEADERS)))
    path, document = chance.choice(_SEEDS)
    document = {"model": "default", **copy.deepcopy(document)}
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        _change(document, chance)
    body = json.dumps(document).encode()
    if chance.random() < 0.1:
        body = _damaged(body, chance)
    request = FuzzedRequest("POST", path, body)
    if chance.random() < 0.1:
        request.headers = dict(chance.choice(_HEADERS))
    if chance.random() < 0.02:
        request.method = chance.choice(_METHODS)
    if chance.random() < 0.03:
        request.leaves_after = chance.randrange(4)
    return request


def _change(document: dict[str, Any], chance: random.Random) -> None:
    """Change one place somewhere in the document."""
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [document]
    while stack:
        node = stack.pop()
        keys = node.keys() if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                stack.append(node[key])
    if not places:
        return
    parent, key = chance.choice(places)
    match chance.randrange(6):
        case 0 | 1:
            parent[key] = copy.deepcopy(chance.choice(_EVIL))
        case 2:
            del parent[key]
        case 3:
            document[chance.choice(_NAMES)] = copy.deepcopy(chance.choice(_EVIL))
        case 4:
            target = parent if isinstance(parent, dict) else document
            target[chance.choice(_NAMES)] = copy.deepcopy(chance.choice(_EVIL))
        case _:
            if isinstance(parent, list):
                parent *= chance.choice((2, 3, 40))
            else:
                parent[key] = [copy.deepcopy(parent[key])]


def _damaged(body: bytes, chance: random.Random) -> bytes:
    match chance.randrange(5):
        case 0:
            return body[: chance.randrange(len(body))]
        case 1:
            at = chance.randrange(len(body))
            return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
        case 2:
            return b"[" * chance.choice((10, 3000, 20_000)) + body
        case 3:
            return body + chance.choice((b",", b"}", b"\x00", b" " * 9000, body))
        case _:
            return chance.choice((b"", b"null", b"[]", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf" + body, b"1e999"))
