"""HTTP/2 frames as bytes (RFC 9113). Pure; it knows neither streams nor gRPC."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

__all__ = [
    "HEAD",
    "HEAD_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_STREAM_ID",
    "MAX_WINDOW_BYTES",
    "PING_BYTES",
    "PREFACE",
    "WINDOW_BYTES",
    "ErrorCode",
    "Flag",
    "FrameError",
    "FrameType",
    "Setting",
    "frame",
    "goaway",
    "goaway_of",
    "headers",
    "ping",
    "reset",
    "settings",
    "settings_of",
    "unpadded",
    "window_update",
    "word_of",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Length and type in one word (length << 8 | type), flags, stream id.
HEAD: Final = struct.Struct(">IBI")
HEAD_BYTES: Final = 9
MAX_FRAME_BYTES: Final = 16_384  # section 4.2; what a peer may send us, since we never ask for more
WINDOW_BYTES: Final = 65_535  # section 6.9.2; of every stream and of the connection at its start
MAX_WINDOW_BYTES: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1
PING_BYTES: Final = 8

_WORD: Final = struct.Struct(">I")
_TWO_WORDS: Final = struct.Struct(">II")
_SETTING: Final = struct.Struct(">HI")


class FrameType(IntEnum):
    """Section 6."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntEnum):
    """Flags of all frame types; ACK and END_STREAM share a bit."""

    END_STREAM = 0x01
    ACK = 0x01
    END_HEADERS = 0x04
    PADDED = 0x08
    PRIORITY = 0x20


class Setting(IntEnum):
    """Section 6.5.2."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class FrameError(Exception):
    """The peer broke the rules of the connection, which has to end with `code`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: FrameType, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def headers(stream_id: int, block: bytes, max_frame_bytes: int) -> bytes:
    """Return a header block that opens a stream, in as many frames as it takes."""
    kind, parts = FrameType.HEADERS, []
    for start in range(0, len(block), max_frame_bytes):
        piece = block[start : start + max_frame_bytes]
        is_last = start + max_frame_bytes >= len(block)
        parts.append(frame(kind, Flag.END_HEADERS if is_last else 0, stream_id, piece))
        kind = FrameType.CONTINUATION
    return b"".join(parts)


def settings(values: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(_SETTING.pack(name, value) for name, value in values.items())
    return frame(FrameType.SETTINGS, 0, 0, payload)


def settings_of(payload: bytes) -> list[tuple[int, int]]:
    """Return the settings in a payload, in order; names that are unknown are kept as numbers."""
    if len(payload) % _SETTING.size:
        raise FrameError(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame has a broken length")
    found = list(_SETTING.iter_unpack(payload))
    for name, value in found:
        if name == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW_BYTES:
            raise FrameError(ErrorCode.FLOW_CONTROL_ERROR, f"an initial window of {value} bytes")
        if name == Setting.MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value < 2**24:
            raise FrameError(ErrorCode.PROTOCOL_ERROR, f"a maximum frame size of {value} bytes")
    return found


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def reset(stream_id: int, code: ErrorCode) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(FrameType.RST_STREAM, 0, stream_id, _WORD.pack(code))


def ping(data: bytes, *, is_ack: bool = False) -> bytes:
    """Return a PING frame with 8 bytes of data."""
    return frame(FrameType.PING, Flag.ACK if is_ack else 0, 0, data)


def goaway(code: ErrorCode, message: str = "") -> bytes:
    """Return a GOAWAY frame; the peer has opened no stream, so the last one is 0."""
    return frame(FrameType.GOAWAY, 0, 0, _TWO_WORDS.pack(0, code) + message.encode()[:256])


def word_of(payload: bytes) -> int:
    """Return the one 32-bit number that a payload has to be."""
    if len(payload) != _WORD.size:
        raise FrameError(ErrorCode.FRAME_SIZE_ERROR, f"a payload of {len(payload)} bytes in place of 4")
    return int(_WORD.unpack(payload)[0])


def goaway_of(payload: bytes) -> tuple[int, int, bytes]:
    """Return last stream id, error code and debug data."""
    if len(payload) < _TWO_WORDS.size:
        raise FrameError(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY frame is too short")
    last_id, code = _TWO_WORDS.unpack_from(payload)
    return last_id & MAX_STREAM_ID, code, payload[_TWO_WORDS.size :]


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return the payload of a DATA or HEADERS frame without its padding."""
    if not flags & Flag.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise FrameError(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]
