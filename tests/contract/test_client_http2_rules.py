"""Peers that break the rules of HTTP/2 or gRPC, and what it costs them: the call, or the connection."""

import asyncio

import grpc
import pytest
from hyperframe.frame import (
    GoAwayFrame,
    RstStreamFrame,
)

from headrace import AsyncClient
from tests.support.fake_service import delta
from tests.support.http2_calls import WHOLE, client_of, failure_of, generate, one_call, raw, whole_call
from tests.support.http2_peer import message, scripted_peer

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (message(delta("x"), is_compressed=True), Code.INTERNAL),
        (b"\x00\x7f\xff\xff\xff", Code.RESOURCE_EXHAUSTED),
        (b"\x00\x00\x00\x00\x02\xff\xff", Code.INTERNAL),
    ],
    ids=["compressed", "over the limit", "not a message"],
)
async def test_a_message_that_cannot_be_taken_ends_the_call_alone(payload: bytes, status: grpc.StatusCode) -> None:
    async with scripted_peer() as peer, client_of(peer) as client:
        async with generate(client) as stream:
            connection = await peer.accept()
            stream_id = (await connection.request()).stream_id
            connection.headers(stream_id)
            connection.data(stream_id, payload)
            assert (await failure_of(stream)).status is status
            assert (await connection.frame(RstStreamFrame)).stream_id == stream_id
        async with generate(client) as stream:
            await whole_call(connection)
            assert await stream.text() == "Hello world"


@pytest.mark.parametrize("end", ["data", "trailers without a status", "within a message"])
async def test_a_stream_that_ends_without_saying_how_is_an_error(end: str) -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id)
        if end == "data":
            connection.data(stream_id, b"".join(WHOLE), "END_STREAM")
        elif end == "within a message":
            connection.data(stream_id, b"".join(WHOLE)[:-1])
            connection.trailers(stream_id)
        else:
            connection.data(stream_id, b"".join(WHOLE))
            connection.trailers(stream_id, [("x", "y")])
        assert (await failure_of(stream)).status in (Code.INTERNAL, Code.UNKNOWN)


BROKEN = {
    "data on stream 0": (raw(0, 0, 0, b"x"), 1),
    "data on a stream that never was": (raw(0, 0, 99, b"x"), 1),
    "headers on a stream of the server": (raw(1, 4, 2, b"\x88"), 1),
    "settings on a stream": (raw(4, 0, 1), 1),
    "settings of a broken length": (raw(4, 0, 0, b"12345"), 6),
    "a window past its bounds": (raw(8, 0, 0, b"\x7f\xff\xff\xff"), 3),
    "a window update of nothing": (raw(8, 0, 0, b"\0\0\0\0"), 1),
    "a ping of a broken length": (raw(6, 0, 0, b"1"), 6),
    "a push": (raw(5, 4, 1, b"\0\0\0\2"), 1),
    "a frame that is too large": (b"\x01\x00\x00\x00\x00\x00\x00\x00\x01", 6),
    "padding longer than its frame": (raw(1, 0xC, 1, b"\x09ab"), 1),
    "headers that cannot be decoded": (raw(1, 4, 1, b"\xff\xff\xff\xff\xff"), 9),
    "a continuation of nothing": (raw(9, 4, 1, b"\x88"), 1),
    "data within a header block": (raw(1, 0, 1, b"\x88") + raw(0, 0, 1, b"\0\0\0\0\1x"), 1),
    "a header block without end": (raw(1, 0, 1, b"\x88") + raw(9, 0, 1, b"x" * 16_000) * 66, 11),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_peer_that_breaks_the_connections_rules_loses_it(name: str) -> None:
    sent, code = BROKEN[name]
    async with scripted_peer() as peer, client_of(peer) as client, generate(client) as stream:
        connection = await peer.accept()
        await connection.request()
        connection.send(sent)
        assert (await connection.frame(GoAwayFrame)).error_code == code
        await asyncio.wait_for(connection.is_over.wait(), 10)
        await whole_call(await peer.accept())  # nothing had come back, so the call is tried again
        assert await stream.text() == "Hello world"


async def test_data_within_trailers_breaks_the_connection() -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id)
        connection.data(stream_id, WHOLE[0])
        connection.send(raw(1, 1, stream_id, b"\x88"))
        connection.data(stream_id, WHOLE[1])
        error = await failure_of(stream)
        assert (error.status, error.events_received) == (Code.UNAVAILABLE, 1)
        assert (await connection.frame(GoAwayFrame)).error_code == 1


@pytest.mark.parametrize("what", ["data before headers", "headers after headers"])
async def test_a_response_out_of_order_ends_the_call_alone(what: str) -> None:
    async with one_call() as (connection, stream_id, stream):
        if what == "data before headers":
            connection.data(stream_id, WHOLE[0])
        else:
            connection.headers(stream_id)
            connection.headers(stream_id)
        assert (await failure_of(stream)).status is Code.INTERNAL
        reset = await connection.frame(RstStreamFrame)
        assert (reset.stream_id, reset.error_code) == (stream_id, 1)


async def test_a_server_of_another_protocol_is_unavailable_in_words() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AsyncClient(address, transport="asyncio") as client, generate(client) as stream:
        error = await failure_of(stream)
    assert error.status is Code.UNAVAILABLE
    assert "HTTP/2" in error.message


async def test_a_target_that_only_grpc_knows_and_options_of_its_own_use_grpc() -> None:
    async with (
        scripted_peer() as peer,
        client_of(peer, channel_options={"grpc.lb_policy_name": "pick_first"}) as client,
        generate(client),
    ):
        connection = await peer.accept()
        assert "grpc-c/" in (await connection.request()).headers["user-agent"]
