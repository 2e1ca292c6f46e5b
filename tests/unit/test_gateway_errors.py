"""The tables from status and reason to what an HTTP caller is told."""

import json

import grpc
import pytest

from gateway.openai.errors import ApiError, by_reason, by_status, from_upstream, internal
from headrace.v1 import error_reason_pb2

REASONS = {name.removeprefix("ERROR_REASON_") for name, _ in error_reason_pb2.ErrorReason.items()} - {"UNSPECIFIED"}


def test_every_reason_of_the_contract_has_an_outcome() -> None:
    assert by_reason.keys() == REASONS


def test_every_grpc_status_has_an_outcome() -> None:
    assert by_status.keys() == {code.name for code in grpc.StatusCode} - {"OK"}


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_answer_says_whether_to_repeat_it(reason: str) -> None:
    error = from_upstream("INTERNAL", reason, "text")
    assert error.headers()["x-should-retry"] in {"true", "false"}
    assert error.should_retry is (by_reason[reason].should_retry)
    assert json.loads(error.document())["error"].keys() == {"message", "type", "param", "code"}


def test_what_would_run_a_generation_twice_is_not_to_be_repeated() -> None:
    for reason in ("DEADLINE_IN_DECODE", "BACKEND_ERROR", "CONSUMER_TOO_SLOW", "INTERNAL"):
        assert not by_reason[reason].should_retry
    for status in ("DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL", "CANCELLED", "RESOURCE_EXHAUSTED"):
        assert not by_status[status].should_retry


def test_a_limit_of_a_newer_service_is_429() -> None:
    assert from_upstream("RESOURCE_EXHAUSTED", "SOME_NEW_LIMIT", "Slow down.").http_status == 429
    assert from_upstream("RESOURCE_EXHAUSTED", None, "Received message larger than max").http_status == 413


def test_an_unknown_status_is_a_server_error() -> None:
    assert from_upstream("NEVER_HEARD_OF", None, "x").http_status == 500


def test_a_text_passes_only_with_a_reason() -> None:
    assert from_upstream("UNAVAILABLE", "DRAINING", "Going away.").message == "Going away."
    assert "10.0.0.1" not in from_upstream("UNAVAILABLE", None, "connect 10.0.0.1").message


def test_retry_delays_are_rounded_up() -> None:
    headers = from_upstream("UNAVAILABLE", "DRAINING", "x", retry_after_s=0.0301).headers()
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "31")


def test_401_says_how_to_authenticate() -> None:
    assert from_upstream("UNAUTHENTICATED", None, "").headers()["www-authenticate"] == "Bearer"


def test_an_error_reads_well_in_a_log() -> None:
    assert str(internal()).startswith("500 server_error: ")
    assert isinstance(internal(), ApiError)
