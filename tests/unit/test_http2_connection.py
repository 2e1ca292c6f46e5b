"""A connection reads the same, however the network cuts the server's bytes."""

import asyncio
from typing import Any, cast

import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import HeadraceError
from headrace._http2.call import Call, Limits
from headrace._http2.connection import Connection
from headrace._http2.keepalive import KeepaliveTimes
from headrace._http2.retry import RetryThrottle

LIMITS = Limits(received_bytes=1_000_000, sent_bytes=1_000_000, retried_bytes=1_000_000)
NO_PINGS = KeepaliveTimes(interval_s=None, timeout_s=1)


class MemoryTransport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = b""
        self._is_closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


class OneConnection:
    """Routes every call to one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def route(self, call: Call[object]) -> None:
        call.send(self.connection)

    def forget(self, call: Call[object]) -> None: ...


def connected() -> tuple[Connection, MemoryTransport, OneConnection]:
    connection, transport = Connection(NO_PINGS, lambda _: None), MemoryTransport()
    connection.connection_made(cast("Any", transport))
    return connection, transport, OneConnection(connection)


def begin(router: OneConnection) -> Call[bytes]:
    call: Call[bytes] = Call(router, LIMITS, RetryThrottle(), bytes)
    call.begin(b"\x83", b"request", 60.0, ())
    return call


async def everything(call: Call[bytes]) -> list[bytes]:
    got: list[bytes] = []
    while (event := await call.read()) is not None:
        got.append(event)
    return got


def prefixed(messages: list[bytes]) -> bytes:
    return b"".join(b"\x00" + len(one).to_bytes(4) + one for one in messages)


@st.composite
def responses(draw: st.DrawFn) -> tuple[list[list[bytes]], bytes]:
    """Draw the messages of one to three streams, and the bytes of a server that sends them interleaved."""
    encoder, count = Encoder(), draw(st.integers(1, 3))
    messages = [draw(st.lists(st.binary(max_size=40), max_size=8)) for _ in range(count)]
    queues: list[list[tuple[str, Any]]] = []
    for number, of_stream in enumerate(messages):
        raw, rest = prefixed(of_stream), []
        while raw:
            size = draw(st.integers(1, 60))
            rest.append(("data", DataFrame(2 * number + 1, raw[:size])))
            raw = raw[size:]
        queues.append([("head", 2 * number + 1), *rest, ("end", 2 * number + 1)])
    sent = SettingsFrame(0, settings={3: 100}).serialize()
    noise = [PingFrame(0, b"12345678"), WindowUpdateFrame(0, window_increment=9), b"\0\0\1\xbb\0\0\0\0\1?", b""]
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        kind, what = queue.pop(0)
        if kind == "data":
            if draw(st.booleans()):
                what.flags.add("PADDED")
                what.pad_length = draw(st.integers(0, 20))
            sent += what.serialize()
        else:
            fields = [(":status", "200"), ("content-type", "application/grpc"), ("x-long", "v" * 30)]
            block = encoder.encode(fields if kind == "head" else [("grpc-status", "0"), ("x-t", "1")])
            cut = draw(st.integers(0, len(block) - 1))
            flags = ["END_STREAM"] if kind == "end" else []
            sent += HeadersFrame(what, block[:cut], flags=flags).serialize()
            sent += ContinuationFrame(what, block[cut:], flags=["END_HEADERS"]).serialize()
        extra = draw(st.sampled_from(noise))
        sent += extra.serialize() if isinstance(extra, Frame) else extra
    return messages, sent


@settings(max_examples=200, deadline=None)
@given(responses(), st.randoms(use_true_random=False), st.integers(1, 60))
def test_any_split_of_the_servers_bytes_gives_the_same_messages(
    response: tuple[list[list[bytes]], bytes], dice: Any, largest: int
) -> None:
    messages, sent = response

    async def run() -> None:
        connection, transport, router = connected()
        calls = [begin(router) for _ in messages]
        readers = [asyncio.ensure_future(everything(call)) for call in calls[::2]]
        rest = sent
        while rest:
            size = dice.randint(1, largest)
            connection.data_received(rest[:size])
            rest = rest[size:]
            if dice.random() < 0.2:
                await asyncio.sleep(0)
        assert not transport.is_closing()
        got = [await reader for reader in readers]
        assert got == messages[::2]
        assert [await everything(call) for call in calls[1::2]] == messages[1::2]
        assert len(connection.streams) == 0

    asyncio.run(run())


async def test_a_piece_that_looks_like_a_message_is_a_piece() -> None:
    connection, _, router = connected()
    call, encoder = begin(router), Encoder()
    inner = prefixed([b"x"])
    whole = prefixed([inner * 2])
    sent = SettingsFrame(0).serialize()
    for fields, flags in (
        ([(":status", "200"), ("content-type", "application/grpc")], []),
        ([("grpc-status", "0")], ["END_STREAM"]),
    ):
        sent += HeadersFrame(1, encoder.encode(fields), flags=["END_HEADERS", *flags]).serialize()
        if not flags:
            sent += b"".join(DataFrame(1, piece).serialize() for piece in (whole[:5], inner, inner, prefixed([b"y"])))
    connection.data_received(sent)
    assert await everything(call) == [inner * 2, b"y"]


async def test_every_single_cut_gives_the_same_messages() -> None:
    messages = [b"", b"a", b"token", b"x" * 300]
    encoder = Encoder()
    sent = SettingsFrame(0).serialize()
    sent += HeadersFrame(
        1, encoder.encode([(":status", "200"), ("content-type", "application/grpc")]), flags=["END_HEADERS"]
    ).serialize()
    for one in messages:
        sent += DataFrame(1, prefixed([one])).serialize()
    sent += DataFrame(1, prefixed(messages)).serialize()
    sent += HeadersFrame(1, encoder.encode([("grpc-status", "0")]), flags=["END_HEADERS", "END_STREAM"]).serialize()
    for cut in range(len(sent) + 1):
        connection, _, router = connected()
        call = begin(router)
        connection.data_received(sent[:cut])
        connection.data_received(sent[cut:])
        assert await everything(call) == messages * 2


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_no_bytes_of_a_peer_raise_in_the_socket_or_leave_a_reader_waiting(chunks: list[bytes], greets: bool) -> None:
    async def run() -> None:
        connection, transport, router = connected()
        call = begin(router)
        if greets:
            connection.data_received(SettingsFrame(0).serialize())
        for chunk in chunks:
            if not transport.is_closing():
                connection.data_received(chunk)
        connection.connection_lost(None)
        try:
            async with asyncio.timeout(5):
                await call.close()
                await everything(call)
        except HeadraceError:
            pass

    asyncio.run(run())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 11), st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 2**31 - 1]), st.binary(max_size=20)
        ),
        max_size=12,
    )
)
def test_no_order_of_frames_raises_in_the_socket(sent: list[tuple[int, int, int, bytes]]) -> None:
    async def run() -> None:
        connection, transport, router = connected()
        calls = [begin(router), begin(router)]
        connection.data_received(SettingsFrame(0).serialize())
        for kind, flags, stream_id, payload in sent:
            if transport.is_closing():
                break
            raw = len(payload).to_bytes(3) + bytes([kind, flags]) + stream_id.to_bytes(4) + payload
            connection.data_received(raw)
        connection.connection_lost(None)
        for call in calls:
            call.cancel("enough")
        assert len(connection.streams) == 0

    asyncio.run(run())


async def test_a_reader_that_is_behind_lets_others_take_turns() -> None:
    connection, _, router = connected()
    call = begin(router)
    head = Encoder().encode([(":status", "200"), ("content-type", "application/grpc")])
    connection.data_received(SettingsFrame(0).serialize())
    connection.data_received(HeadersFrame(1, head, flags=["END_HEADERS"]).serialize())
    for _ in range(200):
        connection.data_received(DataFrame(1, prefixed([b"t"])).serialize())
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    for _ in range(200):
        assert await call.read() == b"t"
    assert turns >= 10
    task.cancel()
    call.cancel("done")


async def test_what_waits_for_a_reader_is_bounded_by_the_window() -> None:
    connection, transport, router = connected()
    call = begin(router)
    head = Encoder().encode([(":status", "200"), ("content-type", "application/grpc")])
    connection.data_received(SettingsFrame(0).serialize())
    connection.data_received(HeadersFrame(1, head, flags=["END_HEADERS"]).serialize())
    for _ in range(100):
        connection.data_received(DataFrame(1, prefixed([b"t" * 1000])).serialize())
    assert len(connection.streams) == 0  # the server did not keep to the window
    assert sum(map(len, call.inbox.messages)) <= 12_288 + 1000
    assert GoAwayFrame(0).serialize()[:4] not in transport.written
    call.cancel("done")


@pytest.mark.parametrize("reads", [True, False])
async def test_the_connections_window_is_given_back_whoever_reads(*, reads: bool) -> None:
    connection, transport, router = connected()
    connection.data_received(SettingsFrame(0).serialize())
    encoder = Encoder()
    for number in range(300):
        call, stream_id = begin(router), 2 * number + 1
        head = encoder.encode([(":status", "200"), ("content-type", "application/grpc")])
        connection.data_received(HeadersFrame(stream_id, head, flags=["END_HEADERS"]).serialize())
        transport.written = b"" if number < 256 else transport.written
        for _ in range(4):
            connection.data_received(DataFrame(stream_id, prefixed([b"t" * 8_000])).serialize())
            if reads:
                assert len(await call.read() or b"") == 8_000
        call.cancel("done")
    updates = transport.written.count(b"\x00\x00\x04\x08\x00\x00\x00\x00\x00")
    assert updates == 1  # of the connection: half of 16 MiB came once


@pytest.mark.report("J01")
async def test_what_new_settings_allow_is_sent_behind_their_acknowledgement() -> None:
    """A server goes by its old ones until then, and resets a stream that sends more."""
    connection, transport, router = connected()
    connection.data_received(SettingsFrame(0, settings={4: 1000}).serialize())
    call: Call[bytes] = Call(router, LIMITS, RetryThrottle(), bytes)
    call.begin(b"\x83", b"r" * 50_000, 60.0, ())
    transport.written = b""
    connection.data_received(SettingsFrame(0, settings={4: 40_000, 5: 32_768}).serialize())
    kinds = []
    while transport.written:
        frame, size = Frame.parse_frame_header(memoryview(transport.written[:9]))
        kinds.append((type(frame), "ACK" in frame.flags))
        transport.written = transport.written[9 + size :]
    assert kinds[0] == (SettingsFrame, True)
    assert {kind for kind, _ in kinds[1:]} == {DataFrame}
    call.cancel("the test is over")
