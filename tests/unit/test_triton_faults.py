"""Triton's failure texts and codes, as they were seen on a real server."""

from __future__ import annotations

import grpc
import pytest

from service.backends.triton.faults import (
    fault_from_status,
    fault_from_text,
    fault_of_stream,
    is_configuration_fault,
    is_death,
    is_refusal,
)
from service.core.errors import Reason

TEXTS = [
    (
        "in ensemble 'ensemble', 'bad_words_list': ' the capital' is 4 tokens; words of one token are supported",
        Reason.INVALID_FIELD,
    ),
    ("bad_words is not supported by the scripted engine", Reason.INVALID_FIELD),
    ("unexpected inference input 'bad_words' for model 'ensemble'", Reason.BACKEND_ERROR),
    ("min_tokens cannot be combined with guided decoding", Reason.INVALID_FIELD),
    ("Error generating stream: structured_outputs.json does not compile: no type objekt", Reason.INVALID_FIELD),
    (
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure that",
        Reason.CONTEXT_LENGTH_EXCEEDED,
    ),
    ("This model's maximum context length is 4096 tokens. However, you requested", Reason.CONTEXT_LENGTH_EXCEEDED),
    ("Request was cancelled", Reason.BACKEND_UNAVAILABLE),
    ("Error generating stream: 'NoneType' object has no attribute 'lora_name'", Reason.BACKEND_ERROR),
    ("Request for unknown model: 'nope' is not found", Reason.BACKEND_UNAVAILABLE),
    ("Request for unknown model: 'engine' has no available versions", Reason.BACKEND_UNAVAILABLE),
    ("in ensemble 'ens', Stub process 'post_0_0' is not healthy.", Reason.BACKEND_UNAVAILABLE),
    ("[request id: mq3] Exceeds maximum queue size", Reason.BACKEND_UNAVAILABLE),
    ("in ensemble 'ensq', Request timeout expired", Reason.BACKEND_UNAVAILABLE),
    (
        "[request id: new] Server is stopping, scheduler for model has stopped accepting new inference requests",
        Reason.BACKEND_UNAVAILABLE,
    ),
    ("unexpected inference input 'foo' for model 'engine'", Reason.BACKEND_ERROR),
    (
        "[request id: a] expected number of inputs between 2 and 6 but got 1 inputs, missing required input(s) ['n'].",
        Reason.BACKEND_ERROR,
    ),
    (
        "[request id: a] unexpected shape for input 'ms' for model 'engine'. Expected [1], got [1,1]. ",
        Reason.BACKEND_ERROR,
    ),
    ("Failed to process the request(s) for model 'engine_0_0', message: RuntimeError: boom", Reason.BACKEND_ERROR),
    (
        "Executor failed process requestId 3: Prompt length (8000) exceeds maximum input length (4096). Set log level",
        Reason.CONTEXT_LENGTH_EXCEEDED,
    ),
    ("request (9001 tokens) exceeds the available context size (2048 tokens)", Reason.CONTEXT_LENGTH_EXCEEDED),
    ("Failed to initialize samplers: failed to parse grammar", Reason.INVALID_FIELD),
    ("", Reason.BACKEND_ERROR),
]


@pytest.mark.parametrize(("text", "reason"), TEXTS)
def test_every_known_text_has_its_reason_and_stays_out_of_the_message(text: str, reason: Reason) -> None:
    fault = fault_from_text(text, has_output=False)
    assert fault.reason is reason
    assert fault.detail == text
    assert not text or text not in fault.message


@pytest.mark.parametrize(("text", "reason"), [pair for pair in TEXTS if pair[1] is Reason.CONTEXT_LENGTH_EXCEEDED])
def test_a_prompt_that_is_too_long_says_by_how_much(text: str, reason: Reason) -> None:
    fault = fault_from_text(text, has_output=False)
    assert {"maxContextTokens"} <= fault.metadata.keys() <= {"promptTokens", "maxContextTokens"}
    assert is_refusal(fault)


def test_after_output_nothing_is_the_callers_fault() -> None:
    for text, _ in TEXTS:
        assert not is_refusal(fault_from_text(text, has_output=True))


def test_a_guide_that_does_not_compile_says_why_in_one_line() -> None:
    fault = fault_from_text(
        "in ensemble 'e', guided_decoding_guide of type json_schema does not compile: Invalid type: x\n  at /srv/a.py",
        has_output=False,
    )
    assert fault.violations[0].field == "constraint"
    assert "Invalid type: x" in fault.message
    assert "/srv" not in fault.message


def test_being_unavailable_says_when_to_come_back() -> None:
    fault = fault_from_text("Stub process 'a' is not healthy.", has_output=False)
    assert fault.retry_after_s is not None
    assert is_configuration_fault(fault)


@pytest.mark.parametrize(
    ("code", "details", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", Reason.BACKEND_UNAVAILABLE),
        (grpc.StatusCode.UNAVAILABLE, "Server not ready", Reason.BACKEND_UNAVAILABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Stream removed (Deadline Exceeded)", Reason.DEADLINE_IN_DECODE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max", Reason.BACKEND_ERROR),
        (grpc.StatusCode.INTERNAL, "Failed to process", Reason.BACKEND_ERROR),
        (
            grpc.StatusCode.INTERNAL,
            "Prompt length (9) exceeds maximum input length (8)",
            Reason.CONTEXT_LENGTH_EXCEEDED,
        ),
        (grpc.StatusCode.UNKNOWN, None, Reason.BACKEND_ERROR),
    ],
)
def test_a_status_is_mapped_by_its_text_and_then_by_its_code(
    code: grpc.StatusCode, details: str | None, reason: Reason
) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
    assert fault_from_status(error, has_output=False).reason is reason


def test_a_stream_against_the_protocol_is_unavailable() -> None:
    assert fault_of_stream("eof").reason is Reason.BACKEND_UNAVAILABLE


def test_what_a_server_that_is_going_lets_hang_is_the_stream_of_an_ensemble() -> None:
    going = fault_from_text("Server is stopping, scheduler for model has stopped accepting new", has_output=False)
    dead = fault_from_text("Stub process 'engine_0_0' is not healthy.", has_output=False)
    full = fault_from_text("Exceeds maximum queue size", has_output=False)
    assert [is_death(one, "ensemble") for one in (going, dead, full)] == [True, True, False]
    assert [is_death(one, "raw") for one in (going, dead, full)] == [False, True, False]
