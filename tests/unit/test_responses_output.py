"""From events to a response: streamed and whole must say the same, whatever comes."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from gateway.openai.content import ContractError
from gateway.openai.errors import ApiError
from gateway.openai.responses import documents
from gateway.openai.responses.call import ResponsesCall, parse
from gateway.openai.responses.rest import RestOfResponse
from gateway.openai.responses.stream import ResponseStream
from gateway.openai.responses.whole import WholeResponse
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as gen
from tests.support.fake_service import completed, delta, finished, started

# The official type of every event, by its name.
EVENTS: dict[str, type[BaseModel]] = {
    get_args(event.model_fields["type"].annotation)[0]: event for event in get_args(get_args(ResponseStreamEvent)[0])
}


def call(**members: Any) -> ResponsesCall:
    return parse(json.dumps({"model": "m", "input": "x", "stream": True, **members}).encode())


def reasoning(text: str) -> gen.GenerateResponse:
    return gen.GenerateResponse(delta=gen.ChoiceDelta(reasoning_text=text))


def piece(index: int, fragment: str = "", **first: str) -> gen.GenerateResponse:
    return gen.GenerateResponse(
        delta=gen.ChoiceDelta(
            tool_call=chat_pb2.ToolCallDelta(index=index, arguments_fragment=fragment, **first)  # type: ignore[arg-type]
        )
    )


def token(text: str, raw: bytes, tops: int = 0) -> gen.TokenLogprob:
    top = [gen.TopLogprob(token_id=i, logprob=-i - 1, text=f"t{i}", raw_bytes=b"t%d" % i) for i in range(tops)]
    return gen.TokenLogprob(token_id=1, logprob=-0.5, text=text, raw_bytes=raw, top_logprobs=top)


def numbered(events: list[gen.GenerateResponse]) -> list[gen.GenerateResponse]:
    for sequence, event in enumerate(events, 1):
        event.sequence = sequence
    return events


def frames(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream, each checked for its name, its number and the official types."""
    found = []
    for frame in body.decode("ascii").removesuffix("\n\n").split("\n\n"):
        *ids, event, data = frame.split("\n")
        document = json.loads(data.removeprefix("data: "))
        assert event == f"event: {document['type']}"
        assert document["sequence_number"] == len(found)
        assert len(ids) <= 1
        EVENTS[document["type"]].model_validate_json(json.dumps(document), strict=True)
        documents.ResponseStreamEvent.model_validate_json(json.dumps(document))
        found.append(document)
    return found


def stream(request: ResponsesCall, events: list[gen.GenerateResponse]) -> list[dict[str, Any]]:
    reader = ResponseStream(request, 1)
    body = b"".join(reader.feed(event) for event in numbered(events))
    reader.check_complete()
    return frames(body)


def whole(request: ResponsesCall, events: list[gen.GenerateResponse]) -> dict[str, Any]:
    reader = WholeResponse(request, 1)
    document = json.loads([reader.feed(event) for event in numbered(events)][-1])
    Response.model_validate_json(json.dumps(document), strict=True)
    documents.ResponseObject.model_validate_json(json.dumps(document))
    return document  # type: ignore[no-any-return]


