"""Header blocks as they come: put together from frames, and decoded in the order of the connection.

Blocks of streams that are gone, and such that are too long for their stream,
are decoded as well: the table of the decoder has to stay in step with the
peer's, or one long error would cost every stream of the connection.
"""

from __future__ import annotations

from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError

from headrace._http2 import frames
from headrace._http2.frames import ErrorCode, Flag, FrameError
from headrace._http2.metadata import Field

__all__ = ["MAX_HEADER_BYTES", "HeaderBlocks"]

MAX_HEADER_BYTES: Final = 64 * 1024  # of one stream's block, decoded and counted as HTTP/2 does
MAX_BLOCK_BYTES: Final = 1024 * 1024  # compressed or not: above it the connection ends
FIELD_OVERHEAD_BYTES: Final = 32  # RFC 9113, section 6.5.2
PRIORITY_BYTES: Final = 5

# (stream id, fields, whether the stream ends); no fields: they are too long for a stream.
Headers = tuple[int, list[Field] | None, bool]


class HeaderBlocks:
    """The receiving side of one connection's compression. FrameError for what breaks its rules."""

    __slots__ = ("_block", "_decoder", "_flags", "_stream_id", "is_within")

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_BLOCK_BYTES)
        self._block = bytearray()
        self._stream_id = 0
        self._flags = 0
        self.is_within = False  # a block has begun: only its continuation may come

    def begin(self, flags: int, stream_id: int, payload: bytes) -> Headers | None:
        """Take a HEADERS frame; return `Headers` if the block is whole."""
        fragment = frames.unpadded(flags, payload)
        self._block = bytearray(fragment[PRIORITY_BYTES:] if flags & Flag.PRIORITY else fragment)
        self._stream_id, self._flags = stream_id, flags
        return self._go_on(flags)

    def go_on(self, flags: int, stream_id: int, payload: bytes) -> Headers | None:
        """Take a CONTINUATION frame; return as `begin` does."""
        if stream_id != self._stream_id:
            raise FrameError(ErrorCode.PROTOCOL_ERROR, "a header block continues on another stream")
        if not payload and not flags & Flag.END_HEADERS:
            raise FrameError(ErrorCode.ENHANCE_YOUR_CALM, "a header block continues with nothing")
        self._block += payload
        return self._go_on(flags)

    def _go_on(self, flags: int) -> Headers | None:
        if len(self._block) > MAX_BLOCK_BYTES:
            raise FrameError(ErrorCode.ENHANCE_YOUR_CALM, f"a header block of more than {MAX_BLOCK_BYTES} bytes")
        self.is_within = not flags & Flag.END_HEADERS
        if self.is_within:
            return None
        try:
            decoded = self._decoder.decode(bytes(self._block), raw=True)
            fields = [(bytes(name), bytes(value)) for name, value in decoded]
        except (HPACKError, ValueError) as error:
            raise FrameError(ErrorCode.COMPRESSION_ERROR, f"headers cannot be decoded: {error}") from error
        size = sum(len(name) + len(value) + FIELD_OVERHEAD_BYTES for name, value in fields)
        is_last = bool(self._flags & Flag.END_STREAM)
        return self._stream_id, fields if size <= MAX_HEADER_BYTES else None, is_last
