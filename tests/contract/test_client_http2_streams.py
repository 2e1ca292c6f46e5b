"""Streams of the client's own HTTP/2 over their life: windows, limits, GOAWAY, cancels, silence of a scripted peer."""

import asyncio

import grpc
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from headrace import errors
from headrace.v1 import generation_pb2 as pb
from tests.support.fake_service import completed, delta, finished, started
from tests.support.http2_calls import WHOLE, client_of, failure_of, generate, numbered, one_call, whole_call
from tests.support.http2_peer import RESPONSE, PeerConnection, scripted_peer

Code = grpc.StatusCode
WINDOW_BYTES = 12_288  # of a stream, as the client announces it


async def test_streams_below_a_goaway_end_well_and_later_calls_take_another_connection() -> None:
    async with scripted_peer() as peer, client_of(peer) as client, generate(client) as first:
        old = await peer.accept()
        first_id = (await old.request()).stream_id
        old.headers(first_id)
        old.data(first_id, WHOLE[0])
        assert (await anext(first)).HasField("started")
        async with generate(client) as second:
            await old.request()
            old.goaway(first_id)  # the second was not looked at: it goes elsewhere by itself
            moved = await whole_call(await peer.accept())
            assert await second.text() == "Hello world"
            assert "grpc-previous-rpc-attempts" not in moved.headers
        old.data(first_id, b"".join(WHOLE[1:]))
        old.trailers(first_id)
        assert await first.text() == "Hello world"
        await asyncio.wait_for(old.is_over.wait(), 10)  # the client leaves when nothing is left


async def test_a_server_that_turns_every_connection_away_is_unavailable_and_not_stormed() -> None:
    async with scripted_peer(farewell=True) as peer, client_of(peer) as client, generate(client) as stream:
        error = await failure_of(stream)
        assert error.status is Code.UNAVAILABLE
        assert len(peer.connections) <= 3  # no more than a call has attempts: the backoff lies between connections


async def test_a_graceful_goaway_comes_in_two_steps() -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.goaway(2**31 - 1)
        connection.headers(stream_id)
        connection.goaway(stream_id)
        connection.data(stream_id, b"".join(WHOLE))
        connection.trailers(stream_id)
        assert await stream.text() == "Hello world"


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_connection_that_is_cut_is_unavailable_and_tried_again_only_before_a_response(
    *, is_begun: bool
) -> None:
    async with scripted_peer() as peer, client_of(peer) as client, generate(client) as stream:
        connection = await peer.accept()
        stream_id = (await connection.request()).stream_id
        if is_begun:
            connection.headers(stream_id)
            connection.data(stream_id, b"".join(WHOLE[:2]))
            assert (await anext(stream)).HasField("started")
            connection.cut()
            error = await failure_of(stream)
            assert (error.status, error.events_received) == (Code.UNAVAILABLE, 2)
        else:
            connection.cut()
            await whole_call(await peer.accept())
            assert await stream.text() == "Hello world"


async def test_leaving_resets_the_stream_with_cancel_and_late_frames_are_ignored() -> None:
    async with scripted_peer() as peer, client_of(peer) as client:
        async with generate(client):
            connection = await peer.accept()
            stream_id = (await connection.request()).stream_id
        reset = await connection.frame(RstStreamFrame)
        assert (reset.stream_id, reset.error_code) == (stream_id, 8)
        # In flight when the reset went out; the header block also changes the table for the next one.
        connection.headers(stream_id, [*RESPONSE, ("x-late", "entered in the table")])
        connection.data(stream_id, b"".join(WHOLE))
        connection.send(WindowUpdateFrame(stream_id, window_increment=10))
        connection.trailers(stream_id)
        async with generate(client) as stream:
            request = await connection.request()
            connection.headers(request.stream_id, [*RESPONSE, ("x-late", "entered in the table")])
            connection.data(request.stream_id, b"".join(WHOLE))
            connection.trailers(request.stream_id)
            assert await stream.text() == "Hello world"


