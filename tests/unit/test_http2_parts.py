"""The pure parts of the client's HTTP/2, against independent encoders and decoders."""

import base64
import random
import socket
from typing import Any

import grpc
import hpack
import pytest
from hyperframe.frame import Frame
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._http2 import frames, metadata, outcome
from headrace._http2.frames import ErrorCode, FrameError
from headrace._http2.keepalive import KeepaliveTimes, bound_unacknowledged
from headrace._http2.outbox import Outbox
from headrace._http2.outcome import Outcome
from headrace._http2.retry import RetryThrottle, retry_delay_s
from headrace._http2.target import Address, Target, parse_target, uses_proxy

Code = grpc.StatusCode
BUSY = Outcome(Code.UNAVAILABLE)

keys = st.from_regex(r"[a-z0-9_.-]{1,300}", fullmatch=True).filter(
    lambda key: not key.endswith("-bin") and key not in metadata.RESERVED
)
values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=600)


@settings(deadline=None)
@given(st.lists(st.tuples(keys, values), max_size=8))
def test_metadata_is_what_any_decoder_reads(pairs: list[tuple[str, str]]) -> None:
    block = metadata.encode_prefix("/s/M", "host:1", "agent", is_secure=True) + metadata.encode_metadata(pairs)
    decoder = hpack.Decoder(max_header_list_size=10**9)
    decoded = [(str(name), str(value)) for name, value in decoder.decode(block)]
    assert decoded[:4] == [(":method", "POST"), (":scheme", "https"), (":path", "/s/M"), (":authority", "host:1")]
    assert decoded[4:7] == [("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "agent")]
    assert decoded[7:] == [("grpc-accept-encoding", "identity"), *pairs]
    assert len(decoder.header_table.dynamic_entries) == 0  # nothing, above all no credential, enters the table


@given(st.binary(max_size=300))
def test_binary_metadata_survives_the_way(value: bytes) -> None:
    (field,) = hpack.Decoder().decode(metadata.encode_metadata([("k-bin", value)]), raw=True)
    assert metadata.metadata_of([(bytes(field[0]), bytes(field[1]))]) == (("k-bin", value),)
    padded = base64.b64encode(value)
    assert metadata.metadata_of([(b"k-bin", padded)]) == (("k-bin", value),)


def test_binary_metadata_that_is_broken_is_left_out_and_joined_values_are_split() -> None:
    assert metadata.metadata_of([(b"k-bin", b"!"), (b":status", b"200"), (b"a", b"b")]) == (("a", "b"),)
    assert metadata.metadata_of([(b"k-bin", b"YQ,Yg==")]) == (("k-bin", b"a"), ("k-bin", b"b"))


@pytest.mark.parametrize(
    "pair", [("a b", "x"), ("", "x"), (":path", "x"), ("A", "x"), ("x", "é"), ("x", "a\nb"), ("x", 1)]
)
def test_metadata_that_grpc_does_not_allow_is_refused(pair: Any) -> None:
    with pytest.raises(metadata.MetadataError):
        metadata.encode_metadata([pair])


@pytest.mark.parametrize(
    ("timeout_s", "text"),
    [
        (1e-9, "1u"),
        (0.25, "250000u"),
        (99.999999, "99999999u"),
        (100.0, "100000m"),
        (600.0, "600000m"),
        (100_000.0, "100000S"),
        (1e12, "99999999S"),
    ],
)
def test_a_timeout_has_eight_digits_at_most_and_is_never_shorter_than_asked(timeout_s: float, text: str) -> None:
    ((name, value),) = hpack.Decoder().decode(metadata.encode_timeout(timeout_s))
    assert (name, value) == ("grpc-timeout", text)


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b"plain", "plain"), (b"%E2%82%AC", "€"), (b"100%", "100%"), (b"%zz%41", "%zzA"), (b"%ff", "\ufffd")],
)
def test_a_status_message_is_readable_even_if_it_is_broken(raw: bytes, text: str) -> None:
    assert metadata.decode_message(raw) == text


def test_frames_are_what_an_independent_reader_reads() -> None:
    for raw, name in (
        (frames.settings({frames.Setting.ENABLE_PUSH: 0}), "SettingsFrame"),
        (frames.window_update(5, 100), "WindowUpdateFrame"),
        (frames.reset(5, ErrorCode.CANCEL), "RstStreamFrame"),
        (frames.ping(b"12345678", is_ack=True), "PingFrame"),
        (frames.goaway(ErrorCode.PROTOCOL_ERROR, "why"), "GoAwayFrame"),
    ):
        found, length = Frame.parse_frame_header(memoryview(raw[:9]), strict=True)
        found.parse_body(memoryview(raw[9:]))
        assert (type(found).__name__, length) == (name, len(raw) - 9)


