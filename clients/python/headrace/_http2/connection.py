"""One HTTP/2 connection of a client: bytes in, frames out.

It owns the socket, and the rules of the connection as a whole (RFC 9113):
settings, pings, GOAWAY, windows. What belongs to one stream is `streams`'. DATA
takes the short way through `data_received`, everything else `_on_frame`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final, cast

import grpc

from headrace._http2 import frames
from headrace._http2.frames import ErrorCode, Flag, FrameError, FrameType, Setting
from headrace._http2.header_block import MAX_HEADER_BYTES, HeaderBlocks, Headers
from headrace._http2.inbox import MAX_APART, PREFIX_BYTES, STREAM_WINDOW_BYTES
from headrace._http2.keepalive import Keepalive, KeepaliveTimes
from headrace._http2.outcome import Outcome
from headrace._http2.streams import StreamOwner, Streams

__all__ = ["Connection"]

# A frame head and behind it the prefix of a gRPC message, which is how nearly every token comes.
DATA_HEAD: Final = struct.Struct(">IBIBI")
DATA_HEAD_BYTES: Final = 14
# For all streams together. It is given back on arrival, since each stream has a window of its own.
CONNECTION_WINDOW_BYTES: Final = 16 * 1024 * 1024
MAX_SENT_FRAME_BYTES: Final = 64 * 1024  # larger ones would let one request hold up the others
MAX_UNSENT_BYTES: Final = 4 * 1024 * 1024  # small frames behind a peer that has stopped reading
CALM: Final = b"too_many_pings"


class Connection(asyncio.Protocol):
    """Made for `loop.create_connection`; usable once `ready` is done, as long as it `has_room`.

    `ready` fails with OSError if the peer does not speak HTTP/2. `on_change` is
    called when there may be room again, or never more.
    """

    def __init__(self, times: KeepaliveTimes, on_change: Callable[[Connection], None]) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.is_open = True  # takes new streams
        self.was_told_to_calm = False
        self.streams = Streams(self._write, self._on_stream_gone)
        self._on_change = on_change
        self._time = loop.time
        self._keepalive = Keepalive(times, ping=self._ping, is_busy=self._is_busy, on_silence=self._on_silence)
        self._transport: asyncio.Transport | None = None
        self._header_blocks = HeaderBlocks()
        self._tail = b""  # of a frame that has not come whole
        self._end_text = "the connection was lost"

    @property
    def has_room(self) -> bool:
        """Whether a stream can be opened now."""
        return self.is_open and self.streams.has_room

    def open_stream(self, owner: StreamOwner, header_block: bytes, body: bytes) -> int:
        """Send a request and return its stream id. The connection must have room."""
        stream_id = self.streams.open(owner, header_block, body)
        if self.streams.is_used_up:
            self.is_open = False
        return stream_id

    def cancel_stream(self, stream_id: int) -> None:
        """Reset a stream; its owner is not told. Does nothing if it has ended."""
        self.streams.cancel(stream_id)

    def close(self) -> None:
        """Take no more streams, and leave when the last one has ended."""
        self.is_open = False
        if not self.streams:
            self._leave()

    def abort(self) -> None:
        """Cut the connection; streams that are left end as UNAVAILABLE."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance: uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        values = {
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
        window = frames.window_update(0, CONNECTION_WINDOW_BYTES - frames.WINDOW_BYTES)
        self._transport.write(frames.PREFACE + frames.settings(values) + window)
        self._keepalive.start()

    def connection_lost(self, error: Exception | None) -> None:
        self._keepalive.stop()
        self._end(f"{self._end_text}: {error}" if error else self._end_text)
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self.streams.outbox.is_paused = True

    def resume_writing(self) -> None:
        self.streams.outbox.is_paused = False
        self.streams.outbox.flush()

    def data_received(self, data: bytes) -> None:
        # Runs once per read, its loop once per token. Names are local for speed.
        self._keepalive.heard_s = self._time()
        if self._tail:
            data, self._tail = self._tail + data, b""
        streams, inboxes, unpack = self.streams, self.streams.inboxes, DATA_HEAD.unpack_from
        start, end = 0, len(data)
        try:
            while end - start >= frames.HEAD_BYTES:
                if end - start >= DATA_HEAD_BYTES:
                    word, flags, stream_id, is_compressed, message_bytes = unpack(data, start)
                else:
                    word, flags, stream_id = frames.HEAD.unpack_from(data, start)
                    is_compressed, message_bytes = 1, 0
                size = word >> 8
                after = start + frames.HEAD_BYTES + size
                if after > end:
                    self._check_size(size)
                    break
                # The usual: DATA without flags that holds one whole message.
                if (
                    message_bytes + PREFIX_BYTES == size
                    and not (word & 0xFF or flags or is_compressed)
                    and (inbox := inboxes.get(stream_id)) is not None
                    and inbox.is_plain
                    and not self._header_blocks.is_within
                ):
                    inbox.messages.append(data[start + DATA_HEAD_BYTES : after])
                    streams.unreturned_bytes += size
                    inbox.unreturned_bytes += size
                    if inbox.unreturned_bytes > inbox.HALF_WINDOW_BYTES and not inbox.account():
                        streams.break_for_overrun(stream_id)
                    elif inbox.waiter is not None:
                        inbox.wake()
                    elif len(inbox.messages) > MAX_APART:
                        inbox.pack()
                else:
                    self._check_size(size)
                    payload = data[start + frames.HEAD_BYTES : after]
                    self._on_frame(word & 0xFF, flags, stream_id & frames.MAX_STREAM_ID, payload)
                    if self._transport is None or self._transport.is_closing():
                        return
                start = after
        except FrameError as error:
            self._fail(error)
            return
        if start < end:
            self._tail = data[start:]
        if streams.unreturned_bytes > CONNECTION_WINDOW_BYTES // 2:
            self._write(frames.window_update(0, streams.unreturned_bytes))
            streams.unreturned_bytes = 0

    # Frames

    def _check_size(self, size: int) -> None:
        if size > frames.MAX_FRAME_BYTES:
            raise FrameError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes: the peer may not speak HTTP/2")

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self.ready.done() and kind != FrameType.SETTINGS:
            raise FrameError(
                ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS: the peer does not speak HTTP/2"
            )
        if self._header_blocks.is_within != (kind == FrameType.CONTINUATION):
            raise FrameError(ErrorCode.PROTOCOL_ERROR, "a header block is broken off or continued out of place")
        if (kind in _OF_A_STREAM and not stream_id) or (kind in _OF_THE_CONNECTION and stream_id):
            raise FrameError(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} on stream {stream_id}")
        match kind:
            case FrameType.DATA:
                self.streams.on_data(flags, stream_id, payload)
            case FrameType.HEADERS:
                self._on_headers(self._header_blocks.begin(flags, stream_id, payload))
            case FrameType.CONTINUATION:
                self._on_headers(self._header_blocks.go_on(flags, stream_id, payload))
            case FrameType.RST_STREAM:
                self.streams.on_reset(stream_id, frames.word_of(payload))
            case FrameType.WINDOW_UPDATE:
                self.streams.on_window_update(stream_id, frames.word_of(payload) & frames.MAX_WINDOW_BYTES)
            case FrameType.SETTINGS:
                self._on_settings(flags, payload)
            case FrameType.PING:
                self._on_ping(flags, payload)
            case FrameType.GOAWAY:
                self._on_goaway(payload)
            case FrameType.PUSH_PROMISE:
                raise FrameError(ErrorCode.PROTOCOL_ERROR, "a push, which was switched off")
            case _:  # priorities, and extensions: to be ignored
                pass

    def _on_headers(self, headers: Headers | None) -> None:
        if headers is not None:
            stream_id, fields, is_last = headers
            if fields is None:
                text = f"the server sent headers of more than {MAX_HEADER_BYTES} bytes"
                self.streams.fail(stream_id, Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
            else:
                self.streams.on_fields(stream_id, fields, is_last=is_last)

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & Flag.ACK:
            return
        values = list(frames.settings_of(payload))
        # First: a server counts what is sent by its new windows and frame sizes as too much until it has this.
        self._write(frames.frame(FrameType.SETTINGS, Flag.ACK, 0))
        for name, value in values:
            if name == Setting.MAX_CONCURRENT_STREAMS:
                self.streams.max_streams = value
            elif name == Setting.INITIAL_WINDOW_SIZE:
                self.streams.outbox.set_initial_window(value)
            elif name == Setting.MAX_FRAME_SIZE:
                self.streams.outbox.max_frame_bytes = min(value, MAX_SENT_FRAME_BYTES)
        if not self.ready.done():
            self.ready.set_result(None)
        self._on_change(self)

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != frames.PING_BYTES:
            raise FrameError(ErrorCode.FRAME_SIZE_ERROR, "a PING frame has a broken length")
        if not flags & Flag.ACK:
            self._write(frames.ping(payload, is_ack=True))

    def _on_goaway(self, payload: bytes) -> None:
        last_id, code, debug = frames.goaway_of(payload)
        self.was_told_to_calm = code == ErrorCode.ENHANCE_YOUR_CALM and debug == CALM
        self._end_text = f"the server closed the connection (GOAWAY {code}: {debug[:256].decode('latin-1')})"
        self.is_open = False
        # Streams up to the last id go on to their ends; the others have not been looked at.
        self.streams.end_above(last_id, Outcome(grpc.StatusCode.UNAVAILABLE, self._end_text))
        self._on_stream_gone()

    # Ends

    def _on_stream_gone(self) -> None:
        if not self.is_open and not self.streams:
            self._leave()
        self._on_change(self)

    def _fail(self, error: FrameError) -> None:
        """End a connection whose peer broke its rules."""
        self._write(frames.goaway(error.code, str(error)))
        if self._transport is not None:
            self._transport.close()
        self._end(f"the connection was broken: {error}")

    def _end(self, text: str) -> None:
        """Tell everyone that the connection is no more."""
        self.is_open = False
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(text))
            self.ready.exception()  # whoever connects may be gone
        self.streams.end_all(Outcome(grpc.StatusCode.UNAVAILABLE, text))
        self._on_change(self)

    def _leave(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._write(frames.goaway(ErrorCode.NO_ERROR))
            self._transport.close()

    # Keepalive, and the way out

    def _ping(self) -> None:
        self._write(frames.ping(b"headrace"))

    def _is_busy(self) -> bool:
        return bool(self.streams)

    def _on_silence(self) -> None:
        self._end_text = "the server did not answer a keepalive ping"
        self.abort()

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if self.streams.outbox.is_paused and transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._end_text = "the server has stopped reading"
            transport.abort()


_OF_THE_CONNECTION: Final = frozenset({FrameType.SETTINGS, FrameType.PING, FrameType.GOAWAY})
_OF_A_STREAM: Final = frozenset(
    {FrameType.DATA, FrameType.HEADERS, FrameType.CONTINUATION, FrameType.RST_STREAM, FrameType.PUSH_PROMISE}
)
