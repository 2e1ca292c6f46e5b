"""What a caller is told when the service refuses, fails or falls silent."""

import json

import grpc
import pytest

from tests.support.fake_service import HANG, Fail, FakeService, completed, delta, finished, started
from tests.support.gateway_harness import RawClient, chat_body, read_events, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


Code = grpc.StatusCode

REFUSALS = [
    (Fail(code=Code.INVALID_ARGUMENT, reason="CONTEXT_LENGTH_EXCEEDED"), 400, "context_length_exceeded", "false"),
    (Fail(code=Code.NOT_FOUND, reason="MODEL_NOT_FOUND"), 404, "model_not_found", "false"),
    (Fail(code=Code.FAILED_PRECONDITION, reason="CAPABILITY_UNSUPPORTED"), 400, "unsupported_parameter", "false"),
    (Fail(code=Code.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_after_s=1.5), 503, "server_is_overloaded", "true"),
    (Fail(code=Code.DEADLINE_EXCEEDED, reason="DEADLINE_TOO_SHORT"), 504, "deadline_exceeded", "false"),
    (Fail(code=Code.DEADLINE_EXCEEDED, reason="DEADLINE_IN_QUEUE"), 504, "deadline_exceeded", "true"),
    (Fail(code=Code.INTERNAL, reason="BACKEND_ERROR"), 500, "backend_error", "false"),
    (Fail(code=Code.UNAUTHENTICATED), 401, "invalid_api_key", "false"),
    (Fail(code=Code.RESOURCE_EXHAUSTED), 413, "request_too_large", "false"),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("refusal", "status", "code", "should_retry"), REFUSALS)
async def test_a_refusal_has_a_status_of_its_own_streamed_or_not(
    fake: FakeService, client: RawClient, refusal: Fail, status: int, code: str, should_retry: str, *, stream: bool
) -> None:
    fake.will(refusal)
    response = await client.post(chat_body(stream=stream), headers={"authorization": "Bearer k"})
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-should-retry"] == should_retry
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert (await client.post(chat_body(stream=stream))).status == 200


async def test_retry_delays_are_told_in_both_headers(fake: FakeService, client: RawClient) -> None:
    fake.will(Fail(code=Code.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_after_s=1.5))
    response = await client.post(chat_body(stream=True))
    assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("2", "1500")


async def test_violations_are_named_as_the_caller_spells_them_and_all_of_them(
    fake: FakeService, client: RawClient
) -> None:
    violations = [("sampling.max_output_tokens", "must be at most 10, got 20"), ("stop.sequences[3]", "too long")]
    fake.will(Fail(code=Code.INVALID_ARGUMENT, reason="INVALID_FIELD", violations=violations))
    error = (await client.post(chat_body(max_completion_tokens=20))).json()["error"]
    assert error["param"] == "max_completion_tokens"
    assert error["message"] == (
        "Invalid 'max_completion_tokens': must be at most 10, got 20. Invalid 'stop[3]': too long."
    )


async def test_texts_without_a_reason_stay_inside(fake: FakeService, client: RawClient) -> None:
    secret = "failed to connect to 10.1.2.3: Traceback /opt/x.py"
    for code in (Code.INTERNAL, Code.UNKNOWN, Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED):
        fake.will(Fail(code=code, message=secret))
        response = await client.post(chat_body())
        assert response.status >= 400
        assert b"10.1.2.3" not in response.body


@pytest.mark.report("D02")
async def test_a_failure_within_a_stream_is_the_last_event_and_nothing_looks_like_an_end(
    fake: FakeService, client: RawClient
) -> None:
    fake.will(started(), delta("par"), delta("tial"), Fail(code=Code.INTERNAL, reason="BACKEND_ERROR", message="Lost."))
    response = await client.post(chat_body(stream=True))
    assert response.status == 200
    assert response.is_whole
    events = read_events(response.body)
    chunks = [json.loads(event) for event in events]
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks[:-1]) == "partial"
    assert chunks[-1] == {"error": {"message": "Lost.", "type": "server_error", "param": None, "code": "backend_error"}}
    assert b"[DONE]" not in response.body
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_before_the_end_is_never_a_success(fake: FakeService, client: RawClient, *, stream: bool) -> None:
    for script in ((), (started(), delta("a")), (started(), delta("a"), finished())):
        fake.will(*script)
        response = await client.post(chat_body(stream=stream))
        assert b"[DONE]" not in response.body
        last = read_events(response.body)[-1] if response.status == 200 else response.body
        assert json.loads(last)["error"]["type"] == "server_error"


async def test_a_failing_status_behind_the_last_event_is_a_failure(fake: FakeService, client: RawClient) -> None:
    fake.will(started(), delta("a"), finished(), completed(), Fail(code=Code.INTERNAL, reason="INTERNAL"))
    response = await client.post(chat_body(stream=True))
    assert b"[DONE]" not in response.body
    assert "error" in json.loads(read_events(response.body)[-1])


GARBLED = [
    (started(), delta("a", 1), finished(index=1), completed()),
    (started(), delta("a"), finished(), delta("b"), completed()),
    (started(), started(), delta("a"), finished(), completed()),
    (started(), delta("a"), completed()),
]


@pytest.mark.parametrize("script", GARBLED)
async def test_events_out_of_order_are_a_failure_and_cancel_the_call(
    script: tuple[object, ...], fake: FakeService, client: RawClient
) -> None:
    fake.will(*script, HANG)
    response = await client.post(chat_body(stream=True))
    assert b"[DONE]" not in response.body
    assert json.loads(read_events(response.body)[-1] if response.status == 200 else response.body)["error"]
    await (await fake.next_call()).wait_cancelled()


@pytest.mark.report("L06")
async def test_no_service_at_all_is_503_and_worth_a_retry() -> None:
    async with running_gateway("127.0.0.1:1") as gateway, gateway.connect() as client:
        response = await client.post(chat_body(stream=True), headers={"request-timeout-ms": "5000"})
        assert response.status == 503
        assert response.headers["x-should-retry"] == "true"
        assert "127.0.0.1" not in response.json()["error"]["message"]
        ready = await client.get("/readyz")
        assert ready.status == 503
        assert "reason" in ready.json()
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/v1/models")).status == 503


async def test_readiness_follows_the_service(fake: FakeService, client: RawClient) -> None:
    assert (await client.get("/readyz")).status == 200
    await fake.set_serving("headrace.v1.GenerationService", serving=False)
    assert (await client.get("/readyz")).status == 503
    await fake.set_serving("headrace.v1.GenerationService", serving=True)
    assert (await client.get("/readyz")).status == 200
