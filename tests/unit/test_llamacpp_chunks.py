"""llama.cpp's chunks to engine items. The chunks are as the library sent them, cut to what matters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.backends.base import EngineFinish, EngineFinished, EngineOutput, EngineStarted
from service.backends.llamacpp.chunks import ChunkReader
from service.core.errors import Reason, ServiceError
from service.core.events import TokenLogprob, TopLogprob


def reader(alternatives: int | None = None, *, token_ids: bool = False, max_output_tokens: int = 10) -> ChunkReader:
    return ChunkReader(max_output_tokens=max_output_tokens, alternatives=alternatives, token_ids=token_ids)


def chunk(text: str = "", *, predicted: int = 1, finish: str | None = None, **more: Any) -> bytes:
    choice = {"text": text, "index": 0, "logprobs": more.pop("logprobs", None), "finish_reason": finish}
    timings = {"prompt_ms": 12.5, "predicted_n": predicted, "predicted_ms": 40.0}
    return json.dumps({"choices": [choice], "timings": timings, **more}).encode()


def progress(total: int, cache: int, processed: int) -> bytes:
    told = {"total": total, "cache": cache, "processed": processed, "time_ms": 1}
    choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": None}
    return json.dumps({"choices": [choice], "prompt_progress": told}).encode()


def usage(output: int) -> dict[str, Any]:
    return {"completion_tokens": output, "prompt_tokens": 13, "prompt_tokens_details": {"cached_tokens": 8}}


DETAILS = {
    "content": [
        {
            "id": 7,
            "token": "é",
            "bytes": [195, 169],
            "logprob": -0.5,
            "top_logprobs": [
                {"id": 7, "token": "é", "bytes": [195, 169], "logprob": -0.5},
                {"id": 8, "token": "x", "bytes": [120], "logprob": -3.4e38},
            ],
        }
    ]
}


def test_the_first_progress_starts_the_run_and_later_ones_are_only_signs_of_life() -> None:
    read = reader().read
    assert read(progress(100, 8, 8)) == (EngineStarted(prompt_tokens=100, cached_prompt_tokens=8),)
    assert read(progress(100, 8, 40)) == ()


def test_text_is_bytes_and_counts_what_the_engine_counted() -> None:
    read = reader().read
    assert read(chunk("a", predicted=1)) == (EngineOutput(b"a", 1),)
    # Three tokens ended inside the character.
    assert read(chunk("\U0001fae8", predicted=5)) == (EngineOutput("\U0001fae8".encode(), 4),)


def test_ids_and_logprobs_come_only_if_asked_for() -> None:
    both = chunk("é", logprobs=DETAILS)
    assert reader(None, token_ids=True).read(both) == (EngineOutput("é".encode(), 1, (7,)),)
    bare = TokenLogprob(7, -0.5, "é".encode())
    assert reader(0).read(both) == (EngineOutput("é".encode(), 1, (), (bare,)),)


def test_a_probability_of_zero_is_a_finite_number() -> None:
    (output,) = reader(2).read(chunk("é", logprobs=DETAILS))
    assert isinstance(output, EngineOutput)
    assert output.logprobs[0].top == (TopLogprob(7, -0.5, "é".encode()), TopLogprob(8, -9999.0, b"x"))
    never = {"content": [{**DETAILS["content"][0], "logprob": None, "top_logprobs": []}]}
    (output,) = reader(0).read(chunk("é", logprobs=never))
    assert isinstance(output, EngineOutput)
    assert output.logprobs[0].logprob == -9999.0


@pytest.mark.parametrize(
    ("finish", "output_tokens", "reason"),
    [("stop", 3, EngineFinish.STOP), ("length", 10, EngineFinish.LENGTH), ("length", 9, EngineFinish.CONTEXT_LENGTH)],
)
def test_the_end_tells_why_and_how_much(finish: str, output_tokens: int, reason: EngineFinish) -> None:
    read = reader().read
    read(chunk("a", predicted=output_tokens))
    assert read(chunk(finish=finish, predicted=output_tokens, usage=usage(output_tokens))) == (
        EngineFinished(
            reason=reason,
            prompt_tokens=13,
            cached_prompt_tokens=8,
            output_tokens=output_tokens,
            engine_prefill_s=0.0125,
            engine_decode_s=0.04,
        ),
    )


def test_tokens_that_never_came_as_text_are_counted_at_the_end() -> None:
    read = reader().read
    read(chunk("a", predicted=1))
    items = read(chunk(finish="length", predicted=3, usage=usage(3)))
    assert items[0] == EngineOutput(b"", 2)
    assert isinstance(items[1], EngineFinished)


@pytest.mark.parametrize(
    ("error", "reason", "field"),
    [
        (
            {"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8},
            Reason.CONTEXT_LENGTH_EXCEEDED,
            None,
        ),
        (
            {"message": "Failed to initialize samplers: failed to parse grammar", "type": "invalid_request_error"},
            Reason.INVALID_FIELD,
            "constraint.grammar",
        ),
        (
            {"message": '"json_schema": bad', "type": "invalid_request_error"},
            Reason.INVALID_FIELD,
            "constraint.json_schema",
        ),
        (
            {"message": "Prompt contains invalid tokens", "type": "invalid_request_error"},
            Reason.INVALID_FIELD,
            "tokens.ids",
        ),
        ({"message": "loading", "type": "unavailable_error"}, Reason.BACKEND_UNAVAILABLE, None),
        ({"message": "/secret/path", "type": "server_error"}, Reason.BACKEND_ERROR, None),
        ({"message": "something new", "type": "invalid_request_error"}, Reason.BACKEND_ERROR, None),
    ],
)
def test_every_error_has_a_reason(error: dict[str, Any], reason: Reason, field: str | None) -> None:
    with pytest.raises(ServiceError) as caught:
        reader().read(json.dumps({"error": error}).encode())
    assert caught.value.reason is reason
    assert [violation.field for violation in caught.value.violations] == ([field] if field else [])
    assert "secret" not in caught.value.message


def test_a_prompt_that_is_too_long_tells_both_numbers() -> None:
    error = {"type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8}
    with pytest.raises(ServiceError, match=r"9 tokens.*8 tokens") as caught:
        reader().read(json.dumps({"error": error}).encode())
    assert caught.value.metadata == {"promptTokens": "9", "maxContextTokens": "8"}


def test_after_output_the_request_cannot_be_at_fault() -> None:
    read = reader().read
    read(chunk("a"))
    with pytest.raises(ServiceError) as caught:
        read(json.dumps({"error": {"type": "exceed_context_size_error"}}).encode())
    assert caught.value.reason is Reason.BACKEND_ERROR
