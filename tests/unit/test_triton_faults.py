"""Triton's failure texts and codes, as they were seen on a real server."""

from __future__ import annotations

import grpc
import pytest

from service.backends.triton.faults import (
    fault_from_status,
    fault_from_text,
    fault_of_stream,
    is_configuration_fault,
    is_refusal,
)
from service.core.errors import Reason

TEXTS = [
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
    assert fault.metadata.keys() == {"promptTokens", "maxContextTokens"}
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
