"""What the client's own HTTP/2 sends, and every shape of answer, against a scripted peer."""

import base64

import grpc
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PriorityFrame,
)

from headrace import errors
from headrace.v1 import generation_pb2 as pb
from tests.support.fake_service import Fail
from tests.support.http2_calls import WHOLE, client_of, failure_of, generate, one_call, whole_call
from tests.support.http2_peer import RESPONSE, scripted_peer

Code = grpc.StatusCode


async def test_the_request_has_the_shape_that_grpc_asks_for() -> None:
    async with scripted_peer() as peer, client_of(peer) as client:
        metadata = [("x-id", "1"), ("x-raw-bin", b"\xff\x00"), ("authorization", "Bearer t"), ("te", "nothing")]
        async with generate(client, timeout_s=12.5, metadata=metadata):
            request = await (await peer.accept()).request()
    headers = dict(request.headers)
    amount, unit = int(headers["grpc-timeout"][:-1]), headers.pop("grpc-timeout")[-1]
    assert (12_000_000 < amount <= 12_500_000, unit) == (True, "u")
    assert headers.pop("user-agent").startswith("headrace-python/")
    assert "00-" in headers.pop("traceparent", "00-")
    assert headers == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/headrace.v1.GenerationService/Generate",
        ":authority": peer.address,
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-accept-encoding": "identity",
        "x-id": "1",
        "x-raw-bin": "/wA",
        "authorization": "Bearer t",
    }
    assert request.body[:1] == b"\x00"
    assert pb.GenerateRequest.FromString(bytes(request.body[5:])).prompt == "p"


async def test_a_server_may_forbid_a_compression_table() -> None:
    async with one_call({1: 0}) as (connection, stream_id, stream):
        connection.reset(stream_id, 7)
        await whole_call(connection)
        assert await stream.text() == "Hello world"


async def test_padding_priority_and_unknown_frames_change_nothing() -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.send(b"\x00\x00\x03\xbe\x00\x00\x00\x00\x00abc")  # an extension
        connection.send(PriorityFrame(stream_id, depends_on=0, stream_weight=3, exclusive=False))
        block = connection.block(RESPONSE)
        flags = ["END_HEADERS", "PADDED", "PRIORITY"]
        connection.send(HeadersFrame(stream_id, block, pad_length=9, depends_on=0, stream_weight=1, flags=flags))
        for event in WHOLE:
            connection.data(stream_id, event, pad=200)
            connection.data(stream_id, b"")
            connection.data(stream_id, b"", pad=1)
        connection.trailers(stream_id)
        assert await stream.text() == "Hello world"


async def test_messages_may_share_frames_and_frames_messages() -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id)
        every = b"".join(WHOLE)
        connection.data(stream_id, every[:3])
        connection.data(stream_id, every[3:20])
        connection.data(stream_id, every[20:])
        connection.trailers(stream_id)
        assert await stream.text() == "Hello world"


async def test_headers_and_trailers_may_take_many_frames() -> None:
    long = [(f"x-long-{n}", "v" * 500) for n in range(60)]
    async with one_call() as (connection, stream_id, stream):
        for fields, flags in (((*RESPONSE, *long), []), ((("grpc-status", "5"), *long), ["END_STREAM"])):
            block = connection.block(fields)
            third = len(block) // 3
            connection.send(
                HeadersFrame(stream_id, block[:third], flags=flags),
                ContinuationFrame(stream_id, block[third : 2 * third]),
                ContinuationFrame(stream_id, block[2 * third :], flags=["END_HEADERS"]),
            )
        assert isinstance(await failure_of(stream), errors.NotFound)


async def test_an_interim_response_is_not_the_response() -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id, [(":status", "103"), ("link", "x")])
        connection.headers(stream_id)
        connection.data(stream_id, b"".join(WHOLE))
        connection.trailers(stream_id)
        assert await stream.text() == "Hello world"


