"""The tables from status and reason to what an HTTP caller is told."""

import json

import grpc
import pytest

from gateway.openai.chat import ChatRequest
from gateway.openai.errors import ApiError, Naming, by_reason, by_status, from_upstream, internal
from gateway.openai.requests import Endpoint, parse
from headrace.v1 import error_reason_pb2

REASONS = {name.removeprefix("ERROR_REASON_") for name, _ in error_reason_pb2.ErrorReason.items()} - {"UNSPECIFIED"}


def test_every_reason_of_the_contract_has_an_outcome() -> None:
    assert by_reason.keys() == REASONS


def test_every_grpc_status_has_an_outcome() -> None:
    assert by_status.keys() == {code.name for code in grpc.StatusCode} - {"OK"}


# What a status and a reason become: HTTP status, type, code, whether the SDKs may repeat the request.
INVALID, SERVER, BUSY = "invalid_request_error", "server_error", "service_unavailable_error"
ROWS = [
    ("CANCELLED", None, 499, SERVER, "cancelled", False),
    ("UNKNOWN", None, 500, SERVER, None, False),
    ("INVALID_ARGUMENT", "INVALID_FIELD", 400, INVALID, "invalid_value", False),
    ("INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED", 400, INVALID, "context_length_exceeded", False),
    ("INVALID_ARGUMENT", None, 400, INVALID, None, False),
    ("DEADLINE_EXCEEDED", "DEADLINE_IN_DECODE", 504, SERVER, "deadline_exceeded", False),
    ("DEADLINE_EXCEEDED", "DEADLINE_TOO_SHORT", 504, SERVER, "deadline_exceeded", False),
    ("DEADLINE_EXCEEDED", "DEADLINE_IN_QUEUE", 504, SERVER, "deadline_exceeded", True),
    ("DEADLINE_EXCEEDED", None, 504, SERVER, "deadline_exceeded", False),
    ("NOT_FOUND", "MODEL_NOT_FOUND", 404, INVALID, "model_not_found", False),
    ("NOT_FOUND", "GENERATION_NOT_FOUND", 404, INVALID, "generation_not_found", False),
    ("ALREADY_EXISTS", "IDEMPOTENCY_MISMATCH", 422, INVALID, "idempotency_key_reused", False),
    ("PERMISSION_DENIED", "PERMISSION_DENIED", 403, "permission_error", None, False),
    ("PERMISSION_DENIED", None, 403, "permission_error", None, False),
    ("UNAUTHENTICATED", "UNAUTHENTICATED", 401, INVALID, "invalid_api_key", False),
    ("UNAUTHENTICATED", None, 401, INVALID, "invalid_api_key", False),
    ("RESOURCE_EXHAUSTED", "RATE_LIMITED", 429, "requests", "rate_limit_exceeded", True),
    ("RESOURCE_EXHAUSTED", "QUOTA_EXHAUSTED", 429, "insufficient_quota", "insufficient_quota", False),
    ("RESOURCE_EXHAUSTED", "QUEUE_FULL", 503, BUSY, "server_is_overloaded", True),
    ("RESOURCE_EXHAUSTED", "QUEUE_TIMEOUT", 503, BUSY, "queue_timeout", True),
    ("RESOURCE_EXHAUSTED", "CONSUMER_TOO_SLOW", 503, BUSY, "consumer_too_slow", False),
    ("RESOURCE_EXHAUSTED", None, 413, INVALID, "request_too_large", False),
    ("FAILED_PRECONDITION", "CAPABILITY_UNSUPPORTED", 400, INVALID, "unsupported_parameter", False),
    ("FAILED_PRECONDITION", None, 400, INVALID, None, False),
    ("ABORTED", None, 409, SERVER, None, False),
    ("OUT_OF_RANGE", "REPLAY_EXPIRED", 410, INVALID, "replay_expired", False),
    ("UNIMPLEMENTED", None, 501, SERVER, "not_implemented", False),
    ("INTERNAL", "INTERNAL", 500, SERVER, None, False),
    ("INTERNAL", None, 500, SERVER, None, False),
    ("INTERNAL", "BACKEND_ERROR", 500, SERVER, "backend_error", False),
    ("UNAVAILABLE", "MODEL_NOT_READY", 503, BUSY, "model_not_ready", True),
    ("UNAVAILABLE", "DRAINING", 503, BUSY, "draining", True),
    ("UNAVAILABLE", "GENERATION_LOST", 503, SERVER, "generation_lost", False),
    ("UNAVAILABLE", "STORE_UNAVAILABLE", 503, BUSY, "store_unavailable", True),
    ("UNAVAILABLE", "BACKEND_UNAVAILABLE", 503, BUSY, "backend_unavailable", True),
    ("UNAVAILABLE", "FIRST_TOKEN_TIMEOUT", 504, SERVER, "first_token_timeout", False),
    ("UNAVAILABLE", "TOKEN_GAP_TIMEOUT", 504, SERVER, "token_gap_timeout", False),
    ("UNAVAILABLE", None, 503, BUSY, None, True),
    ("DATA_LOSS", None, 500, SERVER, None, False),
]


