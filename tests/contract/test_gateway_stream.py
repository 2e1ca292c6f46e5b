"""What a streamed answer looks like on the wire."""

import json
from typing import Any

import pytest

from gateway.openai import documents
from headrace.v1 import generation_pb2 as gen
from tests.support.fake_service import completed, delta, fake_service, finished, started
from tests.support.gateway_harness import chat_body, read_events, running_gateway


def chunks(body: bytes) -> list[dict[str, Any]]:
    events = read_events(body)
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def stream(*script: gen.GenerateResponse, path: str = "/v1/chat/completions", **members: Any) -> Any:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        fake.will(*script)
        response = await client.post(chat_body(stream=True, **members), path)
        assert response.is_whole
        return response


@pytest.mark.report("C01", "C07", "C08")
async def test_a_stream_is_role_then_text_then_reason_then_done() -> None:
    response = await stream(started(), delta("Hel"), delta("lo"), finished(), completed())
    assert response.status == 200
    first, *texts, last = chunks(response.body)
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert [chunk["choices"][0]["delta"] for chunk in texts] == [{"content": "Hel"}, {"content": "lo"}]
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert all("usage" not in chunk for chunk in [first, *texts, last])


@pytest.mark.report("K01")
async def test_headers_keep_proxies_from_holding_events_back() -> None:
    response = await stream(started(), delta("x"), finished(), completed())
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"].startswith("req_")
    assert not {"content-length", "content-encoding", "server"} & response.headers.keys()


async def test_every_chunk_fits_the_published_schema_and_names_one_generation() -> None:
    response = await stream(started(), delta("a"), finished(), completed(), stream_options={"include_usage": True})
    parsed = [documents.ChatCompletionChunk.model_validate_json(json.dumps(chunk)) for chunk in chunks(response.body)]
    assert {(chunk.id, chunk.model, chunk.system_fingerprint, chunk.created) for chunk in parsed} == {
        ("chatcmpl-gen-1", "fake", "fp", parsed[0].created)
    }


@pytest.mark.report("C03")
async def test_the_usage_chunk_comes_last_without_choices_and_the_others_say_null() -> None:
    response = await stream(started(), delta("a"), finished(), completed(), stream_options={"include_usage": True})
    *others, last = chunks(response.body)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert last["timing"]["time_to_first_token_ms"] == 50
    assert all(chunk["usage"] is None for chunk in others)


async def test_unknown_counts_are_null_and_never_zero() -> None:
    script = (started(), delta("a"), finished(), completed(None, None))
    response = await stream(*script, stream_options={"include_usage": True})
    assert chunks(response.body)[-1]["usage"] is None


async def test_an_empty_answer_has_a_role_a_reason_and_an_end() -> None:
    response = await stream(started(), delta(""), finished("LENGTH"), completed())
    role, reason = chunks(response.body)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert reason["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("reason", ["LENGTH", "CONTEXT_LENGTH", "TIME_LIMIT"])
async def test_every_way_of_running_out_of_room_is_length(reason: str) -> None:
    response = await stream(started(), delta("a"), finished(reason), completed())
    assert chunks(response.body)[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.report("C11")
async def test_choices_are_told_apart_and_each_ends_once() -> None:
    script = (
        started(), delta("a", 1), delta("b", 0), finished(index=1), delta("c", 0), finished("LENGTH", 0), completed()
    )  # fmt: skip
    response = await stream(*script, n=2)
    seen: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in chunks(response.body):
        (choice,) = chunk["choices"]
        seen[choice["index"]].append(
            choice["finish_reason"] or choice["delta"].get("role") or choice["delta"]["content"]
        )
    assert seen == {0: ["assistant", "b", "c", "length"], 1: ["assistant", "a", "stop"]}


@pytest.mark.report("C14")
async def test_each_write_is_a_whole_number_of_events_and_long_texts_are_cut() -> None:
    text = "x\U0001f63a\u2028" * 40_000
    response = await stream(started(), delta(text), finished(), completed())
    for piece in response.pieces:
        assert piece.startswith((b"id: ", b"data: [DONE]"))
        assert piece.endswith(b"\n\n")
        assert max(map(len, piece.split(b"\n"))) < 65_536
    joined = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks(response.body))
    assert joined == text


async def test_odd_characters_round_trip() -> None:
    text = '"\\\n\r\u0000\u0085\u2028\u2029\ufffd\U0001f600聪明</script>'
    response = await stream(started(), delta(text), finished(), completed())
    assert response.body.isascii()
    assert chunks(response.body)[1]["choices"][0]["delta"]["content"] == text


async def test_completions_stream_in_the_legacy_shape() -> None:
    members = {"prompt": "x", "messages": None, "logprobs": 1}
    token = gen.TokenLogprob(
        token_id=1, logprob=-0.5, text=" a", raw_bytes=b" a", top_logprobs=[gen.TopLogprob(text=" b", logprob=-0.25)]
    )
    script = (started(), delta(" a", logprobs=[token]), delta(" a", logprobs=[token]), finished(), completed())
    response = await stream(*script, path="/v1/completions", **members)
    first, second, last = [documents.CompletionChunk.model_validate_json(json.dumps(c)) for c in chunks(response.body)]
    assert (first.id, first.object) == ("cmpl-gen-1", "text_completion")
    assert first.choices[0].text == " a"
    assert first.choices[0].logprobs is not None
    assert first.choices[0].logprobs.top_logprobs == [{" b": -0.25, " a": -0.5}]
    assert second.choices[0].logprobs is not None
    assert second.choices[0].logprobs.text_offset == [2]
    assert (last.choices[0].text, last.choices[0].finish_reason) == ("", "stop")


@pytest.mark.report("F01", "F03")
async def test_logprobs_carry_bytes_and_no_infinity() -> None:
    half = gen.TokenLogprob(token_id=1, logprob=float("-inf"), text="\ufffd", raw_bytes=b"\xf0\x9f")
    rest = gen.TokenLogprob(token_id=2, logprob=-0.1, text="\ufffd", raw_bytes=b"\x98\xb8")
    script = (started(), delta("", logprobs=[half]), delta("\U0001f638", logprobs=[rest]), finished(), completed())
    response = await stream(*script, logprobs=True, top_logprobs=0)
    items = [
        item for chunk in chunks(response.body) for item in (chunk["choices"][0]["logprobs"] or {}).get("content", [])
    ]
    assert [item["logprob"] for item in items] == [-9999.0, -0.1]
    assert bytes(items[0]["bytes"] + items[1]["bytes"]).decode() == "\U0001f638"
    assert b"Infinity" not in response.body


@pytest.mark.report("C09")
async def test_a_connection_serves_again_after_a_stream() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        for _ in range(3):
            response = await client.post(chat_body(stream=True))
            assert response.is_whole
            assert read_events(response.body)[-1] == "[DONE]"


@pytest.mark.report("K02")
async def test_streams_are_not_compressed() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway, gateway.connect() as client:
        response = await client.post(chat_body(stream=True), headers={"accept-encoding": "gzip, br"})
        assert "content-encoding" not in response.headers
