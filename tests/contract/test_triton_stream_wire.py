"""One stream to a peer that is scripted frame by frame: resets, GOAWAY, HTTP answers, silence, batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hyperframe.frame import GoAwayFrame, PingFrame, RstStreamFrame
from tritonclient.grpc import service_pb2

from service.backends.triton.stream import InferStream
from service.core.errors import Reason, ServiceError
from tests.support.http2_peer import PeerConnection, message, scripted_peer
from tests.support.triton_streams import TRANSPORTS, WAIT_S, Triton, failure_of, reached, request, words_of

both = pytest.mark.parametrize("transport", TRANSPORTS)

TOO_LONG = "prompt length (9) exceeds maximum input length (8)"
CANCEL, REFUSED_STREAM, INTERNAL_ERROR = 8, 7, 2


def word(text: bytes, *, is_final: bool = False, error: str = "") -> bytes:
    """Return a response with its gRPC prefix."""
    response = service_pb2.ModelStreamInferResponse(error_message=error)
    response.infer_response.raw_output_contents.append(text)
    response.infer_response.parameters["triton_final_response"].bool_param = is_final
    return message(response)


@asynccontextmanager
async def one_stream(
    transport: str = "asyncio", *, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[PeerConnection, int, InferStream, Triton]]:
    """A stream that has reached the peer, with its connection and its id there."""
    async with scripted_peer() as peer, reached(peer.address, transport, **options) as triton:
        stream = triton.stream(**(limits or {}))
        connection = await peer.accept()
        yield connection, (await connection.request()).stream_id, stream, triton


async def test_the_request_is_a_bidirectional_call_that_sends_one_message_and_half_closes() -> None:
    async with scripted_peer() as peer, reached(peer.address, "asyncio") as triton:
        triton.stream(request(b"hi"), metadata=[("triton_grpc_error", "true")])
        connection = await peer.accept()
        sent = await connection.request()  # whole, so with END_STREAM
        assert sent.headers[":path"] == "/inference.GRPCInferenceService/ModelStreamInfer"
        assert sent.headers["te"] == "trailers"
        assert sent.headers["grpc-timeout"].endswith("u")
        assert sent.headers["triton_grpc_error"] == "true"
        body = bytes(sent.body)
        assert body[:5] == b"\0" + len(body[5:]).to_bytes(4)
        assert service_pb2.ModelInferRequest.FromString(body[5:]) == request(b"hi")


async def test_everything_that_came_is_taken_at_once_and_nothing_is_waited_for() -> None:
    async with one_stream() as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, b"".join(word(b"%d" % number) for number in range(100)))
        taken = []
        for _ in range(2):
            responses = await stream.take()
            taken.append([bytes(raw) for response in responses for raw in response.raw_output_contents])
        assert [len(one) for one in taken] == [64, 36]
        assert taken[0] + taken[1] == [b"%d" % number for number in range(100)]
        assert not stream.is_final
        connection.data(stream_id, word(b"end", is_final=True) + word(b"never"))
        assert await words_of(stream) == [b"end"]


async def test_a_backlog_of_one_stream_leaves_turns_to_other_tasks() -> None:
    async with one_stream() as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, b"".join(word(b"x") for _ in range(200)))
        connection.data(stream_id, word(b"", is_final=True))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        await stream.take()  # so that the rest has arrived
        task, before = asyncio.create_task(others()), turns
        await words_of(stream)
        task.cancel()
        assert turns > before


@both
async def test_what_came_before_an_error_in_the_stream_is_handed_out_first(transport: str) -> None:
    async with one_stream(transport) as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, word(b"a") + word(b"b") + word(b"", error=TOO_LONG) + word(b"c"))
        seen: list[bytes] = []
        with pytest.raises(ServiceError, match="failed to generate") as caught:
            while True:
                seen += [bytes(raw) for one in await stream.take() for raw in one.raw_output_contents]
        assert seen == [b"a", b"b"]
        # The caller's own mistake would have shown before any output.
        assert caught.value.reason is Reason.BACKEND_ERROR
        assert caught.value.detail == TOO_LONG
        with pytest.raises(ServiceError, match="failed to generate"):
            await stream.take()


async def test_what_came_before_a_status_is_handed_out_first() -> None:
    async with one_stream() as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, word(b"a") + word(b"b"))
        connection.trailers(stream_id, [("grpc-status", "14"), ("grpc-message", "Server exiting%3A sp%C3%A4ter")])
        responses = await stream.take()
        assert [response.raw_output_contents[0] for response in responses] == [b"a", b"b"]
        with pytest.raises(ServiceError) as caught:
            await stream.take()
        assert caught.value.detail == "UNAVAILABLE: Server exiting: später"


@both
async def test_a_message_that_cannot_be_read_is_a_fault_of_the_server(transport: str) -> None:
    async with one_stream(transport) as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, word(b"a") + b"\0\0\0\0\2\xff\xff")
        assert (await failure_of(stream)).reason is Reason.BACKEND_ERROR


@both
async def test_an_end_within_a_message_is_no_success(transport: str) -> None:
    async with one_stream(transport) as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, word(b"a") + word(b"b", is_final=True)[:-1])
        connection.trailers(stream_id)
        await failure_of(stream)


@both
@pytest.mark.parametrize(
    ("code", "reason", "detail"),
    [
        (CANCEL, Reason.BACKEND_ERROR, "CANCELLED"),
        (INTERNAL_ERROR, Reason.BACKEND_ERROR, "INTERNAL"),
        (REFUSED_STREAM, Reason.BACKEND_UNAVAILABLE, "UNAVAILABLE"),
    ],
)
async def test_a_reset_within_the_stream_is_a_failure(transport: str, code: int, reason: Reason, detail: str) -> None:
    async with one_stream(transport) as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, word(b"a"))
        await stream.take()
        connection.reset(stream_id, code)
        error = await failure_of(stream)
        assert error.reason is reason
        assert (error.detail or "").startswith(detail)


@both
async def test_a_connection_that_is_cut_is_unavailable_and_starts_nothing_again(transport: str) -> None:
    async with one_stream(transport) as (connection, _, stream, _):
        connection.cut()
        assert (await failure_of(stream)).reason is Reason.BACKEND_UNAVAILABLE
        assert connection.has_no_request


@both
@pytest.mark.parametrize(
    ("status", "reason"),
    [("503", Reason.BACKEND_UNAVAILABLE), ("502", Reason.BACKEND_UNAVAILABLE), ("404", Reason.BACKEND_ERROR)],
)
async def test_an_answer_of_http_alone_is_mapped(transport: str, status: str, reason: Reason) -> None:
    async with one_stream(transport) as (connection, stream_id, stream, _):
        connection.trailers(stream_id, [(":status", status), ("content-type", "text/html")])
        error = await failure_of(stream)
        assert error.reason is reason
        assert status in (error.detail or "")


@both
async def test_a_status_without_any_response_is_mapped(transport: str) -> None:
    async with one_stream(transport) as (connection, stream_id, stream, _):
        connection.refuse(stream_id, 5, grpc_message="no model %27x%27")
        error = await failure_of(stream)
        assert error.reason is Reason.BACKEND_UNAVAILABLE
        assert error.detail == "NOT_FOUND: no model 'x'"


@both
async def test_a_stream_that_runs_goes_on_to_its_end_behind_a_goaway(transport: str) -> None:
    async with one_stream(transport) as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, word(b"a"))
        await stream.take()
        connection.goaway(stream_id)
        connection.data(stream_id, word(b"b", is_final=True))
        connection.trailers(stream_id)
        assert await words_of(stream) == [b"b"]
        await stream.drain()


@pytest.mark.parametrize("how", ["goaway", "refused"])
async def test_a_request_that_was_not_looked_at_moves_on_once(how: str) -> None:
    async with scripted_peer() as peer, reached(peer.address, "asyncio") as triton:
        stream = triton.stream()
        connection = await peer.accept()
        first = await connection.request()
        if how == "goaway":
            connection.goaway(0)
            connection = await peer.accept()
        else:
            connection.reset(first.stream_id, REFUSED_STREAM)
        second = await connection.request()
        assert second.body == first.body
        if how == "goaway":
            connection.goaway(0)
        else:
            connection.reset(second.stream_id, REFUSED_STREAM)
        assert (await failure_of(stream)).reason is Reason.BACKEND_UNAVAILABLE


async def test_a_request_that_may_have_run_is_never_sent_again() -> None:
    async with scripted_peer() as peer, reached(peer.address, "asyncio") as triton:
        stream = triton.stream()
        connection = await peer.accept()
        sent = await connection.request()
        connection.refuse(sent.stream_id, 14)
        assert (await failure_of(stream)).reason is Reason.BACKEND_UNAVAILABLE
        assert connection.has_no_request


async def test_a_connection_that_is_half_dead_ends_within_the_keepalive() -> None:
    times = {"keepalive_time_s": 0.1, "keepalive_timeout_s": 0.1}
    async with one_stream(**times) as (connection, _, stream, _):
        failing = asyncio.create_task(failure_of(stream))
        await connection.frame(PingFrame)  # which the peer does not answer
        error = await failing
        assert error.reason is Reason.BACKEND_UNAVAILABLE
        assert "keepalive" in (error.detail or "")


@pytest.mark.parametrize("how", ["cancelled wait", "close", "abort"])
async def test_the_reset_is_on_its_way_before_anyone_waits(how: str) -> None:
    async with one_stream() as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, word(b"a"))
        await stream.take()
        if how == "cancelled wait":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await stream.take()
        elif how == "close":
            stream.close()
        else:
            stream.abort(ServiceError(Reason.BACKEND_UNAVAILABLE, "closing"))
        reset = await connection.frame(RstStreamFrame, stream_id)
        assert reset.error_code == CANCEL


@pytest.mark.report("I01")
async def test_a_status_that_is_held_back_is_not_waited_for() -> None:
    async with one_stream() as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        connection.data(stream_id, word(b"a", is_final=True))
        assert await words_of(stream) == [b"a"]
        async with asyncio.timeout(WAIT_S):
            await stream.drain()
        assert (await connection.frame(RstStreamFrame, stream_id)).error_code == CANCEL


async def test_a_peer_that_sends_past_the_window_loses_the_stream() -> None:
    async with one_stream() as (connection, stream_id, stream, _):
        connection.headers(stream_id)
        for _ in range(6):
            connection.data(stream_id, word(b"x" * 16_000))
        with pytest.raises(ServiceError) as caught:
            await asyncio.sleep(0)
            while True:
                await stream.take()
        assert caught.value.reason is Reason.BACKEND_ERROR


async def test_closing_the_opener_ends_streams_and_leaves_with_a_goaway() -> None:
    async with scripted_peer() as peer:
        async with reached(peer.address, "asyncio") as triton:
            stream = triton.stream()
            connection = await peer.accept()
            await connection.request()
        assert (await failure_of(stream)).detail == "CANCELLED: the client was closed"
        await connection.frame(GoAwayFrame)
        async with asyncio.timeout(WAIT_S):
            await connection.is_over.wait()


@both
async def test_a_peer_that_speaks_no_http2_is_unavailable(transport: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, reached(address, transport) as triton:
        assert (await failure_of(triton.stream(timeout_s=5))).reason is Reason.BACKEND_UNAVAILABLE
