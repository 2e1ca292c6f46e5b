"""What a client may do to its connection, and what becomes of the requests on it."""

import asyncio
import itertools
import json
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator

import pytest

from tests.support.fake_service import HANG, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import (
    CHAT,
    WAIT_S,
    RawClient,
    RunningGateway,
    chat_body,
    read_events,
    running_gateway,
)

GET = b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n"
CHUNKED = {"transfer-encoding": "chunked", "content-type": "application/json"}
QUICK = {"keep_alive_s": 1, "head_timeout_s": 0.3, "body_timeout_s": 0.2, "send_timeout_s": 0.4}


@pytest.fixture
async def fake() -> AsyncIterator[FakeService]:
    async with fake_service() as service:
        yield service


@pytest.fixture
async def gateway(fake: FakeService) -> AsyncIterator[RunningGateway]:
    async with running_gateway(fake.address, **QUICK) as running:
        yield running


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[RawClient]:
    async with gateway.connect() as connection:
        yield connection


def payload(**members: object) -> bytes:
    return json.dumps(chat_body(**members)).encode()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]


async def rest_of(client: RawClient) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await client.reader.read()


@pytest.mark.parametrize("how", [RawClient.leave, RawClient.reset])
@pytest.mark.parametrize("ahead", [GET, GET[:10], GET * 100, b"x"], ids=["one", "half", "many", "garbage"])
@pytest.mark.parametrize("together", [True, False])
async def test_what_comes_behind_a_request_does_not_hide_that_the_client_left(
    how: object, ahead: bytes, *, together: bool, fake: FakeService, gateway: RunningGateway, client: RawClient,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    fake.will(HANG)
    await client.send("POST", CHAT, payload() + (ahead if together else b""), {"content-length": str(len(payload()))})
    call = await fake.next_call()
    if not together:
        client.writer.write(ahead)
        await client.writer.drain()
    await asyncio.sleep(0.02)  # the gateway has seen it by then; nothing depends on it
    how(client)  # type: ignore[operator]
    await call.wait_cancelled()
    await gateway.wait_idle()
    assert errors(caplog) == []


async def test_trailers_are_no_headers(fake: FakeService, client: RawClient) -> None:
    await client.send("POST", CHAT, headers=CHUNKED)
    body = payload()
    trailers = b"Authorization: Bearer from-trailer\r\nX-Request-Id: from-trailer\r\n"
    client.writer.write(b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers))
    response = await client.response()
    assert response.status == 200
    assert response.headers["x-request-id"] != "from-trailer"
    assert "authorization" not in dict((await fake.next_call()).metadata)