@pytest.mark.parametrize("size", [1, 100, 101, 250])
def test_a_long_header_block_goes_on_in_continuations(size: int) -> None:
    raw, block, flags = frames.headers(7, bytes(range(size)), 100), b"", []
    while raw:
        found, length = Frame.parse_frame_header(memoryview(raw[:9]))
        found.parse_body(memoryview(raw[9 : 9 + length]))
        block += found.data  # type: ignore[attr-defined]
        flags.append((type(found).__name__, "END_HEADERS" in found.flags))
        raw = raw[9 + length :]
    assert block == bytes(range(size))
    assert flags[0][0] == "HeadersFrame"
    assert [is_end for _, is_end in flags] == [False] * (len(flags) - 1) + [True]
    assert {name for name, _ in flags[1:]} <= {"ContinuationFrame"}


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3000)), max_size=40),
    st.integers(0, 3000),
)
def test_what_is_sent_stays_within_every_window_and_all_of_it_goes_out(
    sizes: list[int], updates: list[tuple[int, int]], initial: int
) -> None:
    written: list[bytes] = []
    outbox = Outbox(written.append)
    outbox.set_initial_window(initial)
    outbox.max_frame_bytes = 1000
    windows = {0: 65_535, **{2 * n + 1: initial for n in range(len(sizes))}}
    sent = {stream_id: b"" for stream_id in windows if stream_id}
    ended: set[int] = set()

    def check() -> None:
        raw = b"".join(written)
        written.clear()
        while raw:
            word, flags, stream_id = frames.HEAD.unpack_from(raw)
            payload, raw = raw[9 : 9 + (word >> 8)], raw[9 + (word >> 8) :]
            assert len(payload) <= 1000
            assert stream_id not in ended
            sent[stream_id] += payload
            windows[0] -= len(payload)
            windows[stream_id] -= len(payload)
            assert not payload or (windows[0] >= 0 and windows[stream_id] >= 0)
            if flags & 1:
                ended.add(stream_id)

    bodies = {2 * n + 1: random.Random(n).randbytes(size) for n, size in enumerate(sizes)}
    for stream_id, body in bodies.items():
        outbox.send(stream_id, b"", body)
        check()
    for place, increment in updates:
        stream_id = 0 if place == 0 else 2 * (place % len(sizes)) + 1
        windows[stream_id] += increment
        assert outbox.widen(stream_id, increment)
        check()
    for stream_id in windows:
        windows[stream_id] += 100_000
        assert outbox.widen(stream_id, 100_000)
        check()
    assert sent == bodies
    assert ended == set(bodies)


def test_a_changed_setting_moves_the_windows_of_open_streams_also_below_zero() -> None:
    written: list[bytes] = []
    outbox = Outbox(written.append)
    outbox.set_initial_window(10)
    outbox.send(1, b"", b"x" * 30)
    outbox.set_initial_window(4)  # 10 are out: the window is -6
    assert outbox.widen(1, 6)
    assert sum(len(raw) - 9 for raw in written if raw) == 10
    outbox.set_initial_window(24)
    assert sum(len(raw) - 9 for raw in written if raw) == 30


def test_a_paused_socket_gets_nothing_until_it_takes_more() -> None:
    written: list[bytes] = []
    outbox = Outbox(written.append)
    outbox.is_paused = True
    outbox.send(1, b"head", b"body")
    assert written == [b"head"]
    assert outbox.is_sending(1)
    outbox.is_paused = False
    outbox.flush()
    assert b"".join(written[1:])[9:] == b"body"
    assert not outbox.is_sending(1)


def test_every_reset_code_has_a_status_and_unknown_ones_are_unknown() -> None:
    assert {*outcome.STATUS_BY_RESET, ErrorCode.HTTP_1_1_REQUIRED} == set(ErrorCode)
    assert outcome.outcome_of_reset(77).status is Code.UNKNOWN
    assert outcome.outcome_of_reset(ErrorCode.HTTP_1_1_REQUIRED).status is Code.UNKNOWN


@pytest.mark.parametrize(
    ("raw", "status"), [(b"16", Code.UNAUTHENTICATED), (b"17", Code.UNKNOWN), (b"x", Code.UNKNOWN)]
)
def test_a_status_is_one_of_grpcs_or_unknown(raw: bytes, status: grpc.StatusCode) -> None:
    assert outcome.outcome_of_trailers([(b"grpc-status", raw)]).status is status


@pytest.mark.parametrize("payload", [b"12345", b"\0\4\xff\xff\xff\xff", b"\0\5\0\0\0\1"])
def test_settings_out_of_their_bounds_break_the_connection(payload: bytes) -> None:
    with pytest.raises(FrameError):
        frames.settings_of(payload)