async def test_details_come_with_and_without_base64_padding() -> None:
    status = Fail(code=Code.NOT_FOUND, reason="MODEL_NOT_FOUND", metadata={"n": "12345"}).status().SerializeToString()
    for raw in (base64.b64encode(status).decode(), base64.b64encode(status).decode().rstrip("=")):
        async with one_call() as (connection, stream_id, stream):
            connection.refuse(stream_id, 5, grpc_message="no model %E2%82%AC %zz", grpc_status_details_bin=raw)
            error = await failure_of(stream)
        assert (type(error), error.reason, error.message) == (errors.NotFound, "MODEL_NOT_FOUND", "no model € %zz")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([(":status", "401")], Code.UNAUTHENTICATED),
        ([(":status", "403")], Code.PERMISSION_DENIED),
        ([(":status", "404")], Code.UNIMPLEMENTED),
        ([(":status", "400")], Code.INTERNAL),
        ([(":status", "302")], Code.UNKNOWN),
        ([(":status", "403"), ("grpc-status", "5"), ("content-type", "application/grpc")], Code.NOT_FOUND),
        ([(":status", "200"), ("content-type", "text/html")], Code.UNKNOWN),
        ([(":status", "200"), ("content-type", "application/grpc-web")], Code.UNKNOWN),
    ],
)
@pytest.mark.parametrize("is_last", [True, False])
async def test_an_answer_that_is_not_grpc_has_the_status_of_the_specification(
    fields: list[tuple[str, str]], status: grpc.StatusCode, *, is_last: bool
) -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id, fields, *(["END_STREAM"] if is_last else []))
        if not is_last:
            connection.data(stream_id, b"<html>", "END_STREAM")
        assert (await failure_of(stream)).status is status


@pytest.mark.parametrize("http_status", ["429", "502", "503", "504"])
async def test_a_proxy_that_is_busy_is_tried_again(http_status: str) -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id, [(":status", http_status), ("content-length", "5")])
        connection.data(stream_id, b"sorry", "END_STREAM")
        await whole_call(connection)
        assert await stream.text() == "Hello world"


RESETS = {
    1: Code.INTERNAL,
    2: Code.INTERNAL,
    8: Code.CANCELLED,
    11: Code.RESOURCE_EXHAUSTED,
    12: Code.PERMISSION_DENIED,
}


@pytest.mark.parametrize(("code", "status"), [*RESETS.items(), (0, Code.INTERNAL), (99, Code.UNKNOWN)])
@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_reset_has_the_status_of_the_specification(
    code: int, status: grpc.StatusCode, *, is_begun: bool
) -> None:
    async with one_call() as (connection, stream_id, stream):
        if is_begun:
            connection.headers(stream_id)
            connection.data(stream_id, WHOLE[0])
        connection.reset(stream_id, code)
        if status is Code.CANCELLED and not is_begun:  # a server that stops; the call is tried again
            for _ in range(2):
                connection.reset((await connection.request()).stream_id, code)
        assert (await failure_of(stream)).status is status


async def test_a_refused_stream_is_tried_again_without_a_wait() -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.reset(stream_id, 7)
        request = await connection.request()
        assert "grpc-previous-rpc-attempts" not in request.headers
        connection.headers(request.stream_id)
        connection.data(request.stream_id, b"".join(WHOLE))
        connection.trailers(request.stream_id)
        assert await stream.text() == "Hello world"


@pytest.mark.parametrize(
    ("pushback", "attempts"), [("-1", 1), ("soon", 1), ("0", 3)], ids=["never", "unreadable", "now"]
)
async def test_the_server_may_push_back_or_forbid_another_attempt(pushback: str, attempts: int) -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.refuse(stream_id, 14, grpc_retry_pushback_ms=pushback)
        for _ in range(attempts - 1):
            connection.refuse((await connection.request()).stream_id, 14, grpc_retry_pushback_ms=pushback)
        assert (await failure_of(stream)).status is Code.UNAVAILABLE
        assert connection.has_no_request


async def test_data_frames_of_any_size_are_one_stream_of_messages() -> None:
    async with one_call() as (connection, stream_id, stream):
        connection.headers(stream_id)
        for byte in b"".join(WHOLE):
            connection.send(DataFrame(stream_id, bytes([byte])))
        connection.trailers(stream_id)
        assert await stream.text() == "Hello world"
