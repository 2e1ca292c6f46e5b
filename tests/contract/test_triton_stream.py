"""One stream to a scripted Triton, over both transports: order, ends, failures, limits, cancels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest

from service.core.errors import Reason, ServiceError
from tests.support.processes import free_ports
from tests.support.triton_fake import Abort, Drop, Error, FakeTriton, Final, Hang, Step
from tests.support.triton_streams import TRANSPORTS, WAIT_S, failure_of, reached, request, says, words_of

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)

TOO_LONG = "prompt length (9) exceeds maximum input length (8)"


@pytest.fixture
async def fake() -> AsyncIterator[FakeTriton]:
    async with FakeTriton(configs={}) as server:
        yield server


async def failure(fake: FakeTriton, transport: str, script: list[Step], **options: object) -> ServiceError:
    fake.script = script
    async with reached(fake.url, transport, **options) as triton:
        return await failure_of(triton.stream())


async def test_responses_come_in_order_and_the_stream_ends_by_itself(fake: FakeTriton, transport: str) -> None:
    words = [b"%d" % number for number in range(300)]
    fake.script = [*map(says, words), Final()]
    async with reached(fake.url, transport) as triton:
        stream = triton.stream(metadata=[("traceparent", "00-1-2-01")], timeout_s=5)
        assert await words_of(stream) == words
        await stream.drain()
        stream.close()
    assert fake.half_closed == [True]
    assert fake.order == []
    assert fake.metadata[0]["traceparent"] == "00-1-2-01"
    assert fake.timeouts_s[0] is not None
    assert 3 < fake.timeouts_s[0] < 5.5


async def test_a_final_response_may_carry_a_word_and_nothing_behind_it_counts(fake: FakeTriton, transport: str) -> None:
    fake.script = [says(b"a"), says(b"b", is_final=True), says(b"c")]
    async with reached(fake.url, transport) as triton:
        assert await words_of(triton.stream()) == [b"a", b"b"]


async def test_large_requests_and_backlogs_pass_the_windows(fake: FakeTriton, transport: str) -> None:
    words = [b"%d" % number * 1000 for number in range(500)]
    fake.script = [*map(says, words), Final()]
    async with reached(fake.url, transport) as triton:
        message = request(b"x" * 3_000_000)
        streams = [triton.stream(message) for _ in range(3)]
        assert await asyncio.gather(*map(words_of, streams)) == [words] * 3
    assert [len(sent.raw_input_contents[0]) for sent in fake.requests] == [3_000_000] * 3


@pytest.mark.parametrize(
    ("script", "reason", "detail"),
    [
        ([Drop()], Reason.BACKEND_UNAVAILABLE, "without the final flag"),
        ([says(b"a"), Drop()], Reason.BACKEND_UNAVAILABLE, "without the final flag"),
        ([Error("engine broke"), says(b"never")], Reason.BACKEND_ERROR, "engine broke"),
        ([Error(TOO_LONG)], Reason.CONTEXT_LENGTH_EXCEEDED, TOO_LONG),
        ([says(b"a"), Error(TOO_LONG)], Reason.BACKEND_ERROR, TOO_LONG),
        (
            [Abort(grpc.StatusCode.UNAVAILABLE, "Server exiting, 100 %, später")],
            Reason.BACKEND_UNAVAILABLE,
            "UNAVAILABLE: Server exiting, 100 %, später",
        ),
        ([Abort(grpc.StatusCode.INTERNAL, "two\nlines")], Reason.BACKEND_ERROR, "INTERNAL: two\nlines"),
        ([Abort(grpc.StatusCode.INVALID_ARGUMENT, TOO_LONG)], Reason.CONTEXT_LENGTH_EXCEEDED, TOO_LONG),
        ([Abort(grpc.StatusCode.CANCELLED, "by the server")], Reason.BACKEND_ERROR, "CANCELLED"),
    ],
)
async def test_every_failure_has_its_reason_and_the_servers_words(
    fake: FakeTriton, transport: str, script: list[Step], reason: Reason, detail: str
) -> None:
    error = await failure(fake, transport, script)
    assert error.reason is reason
    assert detail in (error.detail or "")


async def test_nobody_who_listens_is_unavailable_at_once(transport: str) -> None:
    (port,) = free_ports(1)
    async with reached(f"127.0.0.1:{port}", transport) as triton:
        for _ in range(3):
            assert (await failure_of(triton.stream())).reason is Reason.BACKEND_UNAVAILABLE


async def test_a_server_that_goes_away_is_unavailable_and_found_again(fake: FakeTriton, transport: str) -> None:
    fake.script = [says(b"a"), Hang()]
    async with reached(fake.url, transport) as triton:
        stream = triton.stream()
        await stream.take()
        await fake.close()
        assert (await failure_of(stream)).reason is Reason.BACKEND_UNAVAILABLE
        fake.script = [says(b"a"), Final()]
        await fake.start(int(fake.url.rpartition(":")[2]))
        words: list[bytes] = []
        async with asyncio.timeout(WAIT_S):
            while not words:  # the pause between two attempts to connect has to pass
                with contextlib.suppress(ServiceError):
                    words = await words_of(triton.stream())
                await asyncio.sleep(0.05)
        assert words == [b"a"]


async def test_messages_over_the_limits_are_refused_by_name(fake: FakeTriton, transport: str) -> None:
    error = await failure(fake, transport, [says(b"a" * 30_000), Final()], max_receive_bytes=20_000)
    assert error.reason is Reason.BACKEND_ERROR
    assert "larger than max" in (error.detail or "")
    fake.requests.clear()
    async with reached(fake.url, transport, max_send_bytes=1000) as triton:
        error = await failure_of(triton.stream(request(b"x" * 2000)))
    assert error.reason is Reason.BACKEND_ERROR
    assert "larger than max" in (error.detail or "")
    assert fake.requests == []


async def test_a_deadline_ends_the_stream_on_both_sides(fake: FakeTriton, transport: str) -> None:
    fake.script = [says(b"a"), Hang()]
    async with reached(fake.url, transport) as triton:
        assert (await failure_of(triton.stream(timeout_s=0.3))).reason is Reason.DEADLINE_IN_DECODE
        assert (await failure_of(triton.stream(timeout_s=-1))).reason is Reason.DEADLINE_IN_DECODE
        async with asyncio.timeout(WAIT_S):
            await fake.cancelled.wait()


@pytest.mark.report("H06")
async def test_a_cancelled_wait_cancels_the_call_at_once(fake: FakeTriton, transport: str) -> None:
    fake.script = [says(b"a"), Hang()]
    async with reached(fake.url, transport) as triton:
        stream = triton.stream()
        await stream.take()
        waiting = asyncio.create_task(stream.take())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(WAIT_S):
            await fake.cancelled.wait()


async def test_closing_cancels_the_call_and_may_be_repeated(fake: FakeTriton, transport: str) -> None:
    fake.script = [says(b"a"), Hang()]
    async with reached(fake.url, transport) as triton:
        stream = triton.stream()
        await stream.take()
        stream.close()
        stream.close()
        async with asyncio.timeout(WAIT_S):
            await fake.cancelled.wait()


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_who_reads_an_aborted_stream_gets_the_cause(fake: FakeTriton, transport: str, is_waiting: bool) -> None:
    fake.script = [says(b"a"), Hang()]
    cause = ServiceError(Reason.BACKEND_UNAVAILABLE, "closing")
    async with reached(fake.url, transport) as triton:
        stream = triton.stream()
        await stream.take()
        if is_waiting:
            waiting = asyncio.create_task(stream.take())
            await asyncio.sleep(0)
        stream.abort(cause)
        with pytest.raises(ServiceError) as caught:
            await (waiting if is_waiting else stream.take())
        assert caught.value is cause


@pytest.mark.parametrize(
    ("script", "limits", "where"),
    [
        ([Hang()], {"first_timeout_s": 0.1}, "before the first response"),
        ([says(b"a"), Hang()], {"first_timeout_s": 5, "gap_timeout_s": 0.1}, "between responses"),
        ([says(b"a"), Hang()], {"gap_timeout_s": 0.1}, "between responses"),
    ],
)
async def test_silence_ends_the_stream(
    fake: FakeTriton, transport: str, script: list[Step], limits: dict[str, float], where: str
) -> None:
    fake.script = script
    async with reached(fake.url, transport) as triton:
        error = await failure_of(triton.stream(**limits))
        assert error.reason is Reason.BACKEND_UNAVAILABLE
        assert where in (error.detail or "")
        async with asyncio.timeout(WAIT_S):
            await fake.cancelled.wait()


async def test_a_reader_that_is_slow_is_no_silence_of_the_server(fake: FakeTriton, transport: str) -> None:
    fake.script = [says(b"a"), says(b"b"), Final()]
    async with reached(fake.url, transport) as triton:
        stream = triton.stream(gap_timeout_s=0.2)
        read = [bytes(word) for response in await stream.take() for word in response.raw_output_contents]
        # The silence limit passes while the reader is elsewhere.
        await asyncio.sleep(0.5)
        assert read + await words_of(stream) == [b"a", b"b"]