@pytest.mark.parametrize("trailer", [b"x: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
async def test_trailers_are_bounded(trailer: bytes, client: RawClient) -> None:
    await client.send("POST", CHAT, headers=CHUNKED)
    body = payload()
    client.writer.write(b"%x\r\n%s\r\n0\r\n" % (len(body), body))
    if not trailer.endswith(b"\r\n"):
        client.writer.write(b"x: ")
    for _ in range(80):
        client.writer.write(trailer * 4)
        await client.writer.drain()
    response = await client.response()
    assert (response.status, response.json()["error"]["code"]) == (431, "request_header_fields_too_large")
    client.writer.write_eof()
    assert await rest_of(client) == b""


@pytest.mark.parametrize("pieces", [1, 3])
async def test_an_offer_of_another_protocol_is_ignored(
    pieces: int, fake: FakeService, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAB"}
    for _ in range(2):
        body = payload()
        cut = [0, *(len(body) * i // pieces for i in range(1, pieces)), len(body)]
        await client.send("POST", CHAT, body[: cut[1]], {**offer, "content-length": str(len(body))})
        for start, stop in itertools.pairwise(cut[1:]):
            await asyncio.sleep(0)
            client.writer.write(body[start:stop])
        assert (await client.response()).status == 200
    assert [record for record in caplog.records if record.levelname not in {"INFO", "DEBUG"}] == []


def narrow(port: int) -> socket.socket:
    """Return a connected socket that takes little."""
    taker = socket.socket()
    taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    taker.connect(("127.0.0.1", port))
    return taker


def request_bytes(body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body)


def connections(gateway: RunningGateway) -> int:
    return len(gateway.server._server.server_state.connections)


async def test_a_client_that_takes_nothing_of_a_whole_answer_is_dropped(
    fake: FakeService, gateway: RunningGateway
) -> None:
    fake.will(started(), *(delta("x" * 100_000) for _ in range(120)), finished(), completed())
    with narrow(gateway.port) as taker:
        taker.sendall(request_bytes(payload()))
        await fake.next_call()
        await gateway.wait_idle()
        async with asyncio.timeout(5):
            while connections(gateway):  # noqa: ASYNC110 - a set has no event
                await asyncio.sleep(0.02)


async def test_a_client_that_takes_nothing_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_service() as fake, running_gateway(fake.address, drain_grace_s=0.5) as gateway:
        fake.will(started(), *(delta("x" * 100_000) for _ in range(120)), finished(), completed())
        with narrow(gateway.port) as taker:
            taker.sendall(request_bytes(payload()))
            await fake.next_call()
            await gateway.wait_idle()
            gateway.server.stop()
            await asyncio.wait_for(gateway.task, 2)
    assert errors(caplog) == []


async def test_a_slow_taker_of_a_whole_answer_gets_everything(fake: FakeService) -> None:
    fake.will(started(), *(delta("x" * 100_000) for _ in range(60)), finished(), completed())
    # Several of the pauses that a full window makes, on a busy machine too.
    async with running_gateway(fake.address, send_timeout_s=2) as gateway:
        with narrow(gateway.port) as taker:
            taker.sendall(request_bytes(payload()))
            taker.setblocking(False)
            loop, size = asyncio.get_running_loop(), 0
            async with asyncio.timeout(WAIT_S):
                while size < 6_000_000:
                    piece = await loop.sock_recv(taker, 500_000)
                    assert piece, f"cut after {size} bytes"
                    size += len(piece)
                    if size % 7 == 0:
                        await asyncio.sleep(0.01)


@pytest.mark.parametrize("status", [408, 413, 415])
async def test_a_connection_whose_request_was_not_read_is_closed(
    status: int, gateway: RunningGateway, client: RawClient
) -> None:
    length = {408: "100", 413: "99999999999", 415: "100"}[status]
    kind = "text/plain" if status == 415 else "application/json"
    await client.send("POST", CHAT, b"{", {"content-length": length, "content-type": kind})
    response = await client.response()
    assert (response.status, response.headers["connection"]) == (status, "close")
    assert await rest_of(client) == b""
    sent = 0
    with pytest.raises(ConnectionError):
        while True:
            client.writer.write(b"x" * 2**20)
            sent += 2**20
            await client.writer.drain()
    assert sent < 64 * 2**20
    async with asyncio.timeout(5):
        while connections(gateway):  # noqa: ASYNC110 - a set has no event
            await asyncio.sleep(0.02)


STRAY = {b"G": b"408", b"\r\n": b"", b"\x00garbage\r\n\r\n": b"400", GET[:-2]: b"408"}


@pytest.mark.report("K08")
@pytest.mark.parametrize("stray", STRAY)
async def test_bytes_behind_a_running_stream_do_not_disturb_it(
    stray: bytes, fake: FakeService, client: RawClient
) -> None:
    go = asyncio.Event()
    fake.will(started(), delta("a"), go, delta("b"), finished(), completed())
    await client.send("POST", CHAT, chat_body(stream=True))
    await fake.next_call()
    head = await client.head()
    client.writer.write(stray)
    await asyncio.sleep(1.3)  # longer than keep_alive_s: the timer that must not fire
    go.set()
    pieces = b""
    while piece := await client.piece():
        pieces += piece
    assert (head.status, read_events(pieces)[-1]) == (200, "[DONE]")
    rest = await rest_of(client)
    assert rest[:12].removeprefix(b"HTTP/1.1 ") == STRAY[stray]


async def test_garbage_in_one_piece_with_a_request_is_refused_behind_its_response(
    fake: FakeService, client: RawClient
) -> None:
    body = payload()
    await client.send("POST", CHAT, body + b"\x00garbage\r\n\r\n", {"content-length": str(len(body))})
    assert (await client.response()).status == 200
    refusal = await client.response()
    assert (refusal.status, refusal.headers["connection"]) == (400, "close")
    assert refusal.json()["error"]["type"] == "invalid_request_error"
    assert refusal.headers["x-request-id"].startswith("req_")


async def test_a_body_that_breaks_its_framing_is_refused_once(client: RawClient) -> None:
    await client.send("POST", CHAT, headers=CHUNKED)
    client.writer.write(b"zz\r\n")
    assert (await client.response()).status == 400
    client.writer.write_eof()
    assert await rest_of(client) == b""


async def test_a_head_in_one_piece_is_bounded_as_well(client: RawClient) -> None:
    client.writer.write(GET[:-2] + b"x-filler: " + b"a" * 70_000 + b"\r\n\r\n")
    response = await client.response()
    assert (response.status, response.json()["error"]["type"]) == (431, "invalid_request_error")


async def test_a_large_head_in_pieces_passes_below_its_bound(client: RawClient) -> None:
    client.writer.write(GET[:-2])
    for number in range(60):
        client.writer.write(b"x-%d: %s\r\n" % (number, b"a" * 1000))
        await asyncio.sleep(0.001)
    client.writer.write(b"\r\n")
    assert (await client.response()).status == 200


@pytest.mark.parametrize("before", [0, 1])
async def test_a_head_that_does_not_end_is_refused_in_time(before: int, client: RawClient) -> None:
    for _ in range(before):
        assert (await client.get("/healthz")).status == 200
    began_s = asyncio.get_running_loop().time()
    for byte in GET[:-2]:
        if client.reader.at_eof() or client.reader._buffer:  # type: ignore[attr-defined]
            break
        client.writer.write(bytes([byte]))
        await asyncio.sleep(0.02)  # a byte now and then is no progress
    response = await client.response()
    assert (response.status, response.headers["connection"]) == (408, "close")
    assert (response.json()["error"]["code"], response.headers["x-should-retry"]) == ("request_timeout", "false")
    assert asyncio.get_running_loop().time() - began_s < 0.9  # below keep_alive_s, which is another bound
    client.writer.write_eof()
    assert await rest_of(client) == b""


async def test_a_connection_that_says_nothing_is_closed_without_a_word(client: RawClient) -> None:
    assert await rest_of(client) == b""


@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_of_http_1_0_gets_no_chunks(*, stream: bool, client: RawClient) -> None:
    body = payload(stream=stream)
    client.writer.write(request_bytes(body).replace(b"HTTP/1.1", b"HTTP/1.0"))
    head = await client.head()
    assert "transfer-encoding" not in head.headers
    assert head.headers["connection"] == "close"
    text = await rest_of(client)
    assert (read_events(text)[-1] == "[DONE]") if stream else json.loads(text)["choices"]


async def test_a_second_signal_ends_streams_at_once_and_cleanly(fake: FakeService) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "--port", "0", "--target", fake.address, "--log-format", "json",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    async with asyncio.timeout(20):
        while "running on" not in (message := json.loads(await process.stderr.readline())["message"]):
            pass
        clients = [RawClient(int(message.rpartition(":")[2])) for _ in range(5)]
        for client in clients:
            fake.will(started(), delta("a"), HANG)
            await client.__aenter__()
            await client.send("POST", CHAT, chat_body(stream=True))
            await client.head()
        process.send_signal(signal.SIGTERM)
        while "shutting down" not in json.loads(await process.stderr.readline())["message"]:
            pass
        process.send_signal(signal.SIGTERM)
        logged = [json.loads(line) for line in (await process.stderr.read()).splitlines()]
        assert await process.wait() == 0
        for client in clients:
            await client.__aexit__()
    assert [line for line in logged if line["level"].upper() in {"ERROR", "CRITICAL"}] == []
    assert [line["outcome"] for line in logged if "outcome" in line] == ["drained"] * 5


async def test_a_request_that_the_server_cancels_is_cut_and_recorded_as_that(
    fake: FakeService, gateway: RunningGateway, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.requests")
    fake.will(started(), delta("a"), HANG)
    await client.send("POST", CHAT, chat_body(stream=True))
    call = await fake.next_call()
    await client.head()
    await client.piece()
    for task in tuple(gateway.server._server.server_state.tasks):
        task.cancel()
    await call.wait_cancelled()
    assert not (await client.reader.read()).endswith(b"0\r\n\r\n")
    assert errors(caplog) == []
    lines = [record.__dict__["outcome"] for record in caplog.records if record.name == "gateway.requests"]
    assert lines == ["drained"]


@pytest.mark.parametrize(("version", "extra"), [(b"1.1", b", close"), (b"1.0", b"")])
async def test_an_offer_of_another_protocol_on_a_connection_that_ends_is_ignored(
    version: bytes, extra: bytes, fake: FakeService, client: RawClient
) -> None:
    body = payload()
    offer = b"connection: upgrade%s\r\nupgrade: h2c\r\n" % extra
    request = request_bytes(body).replace(b"HTTP/1.1\r\n", b"HTTP/%s\r\n%s" % (version, offer))
    client.writer.write(request)
    response = await client.response()
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert len(fake.calls) == 1
    assert await rest_of(client) == b""


@pytest.mark.parametrize(
    ("version", "hosts", "status"), [("1.1", 0, 400), ("1.1", 2, 400), ("1.0", 0, 200), ("1.0", 2, 400)]
)
async def test_a_request_names_one_host(version: str, hosts: int, status: int, client: RawClient) -> None:
    client.writer.write(f"GET /healthz HTTP/{version}\r\n{'host: a' + chr(13) + chr(10) if hosts else ''}".encode())
    client.writer.write(b"Host: b\r\n\r\n" if hosts == 2 else b"\r\n")
    response = await client.response()
    assert (response.status, response.headers["connection"]) == (status, "close")
    assert status == 200 or "'Host'" in response.json()["error"]["message"]