@pytest.mark.parametrize(("status", "reason", "http", "kind", "code", "may_repeat"), ROWS)
def test_every_row_of_the_table(
    status: str, reason: str | None, http: int, kind: str, code: str | None, may_repeat: bool
) -> None:
    error = from_upstream(status, reason, "text", retry_after_s=2)
    assert (error.http_status, error.type, error.code, error.should_retry) == (http, kind, code, may_repeat)
    told = json.loads(error.document())["error"]
    assert told == {"message": error.message, "type": kind, "param": None, "code": code}
    headers = error.headers()
    assert headers["x-should-retry"] == ("true" if may_repeat else "false")
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "2000")


def test_the_table_has_a_row_for_every_status_and_every_reason() -> None:
    assert {row[0] for row in ROWS} == by_status.keys()
    assert {row[1] for row in ROWS} - {None} >= REASONS - {"MODEL_NOT_FOUND"}


@pytest.mark.parametrize("reason", ["BACKEND_UNAVAILABLE", "DRAINING"])
def test_what_failed_after_output_is_not_to_be_repeated(reason: str) -> None:
    before = from_upstream("UNAVAILABLE", reason, "text")
    after = from_upstream("UNAVAILABLE", reason, "text", metadata={"lastSequence": "7"})
    assert (before.should_retry, after.should_retry) == (True, False)
    assert after.http_status == before.http_status


def test_a_deadline_that_the_load_cannot_meet_is_explained_in_the_words_of_the_service() -> None:
    text = "The deadline leaves 40 ms, and a slot is not to be expected before 900 ms."
    metadata = {"remainingMs": "40", "queueMs": "900", "firstTokenMs": "50"}
    error = from_upstream("DEADLINE_EXCEEDED", "DEADLINE_TOO_SHORT", text, metadata=metadata)
    assert (error.http_status, error.message, error.should_retry) == (504, text, False)


def chat_naming(**members: object) -> Naming:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **members}
    return parse(Endpoint.CHAT, json.dumps(body).encode()).naming


def test_what_a_model_cannot_do_is_told_in_openais_words_and_once() -> None:
    found = [("output.logprobs", "not supported by model 'm'"), ("output.top_logprobs", "not supported by model 'm'")]
    naming = chat_naming(logprobs=True, top_logprobs=2)
    error = from_upstream("FAILED_PRECONDITION", "CAPABILITY_UNSUPPORTED", "", naming=naming, violations=found)
    assert error.message == (
        "Unsupported parameter: 'logprobs' is not supported with this model. "
        "Unsupported parameter: 'top_logprobs' is not supported with this model."
    )
    assert (error.param, error.code) == ("logprobs", "unsupported_parameter")
    naming = Naming(fields={"output": "logprobs", "output.top_logprobs": "logprobs"}, prompt="prompt")
    error = from_upstream("FAILED_PRECONDITION", "CAPABILITY_UNSUPPORTED", "", naming=naming, violations=found[1:] * 2)
    assert error.message == "Unsupported parameter: 'logprobs' is not supported with this model."


def test_a_reason_why_a_model_cannot_do_it_is_kept() -> None:
    found = [("chat.tools", "the chat template shows no tools")]
    error = from_upstream("FAILED_PRECONDITION", "CAPABILITY_UNSUPPORTED", "", naming=chat_naming(), violations=found)
    assert error.message == (
        "Unsupported parameter: 'tools' is not supported with this model. The chat template shows no tools."
    )