def rebuilt(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items as an independent reader of the documented events puts them together."""
    items: list[dict[str, Any]] = []
    for event in found:
        at = event.get("output_index")
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert at == len(items)
                items.append(event["item"])
            case "content_part.added":
                assert event["content_index"] == len(items[at]["content"])
                items[at]["content"].append(event["part"])
            case "output_text.delta":
                items[at]["content"][0]["text"] += event["delta"]
                items[at]["content"][0]["logprobs"] += event["logprobs"]
            case "reasoning_text.delta":
                items[at]["content"][0]["text"] += event["delta"]
            case "function_call_arguments.delta":
                items[at]["arguments"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == items[at]["content"][0]["text"]
            case "function_call_arguments.done":
                assert event["arguments"] == items[at]["arguments"]
            case "content_part.done":
                assert event["part"] == items[at]["content"][0]
            case "output_item.done":
                items[at]["status"] = event["item"]["status"]
                assert event["item"] == items[at]
        if "item_id" in event:
            assert event["item_id"] == items[at]["id"]
    return items


texts = st.text(max_size=8) | st.text(alphabet='"\\\n\r\u2028\x00\U0001f600', max_size=8) | st.just("x" * 6000)
steps = st.lists(
    st.tuples(st.just("text"), texts)
    | st.tuples(st.just("reasoning"), texts)
    | st.tuples(st.sampled_from(["call", "next call"]), texts),
    max_size=12,
)


def script(taken: list[tuple[str, str]], reason: str) -> list[gen.GenerateResponse]:
    events = [started()]
    calls, last = 0, ""
    for kind, text in taken:
        if kind == "text":
            events.append(delta(text, logprobs=[token(text, text.encode(), 1)] if text else []))
        elif kind == "reasoning":
            events.append(reasoning(text))
        elif kind == "next call" or last != "call":
            events.append(piece(calls, text, id=f"call_{calls}", function_name="f"))
            calls += 1
        else:
            events.append(piece(calls - 1, text))
        if text or "call" in kind:
            last = "call" if "call" in kind else kind
    return [*events, finished(reason), completed()]


def test_log_probs_are_those_of_the_text_alone_streamed_and_whole() -> None:
    request = call(include=["message.output_text.logprobs"])
    events = [started(), reasoning("r"), delta("", logprobs=[token("", b"\xf0")]), delta("a"), delta("b")]
    events += [piece(0, "{}", id="c", function_name="f"), finished(), completed()]
    for event, name in zip([events[1], *events[3:6]], ["r", "a", "b", "{}"], strict=True):
        event.delta.logprobs.append(token(name, name.encode()))
    document = whole(request, events)
    (message,) = (item for item in document["output"] if item["type"] == "message")
    told = message["content"][0]["logprobs"]
    assert [entry["token"] for entry in told] == ["", "a", "b"]
    streamed = [entry for event in stream(request, events) for entry in event.get("logprobs", []) if "delta" in event]
    assert streamed == told


@settings(deadline=None, max_examples=60)
@given(steps, st.sampled_from(["STOP", "LENGTH", "TOOL_CALLS"]), st.booleans())
def test_stream_and_whole_response_say_the_same(taken: list[tuple[str, str]], reason: str, logprobs: bool) -> None:
    request = call(include=["message.output_text.logprobs"] if logprobs else [])
    found = stream(request, script(taken, reason))
    last = found[-1]
    assert last["type"] == ("response.incomplete" if reason == "LENGTH" else "response.completed")
    assert last["response"] == whole(request, script(taken, reason))
    assert rebuilt(found) == last["response"]["output"]
    said = "".join(text for kind, text in taken if kind == "text")
    spoken = [item for item in last["response"]["output"] if item["type"] == "message"]
    assert "".join(item["content"][0]["text"] for item in spoken) == said
    if logprobs:
        assert "".join(p["token"] for item in spoken for p in item["content"][0]["logprobs"]) == said


@settings(deadline=None, max_examples=60)
@given(steps, st.integers(0, 60), st.booleans())
def test_the_rest_of_a_stream_is_what_comes_behind_an_event(
    taken: list[tuple[str, str]], after: int, has_failed: bool
) -> None:
    events = numbered(script(taken, "STOP"))[: -1 if has_failed else None]
    bodies = []
    for reader in (ResponseStream(call(), 1), RestOfResponse(replace(call(), starting_after=after), 1)):
        body = b"".join(reader.feed(event) for event in events)
        bodies.append(body + reader.failure(ApiError(500, "server_error", "Lost.")) if has_failed else body)
    whole_stream, rest = (body.split(b"\n\n")[:-1] for body in bodies)
    assert rest == whole_stream[after + 1 :]


def test_a_response_can_be_shown_before_its_end() -> None:
    reader = WholeResponse(call(background=True), 1)
    reader.generation_id = "gen-1"
    told = [json.loads(reader.unfinished("queued"))]
    for event in numbered([started(), reasoning("hm"), delta("a")]):
        reader.feed(event)
        told.append(json.loads(reader.unfinished("in_progress")))
    told.append(json.loads(reader.unfinished("failed", ApiError(429, "requests", "Slow down."))))
    for document in told:
        Response.model_validate_json(json.dumps(document), strict=True)
        documents.ResponseObject.model_validate_json(json.dumps(document))
        assert (document["id"], document["background"]) == ("resp_gen-1", True)
    assert [[item["status"] for item in document["output"]] for document in told] == [
        [], [], ["in_progress"], ["completed", "in_progress"], ["completed", "incomplete"]
    ]  # fmt: skip
    assert told[3]["output"][1]["content"][0]["text"] == "a"
    assert told[4]["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}


def test_a_message_has_the_documented_order_of_events() -> None:
    found = stream(call(), [started(), delta("Hel"), delta("lo"), finished(), completed()])
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert found[0]["response"]["status"] == found[1]["response"]["status"] == "in_progress"
    assert found[0]["response"]["output"] == []
    assert found[2]["item"] == {
        "id": "msg_gen-1_0", "type": "message", "status": "in_progress", "role": "assistant", "content": []
    }  # fmt: skip
    assert found[3]["part"] == {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
    assert found[-1]["response"]["id"] == found[0]["response"]["id"] == "resp_gen-1"


def test_reasoning_a_message_and_calls_are_items_of_their_own_in_order() -> None:
    events = [
        started(), reasoning("hm"), reasoning("m"), delta("Let me look."),
        piece(0, id="call_a", function_name="f"), piece(0, '{"x"'), piece(0, ":1}"),
        piece(1, "{}", id="call_b", function_name="g"),
        finished("TOOL_CALLS"), completed(),
    ]  # fmt: skip
    found = stream(call(), events)
    output = found[-1]["response"]["output"]
    assert [(item["type"], item["id"]) for item in output] == [
        ("reasoning", "rs_gen-1_0"), ("message", "msg_gen-1_1"),
        ("function_call", "fc_gen-1_2"), ("function_call", "fc_gen-1_3"),
    ]  # fmt: skip
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hmm"}]
    assert output[2] == {
        "id": "fc_gen-1_2", "type": "function_call", "status": "completed",
        "arguments": '{"x":1}', "call_id": "call_a", "name": "f",
    }  # fmt: skip
    ends = [event["output_index"] for event in found if event["type"] == "response.output_item.done"]
    assert ends == [0, 1, 2, 3]
    assert found[-1]["type"] == "response.completed"


@pytest.mark.parametrize("reason", ["LENGTH", "CONTEXT_LENGTH", "TIME_LIMIT"])
def test_running_out_of_room_makes_the_response_and_its_last_item_incomplete(reason: str) -> None:
    found = stream(call(), [started(), reasoning("a"), delta("b"), finished(reason), completed()])
    response = found[-1]["response"]
    assert found[-1]["type"] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["usage"]["total_tokens"] == 5
    assert response.get("native_finish_reason") == (None if reason == "LENGTH" else reason.lower())
    assert whole(call(), [started(), reasoning("a"), delta("b"), finished(reason), completed()]) == response


def test_a_cancel_by_somebody_ends_the_response_as_cancelled_and_as_far_as_it_came() -> None:
    reader = ResponseStream(call(), 1)
    body = b"".join(
        reader.feed(event) for event in numbered([started(), delta("b"), finished("CANCELLED"), completed()])
    )
    with pytest.raises(ApiError) as caught:
        reader.check_complete()
    *_, told, failed = frames(body + reader.failure(caught.value))
    assert (told["type"], told["code"], told["error"]["type"]) == ("error", "cancelled", "server_error")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "cancelled")
    assert failed["response"]["error"] == {"code": "server_error", "message": caught.value.message}
    assert [item["status"] for item in failed["response"]["output"]] == ["incomplete"]
    assert b"response.completed" not in body


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    (item,) = stream(call(), [started(), delta(""), finished(), completed()])[-1]["response"]["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_counts_are_told_and_unknown_totals_are_null() -> None:
    end = completed(7, 5)
    end.completed.usage.cached_prompt_token_count = 4
    end.completed.usage.reasoning_token_count = 2
    assert whole(call(), [started(), delta("a"), finished(), end])["usage"] == {
        "input_tokens": 7, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 12,
    }  # fmt: skip
    assert whole(call(), [started(), delta("a"), finished(), completed(None, 5)])["usage"] is None


def test_half_a_character_keeps_its_log_probs_for_the_message() -> None:
    request = call(include=["message.output_text.logprobs"])
    half, rest = token("\ufffd", b"\xf0\x9f"), token("\ufffd", b"\x98\xb8")
    events = [started(), delta("", logprobs=[half]), delta("\U0001f638", logprobs=[rest]), finished(), completed()]
    (item,) = stream(request, events)[-1]["response"]["output"]
    assert b"".join(bytes(t["bytes"]) for t in item["content"][0]["logprobs"]).decode() == "\U0001f638"
    alone = whole(request, [started(), delta("", logprobs=[half]), finished("LENGTH"), completed()])
    assert len(alone["output"][0]["content"][0]["logprobs"]) == 1


def test_long_texts_and_many_log_probs_are_cut_into_bounded_deltas() -> None:
    request = call(top_logprobs=20)
    many = [token("\U0001f600", "\U0001f600".encode(), tops=20) for _ in range(200)]
    found = stream(request, [started(), delta("\U0001f600" * 20_000, logprobs=many), finished(), completed()])
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert max(len(json.dumps(event)) for event in deltas) < 65_000
    assert "".join(event["delta"] for event in deltas) == "\U0001f600" * 20_000


def test_each_event_has_the_id_of_what_it_was_made_from() -> None:
    reader = ResponseStream(call(), 1)
    bodies = [reader.feed(event) for event in numbered([started(), delta("a"), delta("b")])]
    ids = [[line for line in body.decode().split("\n") if line.startswith("id: ")] for body in bodies]
    assert ids == [["id: 1.1", "id: 1"], ["id: 2.1", "id: 2.2", "id: 2"], ["id: 3"]]


def test_a_failure_is_an_error_event_and_the_response_as_far_as_it_came() -> None:
    reader = ResponseStream(call(), 1)
    body = b"".join(reader.feed(event) for event in numbered([started(), reasoning("a"), delta("b")]))
    error = ApiError(500, "server_error", "Lost.", code="backend_error")
    *_, told, failed = frames(body + reader.failure(error))
    assert (told["type"], told["code"], told["message"], told["param"]) == ("error", "backend_error", "Lost.", None)
    assert told["error"] == {"type": "server_error", "code": "backend_error", "message": "Lost.", "param": None}
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "Lost."}
    assert [item["status"] for item in failed["response"]["output"]] == ["completed", "incomplete"]


def test_a_failure_before_the_first_event_is_an_error_event_alone() -> None:
    (told,) = frames(ResponseStream(call(), 1).failure(ApiError(503, "server_error", "Full.")))
    assert (told["type"], told["sequence_number"]) == ("error", 0)


@pytest.mark.parametrize("reader", [ResponseStream, WholeResponse])
@pytest.mark.parametrize(
    "events",
    [
        [delta("a")],
        [started(), started()],
        [started(), completed()],
        [started(), delta("a", 1)],
        [started(), delta("a"), delta("b", 1)],
        [started(), delta("a"), finished(), delta("b")],
        [started(), piece(0, "{}")],
        [started(), piece(0, id="a"), piece(0, "{}")],
        [
            started(), piece(0, id="a", function_name="f"), piece(1, id="b", function_name="f"), piece(0, "{}")
        ],
    ],
)  # fmt: skip
def test_what_breaks_the_order_is_a_contract_error(reader: Any, events: list[gen.GenerateResponse]) -> None:
    machine = reader(call(), 1)
    with pytest.raises(ContractError):
        for event in events:
            machine.feed(event)
