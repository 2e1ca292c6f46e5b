"""What the client tries again by itself, on either transport: gRFC A6, against a scripted peer."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import grpc
import pytest

from headrace import AsyncClient, errors
from headrace._channel import DEFAULT_OPTIONS
from headrace.v1 import generation_pb2 as pb
from headrace.v1 import generation_pb2_grpc
from tests.support.fake_service import Fail, fake_service
from tests.support.http2_calls import WHOLE, failure_of, generate, whole_call
from tests.support.http2_peer import PeerConnection, scripted_peer

Code = grpc.StatusCode
UNAVAILABLE, EXHAUSTED = Code.UNAVAILABLE.value[0], Code.RESOURCE_EXHAUSTED.value[0]
REFUSED_STREAM, CANCEL = 7, 8
PREVIOUS = "grpc-previous-rpc-attempts"


async def test_a_stream_that_the_server_refused_unseen_is_sent_again(transport: str) -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client) as stream:
        connection = await peer.accept()
        connection.reset((await connection.request()).stream_id, REFUSED_STREAM)
        # The first time is free on the client's own transport, as A6 has it; for grpcio it is an attempt.
        expected = [None, "1", "2"] if transport == "asyncio" else ["1", "2"]
        attempts = []
        for _ in expected:
            request = await connection.request()
            attempts.append(request.headers.get(PREVIOUS))
            connection.refuse(request.stream_id, UNAVAILABLE, grpc_retry_pushback_ms="1")
        assert (await failure_of(stream)).status is Code.UNAVAILABLE
        assert attempts == expected
        assert connection.has_no_request


async def test_a_stream_that_is_always_refused_fails(transport: str) -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client) as stream:
        connection = await peer.accept()
        for _ in range(4 if transport == "asyncio" else 3):
            connection.reset((await connection.request()).stream_id, REFUSED_STREAM)
        assert (await failure_of(stream)).status is Code.UNAVAILABLE
        assert connection.has_no_request


async def test_streams_above_a_goaway_move_to_another_connection_without_an_attempt() -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client) as stream:
        connection = await peer.accept()
        await connection.request()
        connection.goaway(0)
        other = await peer.accept()
        assert PREVIOUS not in (await whole_call(other)).headers
        assert await stream.text() == "Hello world"


@pytest.mark.parametrize("way", ["status", "reset"])
async def test_a_call_that_a_stopping_server_cancels_unseen_is_tried_again(way: str) -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client) as stream:
        connection = await peer.accept()
        stream_id = (await connection.request()).stream_id
        if way == "status":
            connection.refuse(stream_id, Code.CANCELLED.value[0])
        else:
            connection.reset(stream_id, CANCEL)
        assert (await whole_call(connection)).headers[PREVIOUS] == "1"
        assert await stream.text() == "Hello world"


@pytest.mark.parametrize("pushback", ["-1", "soon"], ids=["never", "unreadable"])
async def test_a_server_can_forbid_another_attempt(pushback: str, transport: str) -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client) as stream:
        connection = await peer.accept()
        stream_id = (await connection.request()).stream_id
        connection.refuse(stream_id, UNAVAILABLE, grpc_retry_pushback_ms=pushback)
        error = await failure_of(stream)
        if pushback == "-1" or transport == "asyncio":  # grpcio takes what is unreadable for broken headers
            assert (error.status, error.is_retriable) == (Code.UNAVAILABLE, True)
        assert connection.has_no_request


async def test_a_server_can_say_when_to_come_back() -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client) as stream:
        connection = await peer.accept()
        stream_id = (await connection.request()).stream_id
        begun_s = time.monotonic()
        connection.refuse(stream_id, UNAVAILABLE, grpc_retry_pushback_ms="700")
        await whole_call(connection)
        assert time.monotonic() - begun_s > 0.69  # the policy's own first wait is at most 240 ms
        assert await stream.text() == "Hello world"


@pytest.mark.parametrize("has_output", [False, True], ids=["headers alone", "output"])
async def test_nothing_is_tried_again_once_headers_have_come(*, has_output: bool) -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client) as stream:
        connection = await peer.accept()
        stream_id = (await connection.request()).stream_id
        connection.headers(stream_id)
        if has_output:
            connection.data(stream_id, WHOLE[0])
        connection.trailers(stream_id, [("grpc-status", str(UNAVAILABLE)), ("grpc-retry-pushback-ms", "1")])
        error = await failure_of(stream)
        assert (error.status, error.is_retriable) == (Code.UNAVAILABLE, not has_output)
        assert connection.has_no_request


async def test_a_connection_that_breaks_before_headers_costs_an_attempt() -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client) as stream:
        connection = await peer.accept()
        await connection.request()
        connection.cut()
        assert (await whole_call(await peer.accept())).headers[PREVIOUS] == "1"
        assert await stream.text() == "Hello world"


async def test_a_full_queue_is_the_callers_to_try_again_also_with_a_pushback() -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client:
        async with generate(client) as stream:
            connection = await peer.accept()
            stream_id = (await connection.request()).stream_id
            connection.refuse(stream_id, EXHAUSTED, grpc_retry_pushback_ms="1")
            assert isinstance(await failure_of(stream), errors.Overloaded)
            assert connection.has_no_request
        await refused(client, connection, EXHAUSTED, times=9)
        assert await attempts_until_failure(client, connection) == 3  # a busy server does not cost its retries


async def test_retries_stop_while_most_calls_fail_and_come_back_with_successes() -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client:
        async with generate(client) as stream:
            connection = await peer.accept()
            await whole_call(connection)
            await stream.text()
        assert [await attempts_until_failure(client, connection) for _ in range(4)] == [3, 2, 1, 1]
        for _ in range(40):
            async with generate(client) as stream:
                await whole_call(connection)
                await stream.text()
        assert await attempts_until_failure(client, connection) > 1


async def test_failures_behind_headers_count_against_retries_too() -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client:
        async with generate(client) as stream:
            connection = await peer.accept()
            await whole_call(connection)
            await stream.text()
        for _ in range(5):
            async with generate(client) as stream:
                stream_id = (await connection.request()).stream_id
                connection.headers(stream_id)
                connection.data(stream_id, WHOLE[0])
                connection.trailers(stream_id, [("grpc-status", str(UNAVAILABLE))])
                await failure_of(stream)
        assert await attempts_until_failure(client, connection) == 1


async def test_the_deadline_covers_all_attempts() -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client, timeout_s=1) as stream:
        connection = await peer.accept()
        first = await connection.request()
        connection.refuse(first.stream_id, UNAVAILABLE, grpc_retry_pushback_ms="300")
        second = await connection.request()
        assert milliseconds_of(second.headers["grpc-timeout"]) <= milliseconds_of(first.headers["grpc-timeout"]) - 290
        async with asyncio.timeout(2):
            assert isinstance(await failure_of(stream), errors.DeadlineExceeded)


async def test_a_pushback_behind_the_deadline_ends_the_call_in_time(transport: str) -> None:
    async with scripted_peer() as peer, AsyncClient(peer.address) as client, generate(client, timeout_s=0.5) as stream:
        connection = await peer.accept()
        stream_id = (await connection.request()).stream_id
        connection.refuse(stream_id, UNAVAILABLE, grpc_retry_pushback_ms="60000")
        async with asyncio.timeout(2):
            error = await failure_of(stream)
    # gRPC waits the deadline out; the client's own transport says at once what the server said.
    expected = Code.UNAVAILABLE if transport == "asyncio" else Code.DEADLINE_EXCEEDED
    assert error.status is expected


async def test_the_service_config_is_one_that_any_grpc_client_can_use() -> None:
    config = str(DEFAULT_OPTIONS["grpc.service_config"])

    def run(address: str) -> int:
        with grpc.insecure_channel(address, options=[("grpc.service_config", config)]) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            return len(list(stub.Generate(pb.GenerateRequest(model="m", prompt="p"), timeout=5)))

    async with fake_service() as fake:
        fake.will(Fail(code=Code.UNAVAILABLE, reason="DRAINING"))
        fake.will(Fail(code=Code.CANCELLED))
        assert await asyncio.to_thread(run, fake.address) == 5
        assert [call.header(PREVIOUS) for call in fake.calls] == [None, "1", "2"]


UNARY: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "GetGeneration": lambda client: client.get_generation("gen-1"),
    "CancelGeneration": lambda client: client.cancel_generation("gen-1"),
}


@pytest.mark.parametrize("name", UNARY)
async def test_asking_and_cancelling_are_tried_again_since_repeating_them_changes_nothing(name: str) -> None:
    busy = Fail(code=Code.UNAVAILABLE, reason="DRAINING")
    async with fake_service() as fake, AsyncClient(fake.address) as client:
        async with client.generate(model="m", prompt="p") as stream:
            await stream.text()
        fake.unary_failures += [busy, busy]
        await UNARY[name](client)
        assert [metadata.get(PREVIOUS) for metadata, _ in fake.model_calls] == [None, "1", "2"]
        fake.unary_failures += [busy] * 3
        with pytest.raises(errors.Unavailable) as caught:
            await UNARY[name](client)
        assert caught.value.reason == "DRAINING"


async def refused(client: AsyncClient, connection: PeerConnection, status: int, *, times: int) -> None:
    for _ in range(times):
        async with generate(client) as stream:
            connection.refuse((await connection.request()).stream_id, status, grpc_retry_pushback_ms="1")
            await failure_of(stream)


async def attempts_until_failure(client: AsyncClient, connection: PeerConnection) -> int:
    """Refuse every attempt of one call; return how many there were."""
    attempts = 0

    async def refuse_all() -> None:
        nonlocal attempts
        while True:
            stream_id = (await connection.request()).stream_id
            attempts += 1
            connection.refuse(stream_id, UNAVAILABLE, grpc_retry_pushback_ms="1")

    async with generate(client) as stream:
        refusing = asyncio.ensure_future(refuse_all())
        assert (await failure_of(stream)).status is Code.UNAVAILABLE
        refusing.cancel()
        return attempts


def milliseconds_of(timeout: str) -> float:
    """Read a grpc-timeout field."""
    return int(timeout[:-1]) * {"S": 1000.0, "m": 1.0, "u": 0.001, "n": 0.000_001}[timeout[-1]]
