"""From events to chunks and answers: the two must say the same, whatever comes."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from gateway.openai import documents
from gateway.openai.answers import ContractError, WholeAnswer, finish_reasons, native_finish_reasons
from gateway.openai.chunks import ChunkStream
from gateway.openai.errors import ApiError
from gateway.openai.logprobs import ChatLogprobs
from gateway.openai.requests import Endpoint, GenerationCall, parse
from gateway.openai.usage import server_timing
from headrace.v1 import chat_pb2, usage_pb2
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


def tool_piece(index: int, fragment: str = "", *, call_id: str = "", name: str = "", choice: int = 0) -> Any:
    piece = chat_pb2.ToolCallDelta(index=index, id=call_id, function_name=name, arguments_fragment=fragment)
    return gen.GenerateResponse(delta=gen.ChoiceDelta(index=choice, tool_call=piece))


def reasoning(text: str, choice: int = 0) -> Any:
    return gen.GenerateResponse(delta=gen.ChoiceDelta(index=choice, reasoning_text=text))


def accumulated(found: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the messages that a client puts together, after the rules of the API."""
    messages: dict[int, dict[str, Any]] = {}
    for chunk in found:
        for choice in chunk["choices"]:
            message = messages.setdefault(
                choice["index"], {"content": None, "reasoning_content": "", "tool_calls": [], "finish_reason": None}
            )
            assert message["finish_reason"] is None
            message["finish_reason"] = choice["finish_reason"]
            delta = choice["delta"]
            if (said := delta.get("content")) is not None:
                message["content"] = (message["content"] or "") + said
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for entry in delta.get("tool_calls", []):
                if entry["index"] == len(message["tool_calls"]):
                    assert entry["type"] == "function"
                    message["tool_calls"].append(
                        {"id": entry["id"], "type": "function", "function": {"name": entry["function"]["name"]}}
                    )
                    message["tool_calls"][-1]["function"]["arguments"] = ""
                else:
                    assert entry.keys() == {"index", "function"}
                    assert entry["function"].keys() == {"arguments"}
                message["tool_calls"][entry["index"]]["function"]["arguments"] += entry["function"]["arguments"]
    return messages


parts = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["text", "reasoning", "call"]), st.integers(0, 2), texts), max_size=20
)


@given(parts)
def test_reasoning_and_tool_calls_of_stream_and_whole_answer_are_the_same(
    pieces: list[tuple[int, str, int, str]],
) -> None:
    request = call(n=2)
    events = [started()]
    begun: list[int] = [0, 0]
    for choice, kind, number, text in pieces:
        if kind == "text":
            events.append(delta(text, choice))
        elif kind == "reasoning":
            events.append(reasoning(text, choice))
        elif number < begun[choice]:
            events.append(tool_piece(number, text, choice=choice))
        else:
            first = begun[choice]
            begun[choice] += 1
            events.append(tool_piece(first, text, call_id=f"c{first}", name=f"f{first}", choice=choice))
    events += [finished("TOOL_CALLS", 0), finished("STOP", 1), completed()]
    reader = WholeAnswer(request, 1)
    whole = [reader.feed(event) for event in events][-1]
    documents.ChatCompletion.model_validate_json(whole)
    found = chunks(request, events)
    for chunk in found:
        documents.ChatCompletionChunk.model_validate_json(json.dumps(chunk))
    streamed = accumulated(found)
    for choice in json.loads(whole)["choices"]:
        message = choice["message"]
        told = streamed[choice["index"]]
        assert told["content"] == message["content"]
        assert told["reasoning_content"] == message.get("reasoning_content", "")
        assert told["tool_calls"] == message.get("tool_calls", [])
        assert told["finish_reason"] == choice["finish_reason"]
        assert (message["content"] is None) is ("tool_calls" in message and not told["content"])


