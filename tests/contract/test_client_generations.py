"""Waiting, asking and cancelling by id, against a scripted service."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from headrace import AsyncClient, cancel_generation, errors, generate_text, get_generation
from headrace.v1 import generation_pb2 as pb
from tests.support.fake_service import HANG, Fail, completed, delta, fake_service, finished, queued, started

LINE = (queued(3, 2.5), queued(1), queued(0), started(), delta("Hel"), delta("lo"), finished(), completed())


async def test_places_in_the_line_come_before_the_start_if_asked_for() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*LINE)
        async with client.generate(model="m", prompt="p", queue_events=True, priority="batch") as stream:
            assert (stream.generation_id, stream.queued) == (None, None)
            first = await anext(stream)
            assert (first.queued.ahead_count, first.queued.estimated_wait.ToTimedelta().total_seconds()) == (3, 2.5)
            assert (stream.generation_id, stream.request_id, stream.started) == ("gen-1", "req-1", None)
            rest = [event async for event in stream]
            assert stream.queued is not None
            assert (stream.queued.ahead_count, stream.queued.HasField("estimated_wait")) == (0, False)
        assert [event.sequence for event in (first, *rest)] == list(range(1, 9))
        assert [event.WhichOneof("event") for event in rest[:3]] == ["queued", "queued", "started"]
        request = (await fake.next_call()).request
        assert (request.output.queue_events, request.priority) == (True, pb.PRIORITY_BATCH)


async def test_text_is_the_same_with_and_without_places_in_the_line() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*LINE)
        fake.will(*LINE)
        async with client.generate(model="m", prompt="p", queue_events=True) as stream:
            assert await stream.text() == "Hello"
        async with client.generate(model="m", prompt="p", queue_events=True) as stream:
            assert [piece async for piece in stream.deltas()] == ["Hel", "lo"]


async def test_nobody_gets_places_in_the_line_unasked() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        async with client.generate(model="m", prompt="p") as stream:
            await anext(stream)
            assert (stream.queued, stream.generation_id) == (None, "gen-1")  # by started, or by the metadata with it
        assert not (await fake.next_call()).request.HasField("output")


async def test_the_metadata_tells_the_id_before_an_event_that_this_client_knows() -> None:
    newer = pb.GenerateResponse.FromString(bytes([0xFA, 0x01, 0x00]))  # field 31, an empty message
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(newer, queued(generation_id=""), HANG)
        async with client.generate(model="m", prompt="p", queue_events=True) as stream:
            await anext(stream)
            assert (stream.generation_id, stream.request_id) == ("gen-1", "req-1")


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ((started(), queued()), "`queued` came after `started`"),
        ((started(), started()), "`started` came after `started`"),
        ((queued(), finished()), "`choice_finished` came before `started`"),
        ((completed(),), "`completed` came before `started`"),
        ((queued(), delta("a")), "`delta` came before `started`"),
    ],
)
async def test_events_out_of_their_order_are_an_error(script: tuple[Any, ...], complaint: str) -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(*script, HANG)
        async with client.generate(model="m", prompt="p") as stream:
            with pytest.raises(errors.ProtocolError, match=complaint):
                await stream.text()
            await (await fake.next_call()).wait_cancelled()


async def test_a_generation_tells_where_it_is() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        go, end = asyncio.Event(), asyncio.Event()
        fake.will(queued(1), go, started(), delta("a"), end, finished(), completed())
        async with client.generate(model="m", prompt="p", queue_events=True, priority="batch") as stream:
            await anext(stream)
            assert stream.generation_id is not None
            found = await client.get_generation(stream.generation_id)
            assert (found.state, found.priority) == (pb.GENERATION_STATE_QUEUED, pb.PRIORITY_BATCH)
            go.set()
            await anext(stream)
            await anext(stream)
            found = await client.get_generation(stream.generation_id)
            assert (found.state, found.last_sequence) == (pb.GENERATION_STATE_RUNNING, 3)
            end.set()
            await stream.text()
        assert (await client.get_generation("gen-1")).state == pb.GENERATION_STATE_COMPLETED


async def test_one_client_cancels_what_another_one_reads() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as reader, AsyncClient(fake.address) as other:
        fake.will(started(), delta("so far"), HANG)
        async with reader.generate(model="m", prompt="p", choice_count=2) as stream:
            await anext(stream)
            assert stream.generation_id is not None
            answer = await other.cancel_generation(stream.generation_id)
            assert answer.state == pb.GENERATION_STATE_RUNNING  # told to stop, and not yet at its end
            assert await stream.text() == "so far"
        assert stream.finish_reasons == {0: "CANCELLED", 1: "CANCELLED"}
        assert stream.usage is not None
        assert stream.usage.output_token_count == 2
        again = await other.cancel_generation(stream.generation_id)
        assert again.state == pb.GENERATION_STATE_CANCELLED


async def test_one_that_waits_is_cancelled_too_and_one_that_has_ended_stays_as_it_is() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.will(queued(2), HANG)
        async with client.generate(model="m", prompt="p", queue_events=True) as stream:
            await anext(stream)
            await client.cancel_generation("gen-1")
            assert await stream.text() == ""
        assert stream.finish_reasons == {0: "CANCELLED"}
        async with client.generate(model="m", prompt="p") as stream:
            await stream.text()
        assert (await client.cancel_generation("gen-1")).state == pb.GENERATION_STATE_COMPLETED


Ask = Callable[..., Any]
ASKS: dict[str, Ask] = {
    "get_generation": AsyncClient.get_generation,
    "cancel_generation": AsyncClient.cancel_generation,
}


@pytest.mark.parametrize("name", ASKS)
async def test_a_generation_that_the_server_does_not_know_is_not_found(name: str) -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        with pytest.raises(errors.NotFound) as caught:
            await ASKS[name](client, "gen-9")
        assert (caught.value.reason, caught.value.status) == ("GENERATION_NOT_FOUND", grpc.StatusCode.NOT_FOUND)


@pytest.mark.parametrize("name", ASKS)
async def test_asking_has_a_deadline_and_metadata_like_every_call(name: str) -> None:
    async with fake_service() as fake, AsyncClient(fake.address, metadata={"authorization": "t"}) as client:
        fake.generations["gen-1"] = pb.GetGenerationResponse(state=pb.GENERATION_STATE_FAILED)
        await ASKS[name](client, "gen-1")
        await ASKS[name](client, "gen-1", timeout_s=3, metadata={"x-request-id": "r"})
        (first, first_left_s), (second, second_left_s) = fake.model_calls
        assert 9 < first_left_s < 10.5  # the wire rounds a little up
        assert 2 < second_left_s < 3.5
        assert (first["authorization"], second["authorization"], second["x-request-id"]) == ("t", "t", "r")
        with pytest.raises(ValueError, match="finite"):
            await ASKS[name](client, "gen-1", timeout_s=float("nan"))


async def test_the_synchronous_calls_ask_and_cancel() -> None:
    async with fake_service() as fake:
        fake.will(started(), delta("so far"), HANG)
        text = asyncio.ensure_future(asyncio.to_thread(generate_text, "p", target=fake.address, model="m"))
        await fake.next_call()
        while not fake.calls[0].is_started:  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0.01)
        found = await asyncio.to_thread(get_generation, "gen-1", target=fake.address)
        assert found.state == pb.GENERATION_STATE_RUNNING
        answer = await asyncio.to_thread(cancel_generation, "gen-1", target=fake.address, metadata={"x": "y"})
        assert answer.state == pb.GENERATION_STATE_RUNNING
        assert fake.model_calls[-1][0]["x"] == "y"
        # A text alone would not tell that it is not the whole.
        with pytest.raises(errors.Cancelled, match="gen-1 was stopped"):
            await text
    for call in (get_generation, cancel_generation):
        with pytest.raises(RuntimeError, match="running event loop"):
            call("gen-1")


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [({"bad key": "x"}, "'bad key'"), ({"k": "caf\u00e9"}, "'k'"), ({"k": 5}, "'k'"), ({"": "x"}, "''")],
)
async def test_metadata_that_cannot_be_sent_is_refused_by_its_key(metadata: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"metadata key {complaint}"):
        AsyncClient("127.0.0.1:1", metadata=metadata)
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(ValueError, match=f"metadata key {complaint}"):
            client.generate(model="m", prompt="p", metadata=metadata)
        with pytest.raises(ValueError, match=f"metadata key {complaint}"):
            await client.get_model("m", metadata=metadata)


async def test_binary_metadata_may_be_text_or_bytes() -> None:
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        metadata: Any = [("x-bin", "text"), ("y-bin", b"\xff")]
        async with client.generate(model="m", prompt="p", metadata=metadata) as stream:
            await stream.text()
        call = await fake.next_call()
        assert (call.header("x-bin"), call.header("y-bin")) == (b"text", b"\xff")


@pytest.mark.parametrize(
    ("reason", "status", "kind", "is_retriable"),
    [
        ("QUEUE_TIMEOUT", grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded, True),
        ("FIRST_TOKEN_TIMEOUT", grpc.StatusCode.UNAVAILABLE, errors.Unavailable, True),
        ("TOKEN_GAP_TIMEOUT", grpc.StatusCode.UNAVAILABLE, errors.Unavailable, False),
    ],
)
async def test_every_limit_of_the_server_has_its_own_reason(
    reason: str, status: grpc.StatusCode, kind: type[errors.HeadraceError], *, is_retriable: bool
) -> None:
    failure = Fail(code=status, reason=reason, retry_after_s=1.5 if reason == "QUEUE_TIMEOUT" else None)
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        fake.default = (failure,) if is_retriable else (started(), delta("a"), failure)
        async with client.generate(model="m", prompt="p") as stream:
            with pytest.raises(kind) as caught:
                await stream.text()
        assert (caught.value.reason, caught.value.is_retriable) == (reason, is_retriable)
        assert caught.value.retry_after_s == failure.retry_after_s
