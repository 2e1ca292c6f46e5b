"""From events to chunks and answers: the two must say the same, whatever comes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai import documents
from gateway.openai.chunks import ChunkStream
from gateway.openai.requests import Endpoint, GenerationCall, parse
from gateway.openai.responses import ContractError, WholeAnswer, finish_reasons
from headrace.v1 import generation_pb2 as gen
from tests.support.fake_service import completed, delta, finished, started
from tests.support.gateway_harness import read_events


def call(endpoint: Endpoint = Endpoint.CHAT, **members: Any) -> GenerationCall:
    own = {"messages": [{"role": "user", "content": "x"}]} if endpoint is Endpoint.CHAT else {"prompt": "x"}
    return parse(endpoint, json.dumps({"model": "m", "stream": True, **own, **members}).encode())


def token(text: str, raw: bytes, tops: int = 0) -> gen.TokenLogprob:
    top = [gen.TopLogprob(token_id=i, logprob=-i - 1, text=f"t{i}", raw_bytes=b"t%d" % i) for i in range(tops)]
    return gen.TokenLogprob(token_id=1, logprob=-0.5, text=text, raw_bytes=raw, top_logprobs=top)


def chunks(request: GenerationCall, events: list[gen.GenerateResponse]) -> list[dict[str, Any]]:
    reader = ChunkStream(request, 1)
    body = b"".join(reader.feed(event) for event in events)
    reader.check_complete()
    found = read_events(body)
    assert found[-1] == "[DONE]"
    for line in body.split(b"\n"):
        assert len(line) < 65_536
    return [json.loads(event) for event in found[:-1]]


texts = st.text(max_size=12) | st.text(alphabet='"\\\n\r\u2028\x00\U0001f600', max_size=12)
deltas = st.lists(st.tuples(st.integers(0, 2), texts), max_size=20)


@given(st.sampled_from(Endpoint), deltas, st.booleans())
def test_stream_and_whole_answer_say_the_same(endpoint: Endpoint, pieces: list[tuple[int, str]], usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    request = call(endpoint, n=3, **options)
    events = [
        started(),
        *(delta(text, index) for index, text in pieces),
        *(finished("LENGTH", index) for index in range(3)),
        completed(),
    ]
    whole_reader = WholeAnswer(request, 1)
    whole = json.loads([whole_reader.feed(event) for event in events][-1])
    streamed = dict.fromkeys(range(3), "")
    reasons: dict[int, list[str]] = {index: [] for index in range(3)}
    for chunk in chunks(request, events):
        schema = documents.ChatCompletionChunk if endpoint is Endpoint.CHAT else documents.CompletionChunk
        schema.model_validate_json(json.dumps(chunk))
        assert ("usage" in chunk) is usage
        for choice in chunk["choices"]:
            assert not reasons[choice["index"]]
            streamed[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            if choice["finish_reason"]:
                reasons[choice["index"]].append(choice["finish_reason"])
    for choice in whole["choices"]:
        text = choice["text"] if endpoint is Endpoint.COMPLETION else choice["message"]["content"]
        assert text == streamed[choice["index"]] == "".join(t for i, t in pieces if i == choice["index"])
        assert reasons[choice["index"]] == [choice["finish_reason"]]


tokens = st.lists(
    st.lists(st.sampled_from([("a", b"a"), ("\ufffd", b"\xf0\x9f"), ("\u00e9", b"\xc3\xa9")]), max_size=4)
)


@given(st.sampled_from(Endpoint), tokens)
def test_log_probs_of_stream_and_whole_answer_are_the_same(
    endpoint: Endpoint, groups: list[list[tuple[str, bytes]]]
) -> None:
    request = call(endpoint, logprobs=True if endpoint is Endpoint.CHAT else 2)
    events = [
        started(),
        *(delta("".join(t for t, _ in group), logprobs=[token(*t, tops=2) for t in group]) for group in groups),
        finished(),
        completed(),
    ]
    reader = WholeAnswer(request, 1)
    (whole,) = json.loads([reader.feed(event) for event in events][-1])["choices"]
    streamed: dict[str, list[Any]] = {}
    for chunk in chunks(request, events):
        for key, values in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed.setdefault(key, []).extend(values or [])
    expected = {key: values or [] for key, values in whole["logprobs"].items()}
    assert {key: values for key, values in streamed.items() if values} == {k: v for k, v in expected.items() if v}


def test_long_texts_and_many_log_probs_are_cut_into_bounded_events() -> None:
    many = [token("\U0001f600", "\U0001f600".encode(), tops=20) for _ in range(200)]
    request = call(logprobs=True, top_logprobs=20)
    found = chunks(request, [started(), delta("\U0001f600" * 20_000, logprobs=many), finished(), completed()])
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in found) == "\U0001f600" * 20_000
    assert sum(len((c["choices"][0]["logprobs"] or {}).get("content", [])) for c in found) == 200


def test_log_probs_that_nobody_asked_for_are_not_sent() -> None:
    found = chunks(call(), [started(), delta("a", logprobs=[token("a", b"a")]), finished(), completed()])
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in found)


def test_a_token_without_a_probability_has_null_and_not_zero() -> None:
    unknown = gen.TokenLogprob(token_id=1, text="a", raw_bytes=b"a")
    found = chunks(call(logprobs=True), [started(), delta("a", logprobs=[unknown]), finished(), completed()])
    assert found[1]["choices"][0]["logprobs"]["content"][0]["logprob"] is None


def test_every_finish_reason_of_the_contract_has_a_word() -> None:
    known = set(gen.FinishReason.values()) - {gen.FINISH_REASON_UNSPECIFIED}
    assert finish_reasons.keys() == known


@pytest.mark.parametrize("reader", [ChunkStream, WholeAnswer])
@pytest.mark.parametrize(
    "events",
    [
        [delta("a")],
        [finished()],
        [completed()],
        [started(), started()],
        [started(), completed()],
        [started(), delta("a", 1)],
        [started(), delta("a", -1)],
        [started(), finished("UNSPECIFIED")],
        [started(), finished(), finished()],
        [started(), delta("a"), finished(), delta("b")],
        [started(), finished(), delta("")],
        [started(), finished(), completed(), completed()],
    ],
)
def test_what_breaks_the_order_is_a_contract_error(reader: Any, events: list[gen.GenerateResponse]) -> None:
    machine = reader(call(), 1)
    with pytest.raises(ContractError):
        for event in events:
            machine.feed(event)


def test_a_stream_without_an_end_is_a_contract_error() -> None:
    machine = ChunkStream(call(), 1)
    machine.feed(started())
    with pytest.raises(ContractError):
        machine.check_complete()


def test_events_of_newer_services_are_skipped() -> None:
    unknown = gen.GenerateResponse.FromString(b"\x08\x02\xa2\x06\x00")  # field 100, which nobody knows yet
    assert len(chunks(call(), [started(), unknown, delta("a"), unknown, finished(), completed()])) == 3


def test_the_service_s_own_time_of_creation_is_shown() -> None:
    event = started()
    event.started.create_time.seconds = 1234
    assert chunks(call(), [event, finished(), completed()])[0]["created"] == 1234
