"""How the client reads a generation, against a scripted service."""

import asyncio

import grpc
import pytest

from headrace import AsyncClient, errors
from headrace.v1 import chat_pb2
from headrace.v1 import generation_pb2 as pb
from tests.support.fake_service import HANG, Fail, completed, delta, fake_service, finished, started


async def test_events_come_whole_and_in_order() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(started(), *[delta(f"{n} ") for n in range(500)], finished("LENGTH"), completed(output_tokens=500))
        async with client.generate(model="m", prompt="p") as stream:
            events = [event async for event in stream]
        assert [event.sequence for event in events] == list(range(1, 504))
        assert [e.WhichOneof("event") for e in events[:2] + events[-2:]] == [
            "started",
            "delta",
            "choice_finished",
            "completed",
        ]
        assert "".join(e.delta.text for e in events) == "".join(f"{n} " for n in range(500))


async def test_what_a_stream_says_of_itself_is_filled_while_reading() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        stream = client.generate(model="m", chat=[("user", "hi")])
        assert (stream.started, stream.completed, stream.usage, stream.timing) == (None, None, None, None)
        async with stream:
            assert (await anext(stream)).HasField("started")
            assert stream.started is not None
            assert (stream.started.generation_id, stream.request_id) == ("gen-1", "req-1")
            assert stream.time_to_first_delta_s is None
            assert await stream.text() == "Hello world"
        assert stream.usage is not None
        assert stream.usage.output_token_count == 2
        assert stream.timing is not None
        assert stream.timing.prefill_duration.nanos == 40_000_000
        assert stream.finish_reasons == {0: "STOP"}
        assert [event async for event in stream] == []  # ended, also outside its block
        assert stream.time_to_first_delta_s is not None
        assert stream.time_to_first_delta_s > 0


async def test_an_empty_delta_is_not_the_first_output() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        more = asyncio.Event()
        fake.will(started(), delta(""), more, delta("x"), finished(), completed())
        async with client.generate(model="m", prompt="p") as stream:
            await anext(stream)
            await anext(stream)
            assert stream.time_to_first_delta_s is None
            more.set()
            await anext(stream)
            assert stream.time_to_first_delta_s is not None


async def test_reasoning_and_a_tool_call_are_output_but_no_text() -> None:
    thought = pb.GenerateResponse(delta=pb.ChoiceDelta(reasoning_text="hm"))
    call = chat_pb2.ToolCallDelta(id="call_1", function_name="f")
    called = pb.GenerateResponse(delta=pb.ChoiceDelta(tool_call=call))
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        for first in (thought, called):
            fake.will(started(), first, delta("x"), finished(), completed())
            async with client.generate(model="m", prompt="p") as stream:
                await anext(stream)
                await anext(stream)
                assert stream.time_to_first_delta_s is not None
                assert await stream.text() == "x"


async def test_choices_are_collected_by_index() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        script = (
            started(),
            delta("b1", 1),
            delta("a1"),
            delta("b2", 1),
            finished(),
            finished("LENGTH", 1),
            completed(),
        )
        fake.will(*script)
        fake.will(*script)
        async with client.generate(model="m", prompt="p", choice_count=2) as stream:
            assert await stream.texts() == {0: "a1", 1: "b1b2"}
        assert stream.finish_reasons == {0: "STOP", 1: "LENGTH"}
        async with client.generate(model="m", prompt="p", choice_count=2) as stream:
            assert [piece async for piece in stream.deltas()] == ["a1"]


async def test_an_event_that_this_client_does_not_know_is_skipped_but_counted() -> None:
    newer = pb.GenerateResponse.FromString(bytes([0xFA, 0x01, 0x00]))  # field 31, an empty message
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(newer, started(), delta("a"), newer, delta("b"), finished(), completed())
        async with client.generate(model="m", prompt="p") as stream:
            events = [event async for event in stream]
        assert [event.sequence for event in events] == [2, 3, 5, 6, 7]


def numbered(event: pb.GenerateResponse, sequence: int) -> pb.GenerateResponse:
    event.sequence = sequence
    return event


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ((started(), delta("a"), numbered(delta("c"), 4), HANG), "event 4 came in place of event 3"),
        ((started(), delta("a"), numbered(delta("a"), 2), HANG), "event 2 came in place of event 3"),
        ((numbered(started(), 2), HANG), "event 2 came in place of event 1"),
        ((delta("a"), HANG), "before `started`"),
        ((started(), delta("a")), "without `completed`"),
        ((), "without `completed`"),
    ],
    ids=["gap", "repeat", "late start", "no started", "cut", "nothing"],
)
async def test_a_stream_that_breaks_the_rules_is_an_error_and_is_cancelled(
    script: tuple[object, ...], complaint: str
) -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*script)
        async with client.generate(model="m", prompt="p") as stream:
            with pytest.raises(errors.ProtocolError, match=complaint):
                await stream.text()
            if HANG in script:
                await (await fake.next_call()).wait_cancelled()
        assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_an_error_after_output_says_how_much_came_and_is_not_retriable() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        lost = Fail(code=grpc.StatusCode.UNAVAILABLE, reason="BACKEND_UNAVAILABLE", metadata={"lastSequence": "3"})
        fake.will(started(), delta("a"), delta("b"), lost)
        async with client.generate(model="m", prompt="p") as stream:
            assert [(await anext(stream)).delta.text for _ in range(3)] == ["", "a", "b"]
            with pytest.raises(errors.Unavailable) as caught:
                await anext(stream)
            assert [event async for event in stream] == []  # an ended stream stays ended
        assert (caught.value.events_received, caught.value.is_retriable) == (3, False)
        assert caught.value.metadata == {"lastSequence": "3"}
        assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)


async def test_a_refusal_carries_every_detail_over_the_wire() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(
            Fail(
                code=grpc.StatusCode.INVALID_ARGUMENT,
                reason="INVALID_FIELD",
                message="two things",
                violations=[("model", "is empty"), ("sampling.top_p", "above 0 and at most 1")],
                request_id="req-2",
            )
        )
        with pytest.raises(errors.InvalidRequest) as caught:
            async with client.generate(model="", prompt="p", top_p=2.0) as stream:
                await stream.text()
        assert [(v.field, v.description) for v in caught.value.violations] == [
            ("model", "is empty"),
            ("sampling.top_p", "above 0 and at most 1"),
        ]
        assert (caught.value.message, caught.value.reason) == ("two things", "INVALID_FIELD")
        assert caught.value.request_id == "req-2"


async def test_broken_details_in_the_trailers_leave_the_status() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(Fail(code=grpc.StatusCode.NOT_FOUND, message="gone", raw_details=b"\xff\xff"))
        async with client.generate(model="m", prompt="p") as stream:
            with pytest.raises(errors.NotFound, match="gone"):
                await stream.text()


async def test_a_whole_request_is_sent_as_it_is() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        request = pb.GenerateRequest(model="m", prompt="p", sampling={"seed": 5})
        async with client.generate(request) as stream:
            await stream.text()
        assert (await fake.next_call()).request == request
        with pytest.raises(TypeError, match="not both"):
            client.generate(request, model="other")


async def test_a_stream_is_entered_once_and_read_inside_its_block() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        stream = client.generate(model="m", prompt="p")
        with pytest.raises(RuntimeError, match="inside its block"):
            await anext(stream)
        fake.will(started(), delta("a"), HANG)
        async with stream:
            await anext(stream)
        with pytest.raises(RuntimeError, match="was left"):
            await anext(stream)
        with pytest.raises(RuntimeError, match="entered once"):
            async with stream:
                pass
