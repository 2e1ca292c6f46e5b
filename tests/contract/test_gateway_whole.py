"""What a whole answer looks like, and that it says what the stream says."""

import json
from typing import Any

import grpc
import pytest

from gateway.openai import documents
from headrace.v1 import generation_pb2 as gen
from tests.support.fake_service import HANG, Fail, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import RawClient, chat_body, read_events, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_whole_answer_fits_the_published_schema(client: RawClient) -> None:
    response = await client.post(chat_body())
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["openai-processing-ms"]) >= 0
    answer = documents.ChatCompletion.model_validate_json(response.body)
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 5
    assert answer.timing is not None
    assert answer.timing.decode_ms == 50


async def test_a_whole_completion_fits_the_published_schema(fake: FakeService, client: RawClient) -> None:
    response = await client.post({"model": "m", "prompt": "x"}, "/v1/completions")
    answer = documents.Completion.model_validate_json(response.body)
    assert (answer.id, answer.choices[0].text) == ("cmpl-gen-1", "Hello world")
    call = await fake.next_call()
    assert call.request.prompt == "x"
    assert call.request.sampling.max_output_tokens == 16


@pytest.mark.parametrize("texts", [["a", "b"], [], ["\U0001f638", "\u0000"], ["x" * 9000]])
async def test_stream_and_whole_answer_say_the_same(texts: list[str], fake: FakeService, client: RawClient) -> None:
    script: list[gen.GenerateResponse] = [started(), *map(delta, texts), finished("LENGTH"), completed()]
    fake.will(*script)
    fake.will(*script)
    whole = (await client.post(chat_body())).json()
    stream = await client.post(chat_body(stream=True, stream_options={"include_usage": True}))
    chunks = [json.loads(event) for event in read_events(stream.body)[:-1]]
    streamed = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert streamed == whole["choices"][0]["message"]["content"] == "".join(texts)
    reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
    assert [reason for reason in reasons if reason] == [whole["choices"][0]["finish_reason"]]
    assert chunks[-1]["usage"] == whole["usage"]


async def test_several_choices_come_in_order(fake: FakeService, client: RawClient) -> None:
    script = (started(), delta("b", 1), delta("a", 0), finished("LENGTH", 1), finished(index=0), completed())
    fake.will(*script)
    answer = (await client.post(chat_body(n=2))).json()
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]


async def test_models_are_listed_and_found_even_with_slashes_in_their_ids(fake: FakeService, client: RawClient) -> None:
    from tests.support.fake_service import model

    fake.models = [model("a"), model("org/b", aliases=["b"])]
    listed = (await client.get("/v1/models")).json()
    assert [entry["id"] for entry in documents.ModelList.model_validate(listed).model_dump()["data"]] == [
        "a",
        "org/b",
    ]
    for path in ("/v1/models/org/b", "/v1/models/org%2Fb", "/v1/models/b"):
        assert (await client.get(path)).json()["id"] == "org/b"
    missing = await client.get("/v1/models/c/d")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")


REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0}, "temperature: 0\n"),
    ({"top_k": -1, "seed": -1, "min_p": 0.5}, "top_k: 0\nmin_p: 0.5\nseed: -1\n"),
    ({"max_tokens": 5, "max_completion_tokens": 2}, "max_output_tokens: 2\n"),
    ({"logit_bias": {"7": -100}}, "logit_bias {\n  key: 7\n  value: -100\n}\n"),
]


@pytest.mark.parametrize(("members", "sampling"), REQUESTS)
async def test_the_service_gets_what_was_asked_and_nothing_else(
    members: dict[str, Any], sampling: str, fake: FakeService, client: RawClient
) -> None:
    await client.post(chat_body(**members))
    assert str((await fake.next_call()).request.sampling) == sampling


async def test_explicit_nulls_ask_for_nothing(fake: FakeService, client: RawClient) -> None:
    names = [
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "n",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "user",
        "stream_options",
        "tools",
        "response_format",
        "stream",
        "chat_template_kwargs",
    ]
    assert (await client.post(chat_body())).status == 200
    assert (await client.post(chat_body(**dict.fromkeys(names)))).status == 200
    plain, nulls = await fake.next_call(), await fake.next_call()
    assert plain.request == nulls.request


async def test_all_parts_of_all_roles_reach_the_service_in_order(fake: FakeService, client: RawClient) -> None:
    part = {"type": "text"}
    messages = [
        {"role": "system", "content": [{**part, "text": "S1"}]},
        {"role": "assistant", "content": [{**part, "text": "P1"}]},
        {"role": "user", "content": [{**part, "text": "A1"}, {**part, "text": "before\u0000after"}]},
    ]
    await client.post(chat_body(messages=messages))
    sent = (await fake.next_call()).request.chat.messages
    assert [[part.text for part in message.content] for message in sent] == [
        ["S1"],
        ["P1"],
        ["A1", "before\u0000after"],
    ]


async def test_credentials_and_request_id_travel_as_metadata(fake: FakeService, client: RawClient) -> None:
    headers = {"authorization": "Bearer secret", "x-request-id": "my-id"}
    response = await client.post(chat_body(), headers=headers)
    call = await fake.next_call()
    assert call.header("authorization") == "Bearer secret"
    assert call.header("x-request-id") == response.headers["x-request-id"] == "my-id"


@pytest.mark.parametrize("value", ["Bearer k\xe9y", "Bearer " + "k" * 5_000, "Bearer", "Bearer None", "Basic eDp5"])
async def test_no_authorization_header_breaks_a_request(value: str, client: RawClient) -> None:
    assert (await client.post(chat_body(), headers={"authorization": value})).status == 200


async def test_the_deadline_travels_and_the_least_bound_wins() -> None:
    settings = {"default_timeout_s": 50, "max_timeout_s": 100}
    async with (
        fake_service() as fake,
        running_gateway(fake.address, **settings) as gateway,
        gateway.connect() as client,
    ):
        cases: list[tuple[dict[str, str], float]] = [
            ({}, 50),
            ({"request-timeout-ms": "3000"}, 3),
            ({"request-timeout-ms": "999000"}, 100),
            ({"x-stainless-read-timeout": "20"}, 20),
            ({"x-stainless-timeout": "20", "x-stainless-read-timeout": "10.5"}, 10.5),
            ({"request-timeout-ms": "3000", "x-stainless-timeout": "1"}, 3),
            ({"x-stainless-timeout": "NOT_GIVEN"}, 50),
        ]
        for headers, expected_s in cases:
            await client.post(chat_body(), headers=headers)
            left_s = (await fake.next_call()).time_remaining_s
            assert left_s is not None
            # The wire format rounds up, by at most one in a hundred.
            assert expected_s - 2 < left_s <= expected_s * 1.02


async def test_a_deadline_that_passes_is_504_and_is_not_to_be_repeated(fake: FakeService, client: RawClient) -> None:
    fake.will(started(), delta("a"), HANG)
    response = await client.post(chat_body(), headers={"request-timeout-ms": "150"})
    assert (response.status, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert response.headers["x-should-retry"] == "false"
    await (await fake.next_call()).wait_cancelled()


@pytest.mark.parametrize(("sent", "should_retry"), [(1, "true"), (2, "false")])
async def test_what_breaks_off_after_text_has_come_is_not_to_be_repeated(
    sent: int, should_retry: str, fake: FakeService, client: RawClient
) -> None:
    fake.will(*(started(), delta("a"))[:sent], Fail(code=grpc.StatusCode.UNAVAILABLE))
    response = await client.post(chat_body())
    assert (response.status, response.headers["x-should-retry"]) == (503, should_retry)