def test_only_what_a_server_did_not_look_at_is_tried_again_three_times_in_all_with_growing_waits() -> None:
    delays = [retry_delay_s(BUSY, attempts, RetryThrottle()) for attempts in (1, 2, 3)]
    assert delays[2] is None
    assert 0.16 <= (delays[0] or 0) <= 0.24
    assert 0.32 <= (delays[1] or 0) <= 0.48
    others = [code for code in Code if code not in (Code.UNAVAILABLE, Code.CANCELLED)]
    assert [retry_delay_s(Outcome(code), 1, RetryThrottle()) for code in others] == [None] * len(others)


@pytest.mark.parametrize(("pushback", "delay_s"), [("1500", 1.5), ("0", 0.0), ("-1", None), ("x", None)])
def test_a_pushback_is_obeyed(pushback: str, delay_s: float | None) -> None:
    pushed = Outcome(Code.UNAVAILABLE, "", (("grpc-retry-pushback-ms", pushback),))
    assert retry_delay_s(pushed, 1, RetryThrottle()) == delay_s


def test_retries_stop_while_most_calls_fail_and_come_back_with_successes() -> None:
    throttle = RetryThrottle()
    allowed = [retry_delay_s(BUSY, 1, throttle) is not None for _ in range(20)]
    assert allowed == [True] * 4 + [False] * 16
    for _ in range(70):
        retry_delay_s(outcome.OK, 1, throttle)
    assert retry_delay_s(BUSY, 1, throttle) is not None


def at(host: str, port: int) -> Address:
    return Address(host=host, port=port)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:50051", Target(addresses=(at("127.0.0.1", 50051),), authority="127.0.0.1:50051")),
        ("llm.internal:1", Target(name="llm.internal", port=1, authority="llm.internal:1")),
        ("llm.internal", Target(name="llm.internal", port=443, authority="llm.internal")),
        ("dns:///llm.internal:1", Target(name="llm.internal", port=1, authority="llm.internal:1")),
        ("dns:llm.internal:1", Target(name="llm.internal", port=1, authority="llm.internal:1")),
        ("dns:///[::1]:1", Target(addresses=(at("::1", 1),), authority="[::1]:1")),
        ("::1", Target(addresses=(at("::1", 443),), authority="::1")),
        (
            "ipv4:10.0.0.1:1,10.0.0.2:2",
            Target(addresses=(at("10.0.0.1", 1), at("10.0.0.2", 2)), authority="10.0.0.1:1,10.0.0.2:2"),
        ),
        ("ipv6:[::1]:1", Target(addresses=(at("::1", 1),), authority="[::1]:1")),
        ("ipv6:%5B::1%5D:1", None),
        ("unix:/run/s", Target(addresses=(Address(path="/run/s"),), authority="localhost")),
        ("unix:///run/s", Target(addresses=(Address(path="/run/s"),), authority="localhost")),
        ("unix:s", Target(addresses=(Address(path="s"),), authority="localhost")),
        ("dns://8.8.8.8/llm.internal:1", None),
        ("xds:///llm", None),
        ("unix-abstract:name", None),
        ("llm:port", None),
        ("llm:99999", None),
        ("", None),
        ("http://llm:1", None),
    ],
)
def test_a_target_names_addresses_or_a_name_or_is_left_to_grpc(target: str, expected: Target | None) -> None:
    assert parse_target(target) == expected


def test_a_proxy_of_the_environment_is_left_to_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    targets = [parse_target(text) for text in ("llm.internal:1", "10.0.0.1:1", "unix:/run/s")]
    found = [target for target in targets if target is not None]
    assert [uses_proxy(target) for target in found] == [False, False, False]
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert [uses_proxy(target) for target in found] == [True, True, False]
    monkeypatch.setenv("no_proxy", ".internal,10.0.0.1")
    assert [uses_proxy(target) for target in found] == [False, False, False]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no TCP_USER_TIMEOUT")
def test_data_that_nobody_acknowledges_ends_a_tcp_connection_where_keepalive_is_on() -> None:
    on, off = (KeepaliveTimes(interval_s=interval_s, timeout_s=20) for interval_s in (310.0, None))
    for family, times, bound_ms in (
        (socket.AF_INET, on, 20_000),
        (socket.AF_INET6, on, 20_000),
        (socket.AF_INET, off, 0),
    ):
        with socket.socket(family) as found:
            bound_unacknowledged(found, times)
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == bound_ms
    with socket.socket(socket.AF_UNIX) as local:
        bound_unacknowledged(local, on)
    bound_unacknowledged(None, on)