async def test_headers_too_long_for_a_stream_cost_that_stream_alone() -> None:
    async with scripted_peer() as peer, client_of(peer) as client, generate(client) as other:
        connection = await peer.accept()
        other_id = (await connection.request()).stream_id
        async with generate(client) as stream:
            stream_id = (await connection.request()).stream_id
            block = connection.block([*RESPONSE, ("grpc-status", "3"), ("x-late", "k"), ("grpc-message", "?" * 70_000)])
            first, *rest = (block[at : at + 16_000] for at in range(0, len(block), 16_000))
            continued = [ContinuationFrame(stream_id, part) for part in rest]
            continued[-1].flags.add("END_HEADERS")
            connection.send(HeadersFrame(stream_id, first, flags=["END_STREAM"]), *continued)
            failure = await failure_of(stream)
            assert (failure.status, "65536 bytes" in failure.message) == (Code.RESOURCE_EXHAUSTED, True)
        connection.headers(other_id, [*RESPONSE, ("x-late", "k")])  # by the table that the long block has changed
        connection.data(other_id, b"".join(WHOLE))
        connection.trailers(other_id)
        assert await other.text() == "Hello world"


async def test_the_deadline_ends_a_call_in_whatever_state_and_tells_the_server() -> None:
    async with one_call(timeout_s=0.2) as (connection, stream_id, stream):
        connection.headers(stream_id)
        assert (await failure_of(stream)).status is Code.DEADLINE_EXCEEDED
        assert (await connection.frame(RstStreamFrame)).error_code == 8
    for greeting in (None, {3: 0}):  # a server that never greets, and one that takes no streams
        async with (
            scripted_peer(greeting) as peer,
            client_of(peer) as client,
            generate(client, timeout_s=0.2) as stream,
        ):
            assert (await failure_of(stream)).status is Code.DEADLINE_EXCEEDED


async def test_a_window_is_given_back_only_when_the_reader_has_read() -> None:
    big = numbered(started(), *[delta("x" * 990) for _ in range(20)], finished(), completed())
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id)
        window = WINDOW_BYTES
        backlog = list(big)
        while backlog and len(backlog[0]) <= window:
            window -= len(backlog[0])
            connection.data(stream_id, backlog.pop(0))
        await no_window_for(connection)
        assert (await anext(stream)).HasField("started")
        reader = asyncio.ensure_future(stream.text())
        update = await connection.frame(WindowUpdateFrame, stream_id)
        assert update.window_increment == WINDOW_BYTES - window
        for event in backlog:
            connection.data(stream_id, event)
        connection.trailers(stream_id)
        assert len(await reader) == 20 * 990


async def no_window_for(connection: PeerConnection) -> None:
    connection.send(PingFrame(0, b"12345678"))
    pong = await connection.frame(PingFrame)
    assert (pong.opaque_data, "ACK" in pong.flags) == (b"12345678", True)  # all was read from the socket,
    assert connection.has_no_frame  # and nothing was given back


async def test_a_message_that_nobody_waits_for_gets_no_window_beyond_the_first() -> None:
    start, big, *end = numbered(started(), delta("y" * 40_000), finished(), completed())
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id)
        connection.data(stream_id, start)
        assert (await anext(stream)).HasField("started")
        window = WINDOW_BYTES - len(start)
        connection.data(stream_id, big[:window])
        await no_window_for(connection)
        reader = asyncio.ensure_future(stream.text())
        assert (await connection.frame(WindowUpdateFrame, stream_id)).window_increment == WINDOW_BYTES
        rest = big[window:] + b"".join(end)
        for at in range(0, len(rest), 9_000):
            connection.data(stream_id, rest[at : at + 9_000])
            if at + 9_000 < len(rest):
                await connection.frame(WindowUpdateFrame, stream_id)
        connection.trailers(stream_id)
        assert len(await reader) == 40_000


async def test_a_message_larger_than_the_window_comes_through() -> None:
    big = b"".join(numbered(started(), delta("y" * 300_000), finished(), completed()))
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id)
        reader = asyncio.ensure_future(stream.text())
        window, sent = WINDOW_BYTES, 0
        while sent < len(big):
            size = min(16_384, window, len(big) - sent)
            if not size:
                window += (await connection.frame(WindowUpdateFrame, stream_id)).window_increment
                continue
            connection.data(stream_id, big[sent : sent + size])
            window, sent = window - size, sent + size
        connection.trailers(stream_id)
        assert len(await reader) == 300_000


async def test_a_server_that_sends_past_the_window_loses_the_stream_and_not_the_connection() -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id)
        for event in numbered(started(), *[delta("x" * 990) for _ in range(70)]):
            connection.data(stream_id, event)
        reset = await connection.frame(RstStreamFrame)
        assert (reset.stream_id, reset.error_code) == (stream_id, 3)
        assert (await failure_of(stream)).status is Code.INTERNAL