def test_a_tool_call_tells_id_type_and_name_once() -> None:
    events = [
        started(),
        tool_piece(0, call_id="c1", name="f"),
        tool_piece(0, '{"a": "\u00e9'),
        tool_piece(0, '"}'),
        tool_piece(1, "{}", call_id="c2", name="g"),
        finished("TOOL_CALLS"),
        completed(),
    ]
    opening, *deltas, closing = (chunk["choices"][0] for chunk in chunks(call(), events))
    assert opening["delta"] == {"role": "assistant", "content": None, "refusal": None}
    assert [choice["delta"]["tool_calls"] for choice in deltas] == [
        [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a": "\u00e9'}}],
        [{"index": 0, "function": {"arguments": '"}'}}],
        [{"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}],
    ]
    assert (closing["delta"], closing["finish_reason"]) == ({}, "tool_calls")


def test_long_arguments_are_cut_and_begin_once() -> None:
    arguments = "\U0001f600" * 20_000
    found = chunks(call(), [started(), tool_piece(0, arguments, call_id="c", name="f"), finished(), completed()])
    assert accumulated(found)[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": arguments}


def deltas_of(events: list[gen.GenerateResponse], **members: Any) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(call(**members), [started(), *events, completed()])]


SILENT = {"role": "assistant", "content": None, "refusal": None}


def test_content_is_null_until_text_comes_and_an_answer_without_text_says_so() -> None:
    spoken = {**SILENT, "content": ""}
    assert deltas_of([delta("a"), finished()]) == [spoken, {"content": "a"}, {}]
    assert deltas_of([finished()]) == [spoken, {}]
    thought = {"reasoning_content": "r"}
    assert deltas_of([reasoning("r"), finished()]) == [SILENT, thought, {"content": ""}, {}]
    assert deltas_of([reasoning("r"), delta("a"), delta("b"), finished()]) == [
        SILENT, thought, {"content": "a"}, {"content": "b"}, {},
    ]  # fmt: skip
    both = deltas_of([reasoning("r"), tool_piece(0, "{}", call_id="c", name="f"), finished("TOOL_CALLS")])
    assert both[:2] == [SILENT, thought]
    assert not any("content" in told for told in both[1:])
    bare = delta("", logprobs=[token("", b"<")])
    lone = deltas_of([bare, tool_piece(0, "{}", call_id="c", name="f"), finished("TOOL_CALLS")], logprobs=True)
    assert lone[:2] == [SILENT, {}]
    assert not any("content" in told for told in lone[1:])
    assert deltas_of([bare, finished()], logprobs=True) == [SILENT, {}, {"content": ""}, {}]


kinds = st.lists(
    st.tuples(st.sampled_from(["text", "reasoning", "call"]), st.sampled_from(["", "a", "bc"])), max_size=8
)


@given(kinds)
def test_content_and_log_probs_are_those_of_the_text_alone_streamed_and_whole(taken: list[tuple[str, str]]) -> None:
    request = call(logprobs=True)
    events, expected = [started()], []
    for number, (kind, text) in enumerate(taken):
        event = {
            "text": lambda text=text: delta(text),
            "reasoning": lambda text=text: reasoning(text),
            "call": lambda text=text, number=number: tool_piece(
                sum(k == "call" for k, _ in taken[:number]), text, call_id=f"c{number}", name="f"
            ),
        }[kind]()
        name = f"{kind}{number}"
        event.delta.logprobs.append(token(name, name.encode()))
        expected += [name] if kind == "text" else []
        events.append(event)
    events += [finished(), completed()]
    reader = WholeAnswer(request, 1)
    (whole,) = json.loads([reader.feed(event) for event in events][-1])["choices"]
    streamed, content = [], None
    for chunk in chunks(request, events):
        choice = chunk["choices"][0]
        streamed += (choice["logprobs"] or {}).get("content", [])
        said = choice["delta"].get("content")
        content = content if said is None else (content or "") + said
    assert [entry["token"] for entry in streamed] == expected
    assert whole["logprobs"]["content"] == streamed
    assert whole["message"]["content"] == content


def test_a_text_completion_shows_the_log_probs_of_its_reasoning_which_is_text_there() -> None:
    request = call(Endpoint.COMPLETION, logprobs=0)
    events = [started(), reasoning("r"), delta("a"), finished(), completed()]
    for event, name in zip(events[1:3], "ra", strict=True):
        event.delta.logprobs.append(token(name, name.encode()))
    reader = WholeAnswer(request, 1)
    (whole,) = json.loads([reader.feed(event) for event in events][-1])["choices"]
    assert whole["logprobs"]["tokens"] == ["r", "a"]
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks(request, events)]
    assert [tokens for logprobs in told if logprobs for tokens in logprobs["tokens"]] == ["r", "a"]


def test_a_text_completion_shows_reasoning_as_text_and_cannot_hold_a_tool_call() -> None:
    request = call(Endpoint.COMPLETION)
    events = [started(), reasoning("r"), delta("a"), finished(), completed()]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks(request, events)) == "ra"
    whole = WholeAnswer(request, 1)
    assert json.loads([whole.feed(event) for event in events][-1])["choices"][0]["text"] == "ra"
    for reader in (ChunkStream(request, 1), WholeAnswer(request, 1)):
        with pytest.raises(ContractError):
            for event in [started(), tool_piece(0, call_id="c", name="f"), finished(), completed()]:
                reader.feed(event)


def numbered(events: list[Any]) -> list[Any]:
    for sequence, event in enumerate(events, 1):
        event.sequence = sequence
    return events


def ids_of(request: GenerationCall, events: list[Any]) -> list[tuple[str, str]]:
    """Return (id, what follows it) of every event."""
    reader = ChunkStream(request, 1)
    body = b"".join(reader.feed(event) for event in numbered(events)).decode()
    frames = [frame.split("\n") for frame in body.split("\n\n")[:-1]]
    return [(lines[0].removeprefix("id: ") if len(lines) == 2 else "", lines[-1]) for lines in frames]


def test_the_id_of_an_event_is_its_sequence_and_parts_come_before_it() -> None:
    request = call(stream_options={"include_usage": True})
    found = ids_of(request, [started(), delta("a"), delta("b"), reasoning("c"), finished(), completed()])
    assert [number for number, _ in found] == ["2.1", "2", "3", "4", "5", "6", ""]
    assert found[-1][1] == "data: [DONE]"
    long = ids_of(call(), [started(), delta("x" * 6000), finished(), completed()])
    assert [number for number, _ in long] == ["2.1", "2.2", "2.3", "2", "3", ""]
    empty = ids_of(call(), [started(), finished(), completed()])
    assert [number for number, _ in empty] == ["2.1", "2", ""]


def test_the_tier_that_was_used_is_told_if_one_was_asked_for() -> None:
    events = [started(), delta("a"), finished(), completed()]
    assert {chunk["service_tier"] for chunk in chunks(call(service_tier="flex"), events)} == {"flex"}
    assert not any("service_tier" in chunk for chunk in chunks(call(), events))
    whole = WholeAnswer(call(service_tier="auto"), 1)
    assert json.loads([whole.feed(event) for event in events][-1])["service_tier"] == "default"


def test_reasoning_tokens_are_told_where_they_are_counted() -> None:
    event = completed()
    event.completed.usage.reasoning_token_count = 3
    found = chunks(call(stream_options={"include_usage": True}), [started(), finished(), event])
    assert found[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_the_timing_of_a_header_leaves_out_what_was_not_reached() -> None:
    timing = usage_pb2.Timing()
    timing.queue_duration.FromMilliseconds(2)
    timing.time_to_first_token.FromMicroseconds(1500)
    assert server_timing(timing) == "queue;dur=2.000, ttft;dur=1.500"


def test_a_number_of_a_log_prob_is_a_json_number_of_seven_digits() -> None:
    values = {-0.1234567890123: -0.1234568, 0.0: 0.0, -1e-8: -1e-8, -12345678.0: -12345680.0, float("-inf"): -9999.0}
    for value, told in values.items():
        lone = gen.TokenLogprob(text="a", logprob=value)
        writer = ChatLogprobs()
        writer.add(lone)
        (item,) = json.loads(writer.text())["content"]
        assert item == {"token": "a", "logprob": told, "bytes": [97], "top_logprobs": []}


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


# Ours and the official ones, of the last chunk and of the whole answer.
SCHEMAS: dict[Endpoint, tuple[type[BaseModel], ...]] = {
    Endpoint.CHAT: (documents.ChatCompletionChunk, documents.ChatCompletion, ChatCompletionChunk, ChatCompletion),
    Endpoint.COMPLETION: (documents.CompletionChunk, documents.Completion, Completion, Completion),
}


@pytest.mark.parametrize("endpoint", Endpoint)
@pytest.mark.parametrize(
    "reason", sorted(finish_reasons.keys() - {gen.FINISH_REASON_CANCELLED, gen.FINISH_REASON_TOOL_CALLS})
)
def test_what_the_api_has_no_word_for_is_told_beside_its_own(endpoint: Endpoint, reason: int) -> None:
    name = gen.FinishReason.Name(gen.FinishReason.ValueType(reason)).removeprefix("FINISH_REASON_")
    events = [started(), delta("a"), finished(name), completed()]
    last = chunks(call(endpoint), events)[-1]
    reader = WholeAnswer(call(endpoint), 1)
    whole = json.loads([reader.feed(event) for event in events][-1])
    ours, official = SCHEMAS[endpoint][:2], SCHEMAS[endpoint][2:]
    for document, *schemas in zip((last, whole), ours, official, strict=True):
        (choice,) = document["choices"]
        assert choice["finish_reason"] == finish_reasons[reason]
        assert choice.get("native_finish_reason") == native_finish_reasons.get(reason)
        assert ("native_finish_reason" in choice) is (reason in native_finish_reasons)
        for schema in schemas:
            schema.model_validate_json(json.dumps(document))


def test_only_what_runs_out_of_room_has_a_second_word() -> None:
    assert {finish_reasons[reason] for reason in native_finish_reasons} == {"length"}
    assert set(native_finish_reasons.values()) == set(get_args(documents.NativeFinishReason))


@pytest.mark.parametrize("kind", [ChunkStream, WholeAnswer])
def test_a_cancel_by_somebody_is_an_error_and_never_an_end(kind: Any) -> None:
    reader = kind(call(n=2), 1)
    events = [started(), delta("a"), finished(), finished("CANCELLED", 1), completed()]
    body = b"".join(reader.feed(event) for event in events)
    assert b"cancelled" not in body
    assert b"[DONE]" not in body
    assert reader.usage.output_token_count == 2
    with pytest.raises(ApiError) as caught:
        reader.check_complete()
    assert (caught.value.http_status, caught.value.code, caught.value.should_retry) == (499, "cancelled", False)


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
        [started(), tool_piece(0, "{}")],
        [started(), tool_piece(0, call_id="c")],
        [started(), tool_piece(0, name="f")],
        [started(), tool_piece(0, call_id="c", name="f"), tool_piece(1, "{}")],
        [started(), tool_piece(0, call_id="c", name="f", choice=1)],
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