def test_a_capability_without_a_violation_is_named_all_the_same() -> None:
    error = from_upstream(
        "FAILED_PRECONDITION",
        "CAPABILITY_UNSUPPORTED",
        "The model does not take sampling.min_p; leave it out.",
        naming=chat_naming(),
        metadata={"capability": "sampling.min_p,constraint.json_object"},
    )
    assert (error.param, error.code) == ("min_p", "unsupported_parameter")
    assert "'response_format'" in error.message


def test_parameters_that_an_older_service_does_not_implement_are_unsupported() -> None:
    found = [("sampling.top_k", "not supported")]
    error = from_upstream("UNIMPLEMENTED", None, "x", naming=chat_naming(), violations=found)
    assert (error.http_status, error.param, error.code) == (400, "top_k", "unsupported_parameter")


def test_a_missing_member_is_told_in_openais_words() -> None:
    found = [("model", "required"), ("sampling.top_p", "must be above 0")]
    error = from_upstream("INVALID_ARGUMENT", "INVALID_FIELD", "", naming=chat_naming(), violations=found)
    assert error.message == "Missing required parameter: 'model'. Invalid 'top_p': must be above 0."
    assert (error.param, error.code) == ("model", "missing_required_parameter")


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (
            {"maxContextTokens": "100", "promptTokens": "145"},
            (
                "This model's maximum context length is 100 tokens. However, your messages resulted in 145 tokens. "
                "Please reduce the length of the messages."
            ),
        ),
        (
            {"maxContextTokens": "100", "promptTokens": "90", "requestedOutputTokens": "20"},
            (
                "This model's maximum context length is 100 tokens. However, you requested 110 tokens "
                "(90 in the messages, 20 in the completion). Please reduce the length of the messages or completion."
            ),
        ),
        (
            {"maxContextTokens": "100"},
            (
                "This model's maximum context length is 100 tokens. However, your messages resulted in more tokens. "
                "Please reduce the length of the messages."
            ),
        ),
        ({"promptTokens": "145"}, "It does not fit."),
        ({"maxContextTokens": "100", "promptTokens": "many"}, "It does not fit."),
    ],
)
def test_a_full_context_window_is_told_in_openais_words(metadata: dict[str, str], text: str) -> None:
    error = from_upstream(
        "INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED", "It does not fit.", naming=chat_naming(), metadata=metadata
    )
    assert (error.message, error.param, error.code) == (text, "messages", "context_length_exceeded")


def test_a_caller_without_a_key_is_told_so() -> None:
    without = from_upstream("UNAUTHENTICATED", None, "", has_key=False)
    assert without.message.startswith("You didn't provide an API key.")
    assert without.code is None
    wrong = from_upstream("UNAUTHENTICATED", None, "")
    assert (wrong.message, wrong.code) == ("Incorrect API key provided.", "invalid_api_key")


def test_constraints_are_named_as_the_caller_spelled_them() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    assert chat_naming(response_format={"type": "json_object"}).json_name("constraint.json_object") == "response_format"
    named = chat_naming(response_format=schema).json_name("constraint.json_schema")
    assert named == "response_format.json_schema.schema"
    assert chat_naming(guided_json={}).json_name("constraint.json_schema") == "guided_json"
    assert chat_naming().json_name("constraint.regex") == "guided_regex"


@pytest.mark.parametrize(
    "path",
    [
        "chat.tools[0].function.parameters_json_schema", "chat.tool_choice", "chat.tool_choice.function_name",
        "chat.parallel_tool_calls", "chat.reasoning_effort", "chat.template_args", "constraint.json_object",
        "sampling.max_output_tokens", "sampling.min_output_tokens", "stop.sequences[0]", "stop.token_ids",
        "output.logprobs", "output.top_logprobs", "choice_count", "priority", "end_user", "chat", "chat.messages[0]",
        "model",
    ],
)  # fmt: skip
def test_a_name_that_is_told_is_a_member_of_the_chat_request(path: str) -> None:
    name = chat_naming().json_name(path)
    assert name.partition("[")[0].partition(".")[0] in ChatRequest.model_fields


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


def test_what_names_no_field_is_a_sentence_of_its_own() -> None:
    error = from_upstream(
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "x",
        naming=Naming(fields={"model": "model"}, prompt="messages"),
        violations=[("model", "must be short"), ("", "and 280 more")],
    )
    assert (error.message, error.param) == ("Invalid 'model': must be short. And 280 more.", "model")