@pytest.mark.report("J05")
async def test_streams_over_the_servers_limit_take_another_connection() -> None:
    async with scripted_peer({3: 2}) as peer, client_of(peer) as client:

        async def read() -> str:
            async with generate(client) as stream:
                return await stream.text()

        readers = [asyncio.ensure_future(read()) for _ in range(3)]
        first = await peer.accept()
        held = [(await first.request()).stream_id for _ in range(2)]
        await whole_call(await peer.accept())
        for stream_id in held:
            first.headers(stream_id)
            first.data(stream_id, b"".join(WHOLE))
            first.trailers(stream_id)
        assert await asyncio.gather(*readers) == ["Hello world"] * 3


@pytest.mark.report("J05")
async def test_when_no_more_connections_are_made_calls_wait_for_a_place() -> None:
    async with scripted_peer({3: 1}) as peer, client_of(peer) as client:

        async def read() -> str:
            async with generate(client) as stream:
                return await stream.text()

        readers = [asyncio.ensure_future(read()) for _ in range(12)]
        connections = [await peer.accept() for _ in range(4)]

        async def serve(connection: PeerConnection) -> None:
            while True:
                await whole_call(connection)

        servers = [asyncio.ensure_future(serve(connection)) for connection in connections]
        assert await asyncio.wait_for(asyncio.gather(*readers), 10) == ["Hello world"] * 12
        for server in servers:
            server.cancel()
        assert len(peer.connections) == 4


async def test_a_large_request_waits_for_the_servers_windows() -> None:
    request = {"model": "m", "prompt": "p" * 200_000}
    async with (
        scripted_peer({4: 1000}) as peer,
        client_of(peer) as client,
        client.generate(pb.GenerateRequest(**request)) as stream,
    ):
        connection = await peer.accept()
        connection.send(SettingsFrame(0, settings={4: 30_000}))  # widens streams that are open, too
        await whole_call(connection)
        assert await stream.text() == "Hello world"


async def test_nothing_of_a_request_is_sent_behind_its_cancel() -> None:
    request = pb.GenerateRequest(model="m", prompt="p" * 500_000)
    async with scripted_peer({4: 10**6}) as peer, client_of(peer) as client:
        async with client.generate(request):
            connection = await peer.accept()
            connection.gives_windows = False
        await connection.frame(RstStreamFrame)
        connection.send(WindowUpdateFrame(0, window_increment=10**6))
        async with generate(client) as stream:
            await whole_call(connection)
            assert await stream.text() == "Hello world"
        assert connection.data_after_reset == 0


async def test_a_server_that_answers_before_it_has_read_everything_is_heard() -> None:
    request = pb.GenerateRequest(model="m", prompt="p" * 500_000)
    async with scripted_peer() as peer, client_of(peer) as client, client.generate(request) as stream:
        connection = await peer.accept()
        connection.gives_windows = False
        connection.refuse(1, 8, grpc_message="too large")
        assert (await failure_of(stream)).message == "too large"
        reset = await connection.frame(RstStreamFrame)
        assert (reset.stream_id, reset.error_code) == (1, 0)


async def test_closing_the_client_resets_its_calls_and_says_goodbye() -> None:
    async with scripted_peer() as peer:
        client = client_of(peer)
        async with generate(client) as stream:
            connection = await peer.accept()
            stream_id = (await connection.request()).stream_id
            await client.close()
            assert (await connection.frame(RstStreamFrame)).stream_id == stream_id
            assert (await connection.frame(GoAwayFrame)).error_code == 0
            assert isinstance(await failure_of(stream), errors.Cancelled)


async def test_a_silent_server_is_pinged_and_given_up() -> None:
    options = {"grpc.keepalive_time_ms": 100, "grpc.keepalive_timeout_ms": 100}
    async with scripted_peer() as peer, client_of(peer, channel_options=options) as client, generate(client) as stream:
        connection = await peer.accept()
        request = await connection.request()
        connection.headers(request.stream_id)
        for _ in range(3):
            ping = await connection.frame(PingFrame)
            connection.send(PingFrame(0, ping.opaque_data, flags=["ACK"]))
        await connection.frame(PingFrame)  # not answered
        error = await failure_of(stream)
        assert error.status is Code.UNAVAILABLE
        assert "keepalive" in error.message
