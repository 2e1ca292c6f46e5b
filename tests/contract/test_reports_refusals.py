"""Public bug reports about wrong requests: each is a clear 400 that names the member, and reaches no engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen
from service.tokens import TokenCodec
from tests.support.gateway_harness import RawResponse
from tests.support.report_replay import R0, Replay, replays, says_ids, twin
from tests.support.small_tokenizers import byte_level
from tests.support.triton_fake import Final

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replay(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replay]:
    """A token-level model: it has log-probs, a vocabulary and biases, so that nothing is refused as unsupported."""
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_level().save(str(path))
    async with replays(options={"model": "tensorrt_llm"}, tokenizer=TokenCodec(path)) as running:
        running.will([says_ids(65), Final()])
        yield running


def refused_as(response: RawResponse) -> tuple[int, str | None]:
    """Check the shape of a refusal; return its status and the member that it names."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-should-retry"] == "false"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    return response.status, error["param"]


@pytest.mark.report("E05", "E07", "E10", "E11", "E13", "E15", "E16", "E19", "F01")
@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "userr", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}, "messages[0].content[1]"),
        ({"stream": "true"}, "stream"),
        ({"stream": "false"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"temperature": "0.7"}, "temperature"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": -186}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_tokens": 2**31 - 1}, "max_tokens"),
        ({"temperature": 2.0001}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"seed": True}, "seed"),
        ({"logit_bias": {"999999999": 5}}, "logit_bias.999999999"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {"abc": 1}}, "logit_bias.abc"),
        ({"logit_bias": {"10": "x"}}, "logit_bias.10"),
        ({"logit_bias": {"10": 1000}}, "logit_bias.10"),
        ({"logit_bias": {str(number): 1 for number in range(100_000)}}, "logit_bias"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
        ({"n": 100}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_a_wrong_member_is_named_and_reaches_no_engine(
    replay: Replay, members: dict[str, Any], param: str
) -> None:
    replay.fake.requests.clear()
    for stream in [members["stream"]] if "stream" in members else [False, True]:
        status, named = refused_as(await replay.post({**R0, **members, "stream": stream}))
        assert status == 400
        assert named is not None
        assert named == param or named.startswith(f"{param}.")
    assert replay.fake.requests == []
    assert (await replay.post(R0)).status == 200


@pytest.mark.report("C05")
async def test_options_of_a_stream_need_a_stream(replay: Replay) -> None:
    replay.fake.requests.clear()
    for members in ({}, {"stream": False}, {"stream": None}):
        body = {**R0, **members, "stream_options": {"include_usage": True}}
        assert refused_as(await replay.post(body)) == (400, "stream_options")
    assert replay.fake.requests == []


Change = Callable[[gen.GenerateRequest], object]


@pytest.mark.report("E05", "E11", "E13", "E16", "F01")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: r.chat.ClearField("messages"), "chat.messages"),
        (lambda r: r.ClearField("chat"), "input"),
        (lambda r: r.chat.messages.add(role=99, content=[chat_pb2.ContentPart(text="x")]), "chat.messages[1].role"),
        (lambda r: setattr(r.sampling, "max_output_tokens", 0), "sampling.max_output_tokens"),
        (lambda r: setattr(r.sampling, "max_output_tokens", -1), "sampling.max_output_tokens"),
        (lambda r: setattr(r.sampling, "max_output_tokens", 2**31 - 1), "sampling.max_output_tokens"),
        (lambda r: setattr(r.sampling, "temperature", 2.0001), "sampling.temperature"),
        (lambda r: r.sampling.logit_bias.update({999_999_999: 5}), "sampling.logit_bias[999999999]"),
        (lambda r: r.sampling.logit_bias.update({-1: 1}), "sampling.logit_bias[-1]"),
        (lambda r: r.sampling.logit_bias.update({10: 1000}), "sampling.logit_bias[10]"),
        (lambda r: r.sampling.logit_bias.update(dict.fromkeys(range(100_000), 1.0)), "sampling.logit_bias"),
        (lambda r: setattr(r.output, "top_logprobs", 2), "output.top_logprobs"),
    ],
)
async def test_a_wrong_field_is_named_over_grpc_and_reaches_no_engine(
    replay: Replay, change: Change, field: str
) -> None:
    replay.fake.requests.clear()
    request = twin(R0)
    change(request)
    failure = await replay.service.failure(request)
    assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.fields[0] == field
    assert replay.fake.requests == []
    assert await replay.service.events(twin(R0))


@pytest.mark.report("E16")
async def test_a_bias_may_name_every_token_of_the_vocabulary_and_none_beyond_it(replay: Replay) -> None:
    vocab_size = replay.backend.info.vocab_size
    assert vocab_size is not None
    for biases in ({}, {str(vocab_size - 1): 100}, {"0": -100}):
        assert (await replay.post({**R0, "logit_bias": biases})).status == 200
    replay.fake.requests.clear()
    refused = await replay.post({**R0, "logit_bias": {str(vocab_size): 1}})
    assert refused_as(refused) == (400, f"logit_bias.{vocab_size}")
    assert replay.fake.requests == []
